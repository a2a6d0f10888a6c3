"""The commands: what they print, what they write, and what they need to import."""

import json
import re
import tomllib
from dataclasses import fields
from pathlib import Path

import numpy as np
import pandas as pd
import pytest

import xvfl as package
from tests.command_line import rejected_with, run_xvfl
from tests.processes import run_python
from tests.small_tables import CONFIG, SOURCE, is_png, make_tables, write_run_inputs
from xvfl.cli.main import app
from xvfl.cli.template import field_docs
from xvfl.config import (
    LossConfig,
    NetConfig,
    PrivacyConfig,
    TableOptions,
    TrainConfig,
    parse_config,
)

PYPROJECT = SOURCE.parent / "pyproject.toml"


def test_version() -> None:
    said = run_xvfl("--version")
    assert (said.code, said.out) == (0, f"xvfl {package.__version__}\n")


HELP = {
    "demo": (["--out", "--federated"], "scanned digits"),
    "inspect": (
        ["TABLES", "--id", "--label", "--task", "--kind", "--json"],
        "xvfl inspect bank.csv shop.parquet --id customer --label churned",
    ),
    "init": (
        ["TABLES", "--id", "--label", "--label-party", "--task", "--force"],
        "xvfl init run.toml bank=bank.csv",
    ),
    "train": (["CONFIG", "--out", "--resume"], "xvfl train run.toml --out run"),
    "evaluate": (["RUN", "--compare"], "xvfl evaluate run --compare trees"),
    "predict": (
        ["RUN", "TABLES", "--out", "--mode", "--party", "--id"],
        "xvfl predict RUN shop=new.csv --mode local --party shop",
    ),
    "complete": (
        ["RUN", "TABLES", "--out", "--party", "--level", "--draws", "--format", "--id"],
        "xvfl complete RUN bank=bank.csv shop=shop.parquet --out completed",
    ),
    "explain": (["RUN", "--metric", "--shared", "--id", "--repeats", "--rows"], "xvfl explain run"),
    "dashboard": (["RUNS", "--port", "--host"], "xvfl dashboard runs"),
    "export": (
        ["RUN", "--out", "--party", "--sign"],
        "xvfl export run --party clinic --out clinic.xvfl",
    ),
    "serve": (
        ["BUNDLE", "--host", "--port", "--tokens", "--client-ca", "--verify", "--release"],
        "xvfl serve clinic.xvfl --port 8080",
    ),
    "check": (["CONFIG"], "xvfl check bank.toml"),
    "party": (["CONFIG", "--quiet", "--serve", "--once"], "xvfl party bank.toml"),
    "coordinator": (["CONFIG", "--quiet", "--retrain"], "xvfl coordinator coordinator.toml"),
    "predict-federation": (
        ["CONFIG", "--ids", "--id", "--out"],
        "xvfl predict-federation coordinator.toml --ids new.csv",
    ),
    "status": (["ADDRESS", "--json"], "xvfl status 127.0.0.1:8480"),
    "approve": (["CONFIG", "NUMBER", "--reject"], "xvfl approve bank.toml 3 --reject"),
    "ask": (["CONFIG", "KIND", "--party", "--reason"], "xvfl ask coordinator.toml new-rows"),
    "rollback": (["CONFIG"], "xvfl rollback coordinator.toml"),
    "align": (["CONFIG", "--party", "--wait"], "xvfl align bank.toml"),
    "release": (
        ["CONFIG", "--to", "--revoke", "--reason", "--wait"],
        "xvfl release coordinator.toml --to bank",
    ),
    "install": (["CONFIG", "FILE"], "xvfl install bank.toml bank.release"),
    "withdraw": (
        ["CONFIG", "--ids", "--version", "--all", "--out", "--receipt"],
        "xvfl withdraw bank.toml --ids leaving.txt",
    ),
    "audit": (
        ["PATH", "--out", "--rows", "--label", "--known-labels", "--known-rows", "--quick"],
        "xvfl audit party.toml --out audit",
    ),
}


@pytest.mark.parametrize("command", HELP)
def test_help_names_the_options_and_gives_an_example(
    command: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "100")
    said = run_xvfl(command, "--help")
    options, example = HELP[command]
    text = " ".join(re.sub(r"\x1b\[[0-9;]*m|[│╭╮╰╯─]", " ", said.out).split())
    assert said.code == 0 and said.err == ""
    assert all(option.lower() in text.lower() for option in options), text
    assert example in text


def test_every_help_ends_with_the_exit_codes() -> None:
    found = [
        each.name or each.callback.__name__ for each in app.registered_commands if each.callback
    ]
    groups = [
        (group.name, each.name or each.callback.__name__)
        for group in app.registered_groups
        if group.typer_instance is not None
        for each in group.typer_instance.registered_commands
        if each.callback is not None
    ]
    for command in ([], *([each] for each in found if each != "serve"), *groups):
        text = " ".join(
            run_xvfl(*(str(each).replace("_", "-") for each in command), "--help").out.split()
        )
        assert "Exit codes: 0 success" in text and "130 Ctrl-C" in text, command


def test_help_lists_every_command_in_order_of_use() -> None:
    said = run_xvfl("--help")
    commands = [each.callback for each in app.registered_commands if each.callback]
    assert [each.__name__.replace("_", "-") for each in commands] == list(HELP)
    assert said.code == 0
    assert re.findall(r"^│ ([a-z][a-z-]+) ", said.out, re.MULTILINE) == [
        *HELP,
        "heads",
        "upload",
        "secret",
        "certs",
        "trail",
    ]


@pytest.mark.parametrize("arguments", [("--help",), ("status", "127.0.0.1:1"), ("init", "--help")])
def test_commands_that_do_not_train_start_without_torch(arguments: tuple[str, ...]) -> None:
    script = (
        "import sys\n"
        "from xvfl.cli.main import main\n"
        "try:\n"
        "    main()\n"
        "except SystemExit:\n"
        "    heavy = {'torch', 'pandas', 'sklearn', 'numpy', 'grpc', 'cryptography'}\n"
        "    print('imported:', sorted(heavy & set(sys.modules)))\n"
    )
    assert run_python("-c", script, *arguments).stdout.endswith("imported: []\n")


def test_a_command_line_without_what_it_needs() -> None:
    for arguments in (["train"], ["predict", "run"], ["evaluate"], ["nonsense"]):
        said = run_xvfl(*arguments)
        assert said.code == 2 and "Traceback" not in said.err


def test_init_shows_every_default(tmp_path: Path) -> None:
    path = tmp_path / "run.toml"
    said = run_xvfl("init", path, "bank=a.csv", "the shop=b.parquet")
    assert said.code == 0 and f"xvfl train {path}" in said.out
    text = path.read_text()
    config = parse_config(text, "run.toml")
    assert list(config.parties) == ["bank", "the shop"] and config.labels.party == "bank"
    every = re.sub(r"^# (\[parties|[a-z_0-9]+ = (?!…))", r"\1", text, flags=re.MULTILINE)
    every = every.replace('\ntable = "labels.csv"\nid_column = "id"\n', "\n")
    said_now = tomllib.loads(every)
    parsed = parse_config(every, "run.toml")
    assert parsed == config
    sections = {"net": NetConfig, "loss": LossConfig, "train": TrainConfig}
    given = {name: said_now[name] for name in sections}
    given["options"] = said_now["parties"]["bank"]["options"]
    for name, cls in {**sections, "options": TableOptions}.items():
        shown = {each.name for each in fields(cls) if each.default is not None}
        assert given[name].keys() == shown
        assert all(field_docs(cls).values()), "every field is explained"
    assert "Maximum number of passes over the labeled training rows; by default" in text
    for cls in (*sections.values(), TableOptions, PrivacyConfig):
        missing = [each.name for each in fields(cls) if f"# {each.name} = " not in text]
        assert not missing, f"{cls.__name__}: every option is written"


def test_init_does_not_overwrite(tmp_path: Path) -> None:
    path = tmp_path / "run.toml"
    path.write_text("mine")
    assert "--force" in rejected_with("init", path)
    assert path.read_text() == "mine"
    assert run_xvfl("init", path, "--force").code == 0 and path.read_text() != "mine"
    assert "cannot be written" in rejected_with("init", tmp_path / "nowhere" / "run.toml")


def test_init_refuses_what_train_would(tmp_path: Path) -> None:
    path = tmp_path / "run.toml"
    assert "NAME=TABLE" in rejected_with("init", path, "bank")
    assert "use xvfl init FILE NAME=TABLE" in rejected_with("init", path, "--party", "bank=a.csv")
    old = rejected_with("predict", path, "--input", "bank=a.csv", "--output", "b.csv")
    assert "--input: replaced in version 0.4; use xvfl predict RUN NAME=TABLE" in old
    old = rejected_with("predict", "--federation", path, "--output", "b.csv")
    assert "--federation: replaced in version 0.4; use xvfl predict-federation CONFIG" in old
    assert "unknown party 'shp'" in rejected_with("init", path, "--label-party", "shp")
    assert not path.exists()


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run folder beside its tables."""
    folder = tmp_path_factory.mktemp("cli")
    said = run_xvfl("train", write_run_inputs(folder), "--out", folder / "run")
    # On a busy machine, lines on the progress appear.
    others = [line for line in said.err.splitlines() if not line.startswith("training: ")]
    assert said.code == 0 and others == []
    assert "trained 3 epochs" in said.out and "next: xvfl evaluate" in said.out
    return folder / "run"


def test_train_writes_a_whole_folder(run: Path) -> None:
    assert sorted(path.name for path in run.iterdir() if path.suffix != ".png") == [
        "cells.safetensors",
        "checkpoint.safetensors",
        "config.toml",
        "encoders",
        "manifest.json",
        "missing.json",
        "model.safetensors",
        "records.jsonl",
        "report.json",
        "run.json",
    ]
    assert is_png(run / "curves.png")
    assert (run / "config.toml").read_text() == (run.parent / "run.toml").read_text()
    records = [json.loads(line) for line in (run / "records.jsonl").read_text().splitlines()]
    assert [record["epoch"] for record in records] == [1, 2, 3]


def test_train_shows_how_the_tables_overlap(tmp_path: Path) -> None:
    path = write_run_inputs(tmp_path)
    shop = pd.read_parquet(tmp_path / "shop.parquet")
    shop["customer"] = shop["customer"].str.replace("c1", "C1")
    shop.to_parquet(tmp_path / "shop.parquet", index=False)
    said = run_xvfl("train", path, "--out", tmp_path / "run")
    assert said.code == 0
    assert (
        "warning: party 'bank' and party 'shop': 20 ids differ only in upper and lower case "
        "('c100' and 'C100', 'c101' and 'C101'), so they do not match; use one case" in said.err
    )
    lines = [line.split("│")[1:-1] for line in said.out.splitlines() if line.startswith("│")]
    cells = {line[0].strip(): [int(each) for each in line[1:]] for line in lines}
    assert {name: each[:3] for name, each in cells.items()} == {
        "bank": [120, 80, 120],
        "shop": [100, 80, 80],
        "all parties": [140, 80, 120],
    }
    manifest = json.loads((tmp_path / "run" / "manifest.json").read_text())
    assert {name: list(each.values()) for name, each in manifest["overlap"].items()} == cells


def test_evaluate_measures_every_mode(run: Path) -> None:
    said = run_xvfl("evaluate", run)
    assert said.code == 0 and said.err == ""
    assert all(word in said.out for word in ("local", "assisted", "peers", "collaborative"))
    found = json.loads((run / "evaluation.json").read_text())
    lines = [(line["mode"], line["party"]) for line in found["lines"]]
    assert lines == [
        ("local", "bank"),
        ("local", "shop"),
        ("assisted", "bank"),
        ("assisted", "shop"),
        ("peers", "bank"),
        ("peers", "shop"),
        ("collaborative", "all"),
    ]
    held = json.loads((run / "manifest.json").read_text())["held_out"]
    assert found["split"] == "test" and len(held) == 24
    shop = set(make_tables()[1].index)
    assert found["lines"][0]["rows"] == found["lines"][-1]["rows"] == len(held)
    assert found["lines"][1]["rows"] == len(shop & set(held))
    assert 0.5 <= found["majority"] < 0.7
    assert found["lines"][0]["bytes_per_row"] == 0 < found["lines"][-1]["bytes_per_row"]
    for line in found["lines"]:
        assert list(line["metrics"]) == ["accuracy", "balanced_accuracy", "auroc", "nll", "ece"]
    assert is_png(run / "evaluation.png")


@pytest.mark.slow
def test_a_party_without_held_out_rows_is_passed_over(tmp_path: Path) -> None:
    config = write_run_inputs(tmp_path)
    config.write_text("test_fraction = 0.05\n" + config.read_text())
    assert run_xvfl("train", config, "--out", tmp_path / "run").code == 0
    held = json.loads((tmp_path / "run" / "manifest.json").read_text())["held_out"]
    shop = pd.read_parquet(tmp_path / "shop.parquet")
    shop[~shop["customer"].isin(held)].to_parquet(tmp_path / "shop.parquet", index=False)
    said = run_xvfl("evaluate", tmp_path / "run")
    assert said.code == 0 and said.err == ""
    found = json.loads((tmp_path / "run" / "evaluation.json").read_text())
    assert {line["party"] for line in found["lines"]} == {"bank", "all"}


@pytest.mark.parametrize("kind", ["csv", "parquet"])
@pytest.mark.parametrize("mode", ["local", "assisted", "collaborative", None])
def test_predict_says_how_each_answer_came_about(mode: str | None, kind: str, run: Path) -> None:
    output = run.parent / f"{mode}.{kind}"
    asked = ["predict", run, f"bank={run.parent / 'bank.csv'}", "--out", output]
    if mode != "local":
        asked += [f"shop={run.parent / 'shop.parquet'}"]
    if mode is not None:
        asked += ["--mode", mode]
    if mode in ("local", "assisted"):
        asked += ["--party", "bank"]
    said = run_xvfl(*asked)
    assert said.code == 0 and said.err == "" and f"wrote 120 rows to {output}" in said.out
    is_csv = kind == "csv"
    answers = pd.read_csv(output, keep_default_na=False) if is_csv else pd.read_parquet(output)
    expected = ["id", "prediction", "proba_no", "proba_yes", "mode", "parties", "completed"]
    assert answers.columns.tolist() == [*expected, "notes"]
    assert answers["id"].tolist() == make_tables()[0].index.tolist()
    assert ((answers["proba_no"] + answers["proba_yes"] - 1).abs() < 1e-9).all()
    likelier = (answers["proba_yes"] > answers["proba_no"]).map({True: "yes", False: "no"})
    assert (likelier == answers["prediction"]).all()
    assert answers["completed"].between(0, 1).all() and answers["completed"].max() > 0
    used = {
        "local": {"local"},
        "assisted": {"assisted", "local"},
        "collaborative": {"collaborative"},
    }
    assert set(answers["mode"]) <= used[mode or "collaborative"]
    parties = {"bank"} if mode == "local" else {"bank", "bank+shop"}
    assert set(answers["parties"]) <= parties | ({"shop"} if mode is None else set())
    alone = answers["notes"] == "no peer can assist: local prediction"
    assert (alone == (answers["mode"] == "local")).all() or mode == "local"
    no_gap = int((answers["notes"] == "no gap: decided alone").sum())
    assert (f"; {no_gap} decided alone; " in said.out) == (mode == "assisted")
    assert ("with other notes)" in said.out) == (mode == "assisted")


def test_a_threshold_decides_which_class_is_predicted(tmp_path: Path) -> None:
    with_threshold = CONFIG.replace("[labels]", "[labels]\nthreshold = 0.47")
    config = write_run_inputs(tmp_path, with_threshold)
    assert run_xvfl("train", config, "--out", tmp_path / "run").code == 0
    output = tmp_path / "out.csv"
    asked = [f"bank={tmp_path / 'bank.csv'}", "--out", output]
    assert run_xvfl("predict", tmp_path / "run", *asked).code == 0
    answers = pd.read_csv(output)
    expected = np.where(answers["proba_yes"] > 0.47, "yes", "no")
    assert (answers["prediction"] == expected).all()
    assert (expected != np.where(answers["proba_yes"] > 0.5, "yes", "no")).any()
    for wrong, task in (('"recall"', "classification"), ("0.5", "regression")):
        text = f'[labels]\ntask = "{task}"\nthreshold = {wrong}'
        config.write_text(CONFIG.replace("[labels]", text))
        assert "threshold: " in rejected_with("train", config, "--out", tmp_path / "other")


def test_predict_with_another_id_column(run: Path) -> None:
    table = pd.read_csv(run.parent / "bank.csv").rename(columns={"customer": "who"}).head(5)
    table.drop(columns="churned").to_csv(run.parent / "new.csv", index=False)
    output = run.parent / "new_answers.csv"
    given = [f"bank={run.parent / 'new.csv'}", "--id", "who", "--out", output]
    assert run_xvfl("predict", run, *given).code == 0
    assert pd.read_csv(output)["id"].tolist() == table["who"].tolist()


@pytest.mark.slow
def test_the_training_core_needs_torch_and_numpy_alone() -> None:
    contracts = tomllib.loads(PYPROJECT.read_text())["tool"]["importlinter"]["contracts"]
    contract = next(each for each in contracts if "torch and numpy alone" in each["name"])
    script = (
        "import sys\n"
        f"BLOCKED = {contract['forbidden_modules']!r}\n"
        "class Blocker:\n"
        "    def find_spec(self, name, path=None, target=None):\n"
        "        if name.partition('.')[0] in BLOCKED:\n"
        "            raise ImportError(f'{name} is blocked')\n"
        "sys.meta_path.insert(0, Blocker())\n"
        "import importlib\n"
        f"for name in {contract['source_modules']!r}:\n"
        "    importlib.import_module(name)\n"
        "import pkgutil, xvfl.methods, xvfl.federation, xvfl.nets\n"
        "for package in (xvfl.methods, xvfl.federation, xvfl.nets):\n"
        "    for each in pkgutil.iter_modules(package.__path__, package.__name__ + '.'):\n"
        "        importlib.import_module(each.name)\n"
        "print(sorted(set(BLOCKED) & set(sys.modules)))\n"
    )
    done = run_python("-c", script)
    assert done.stdout == "[]\n", done.stderr


@pytest.mark.slow
def test_a_configuration_with_a_byte_order_mark(tmp_path: Path) -> None:
    path = write_run_inputs(tmp_path)
    path.write_text(path.read_text(encoding="utf-8"), encoding="utf-8-sig")
    assert run_xvfl("train", path, "--out", tmp_path / "run").code == 0
    assert run_xvfl("evaluate", tmp_path / "run").code == 0
