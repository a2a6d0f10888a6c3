"""Bad input gets one clear line and exit code 2, and leaves nothing half written."""

import json
import os
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
import torch

from tests.command_line import rejected_with, run_xvfl
from tests.small_tables import (
    CONFIG,
    SOURCE,
    assert_same_run,
    checkpoint_bytes,
    has_no_temporary_files,
    interrupt_at,
    train,
    write_run_inputs,
)
from xvfl.model.run_dir import CHECKPOINT, FORMAT, MANIFEST, MODEL, RunDir

Spoil = Callable[[Path], object]


def bank(change: Callable[[pd.DataFrame], pd.DataFrame | None]) -> Spoil:
    """Change the bank's table."""
    return lambda folder: _rewrite(folder / "bank.csv", change)


def shop(change: Callable[[pd.DataFrame], pd.DataFrame | None]) -> Spoil:
    """Change the shop's table."""
    return lambda folder: _rewrite(folder / "shop.parquet", change)


def _rewrite(path: Path, change: Callable[[pd.DataFrame], pd.DataFrame | None]) -> None:
    table = pd.read_csv(path) if path.suffix == ".csv" else pd.read_parquet(path)
    changed = change(table)
    table = table if changed is None else changed
    if path.suffix == ".csv":
        table.to_csv(path, index=False)
    else:
        table.to_parquet(path, index=False)


def config(old: str, new: str) -> Spoil:
    """Change the configuration."""

    def spoil(folder: Path) -> None:
        assert CONFIG.count(old) >= 1
        (folder / "run.toml").write_text(CONFIG.replace(old, new, 1))

    return spoil


def put(column: str, row: int, value: object) -> Callable[[pd.DataFrame], None]:
    """Change one cell."""

    def change(table: pd.DataFrame) -> None:
        table[column] = table[column].astype(object)
        table.loc[row, column] = value

    return change


def set_all(column: str, value: object) -> Callable[[pd.DataFrame], pd.DataFrame]:
    """Change a column."""
    return lambda table: table.assign(**{column: value})


TABLES: dict[str, tuple[Spoil, list[str]]] = {
    "id column absent": (
        shop(lambda t: t.rename(columns={"customer": "client"})),
        ["party 'shop'", "shop.parquet", "unknown id column 'customer'", "valid: client"],
    ),
    "duplicate id": (
        bank(put("customer", 3, "c001")),
        ["party 'bank'", "bank.csv", "'customer'", "'c001'", "row 4", "keep one row per id"],
    ),
    "id missing": (
        bank(put("customer", 3, None)),
        ["bank.csv", "id column 'customer'", "row 4", "fill them in"],
    ),
    "no id shared": (
        shop(lambda t: t.assign(customer="x" + t["customer"])),
        ["party 'shop'", "shares no id with the labels", "'xc020'", "'c000'", "same id column"],
    ),
    "infinity": (
        bank(put("balance", 7, np.inf)),
        ["party 'bank'", "column 'balance'", "'inf'", "row 'c007'", "replace by a number"],
    ),
    "infinity in parquet": (
        shop(put("basket", 5, -np.inf)),
        ["party 'shop'", "column 'basket'", "'-inf'", "row 'c025'"],
    ),
    "labels of one class": (
        bank(set_all("churned", "yes")),
        ["party 'bank'", "'churned'", "at least 2 classes", "only class yes"],
    ),
    "no label at all": (
        bank(set_all("churned", None)),
        ["party 'bank'", "'churned'", "no label at all"],
    ),
    "too few rows": (
        bank(lambda t: t.assign(churned=["yes", "no"] * (len(t) // 2)).iloc[40:46]),
        ["the validation set is empty", "add rows"],
    ),
    "a regression target": (
        bank(lambda t: t.assign(churned=np.linspace(0, 1, len(t)))),
        ["'churned'", "looks like a regression target", "XVFLRegressor", "into classes"],
    ),
    "every column empty": (
        shop(lambda t: t.assign(visits=1, basket=None, club=True)),
        ["party 'shop'", "at least one column with two different values", "check the table"],
    ),
    "no rows": (shop(lambda t: t.iloc[:0]), ["shop.parquet", "at least one row"]),
    "table absent": (
        lambda folder: (folder / "bank.csv").unlink(),
        ["party 'bank'", "bank.csv", "file not found", "check the path"],
    ),
    "table of another kind": (
        config("shop.parquet", "shop.xls"),
        ["party 'shop'", "shop.xls", ".csv.gz, .parquet, .xlsx", "convert the file"],
    ),
    "not really parquet": (
        lambda folder: (folder / "shop.parquet").write_text("nonsense"),
        ["party 'shop'", "shop.parquet", "cannot be read as Parquet"],
    ),
    "a wrong query": (
        config('"shop.parquet"', "\"sql:SELECT * FROM 'nowhere.csv'\""),
        ["party 'shop'", "SQL query", "correct the query"],
    ),
    "label column absent": (
        config('"churned"', '"churn"'),
        ["labels of party 'bank'", "unknown label column 'churn'", "did you mean 'churned'"],
    ),
    "label table without the column": (
        config('party = "bank"', 'table = "bank.csv"\nid_column = "customer"\n#'),
        ["labels", "bank.csv", "unknown label column 'churnd'", "did you mean 'churned'"],
    ),
    "an option for a column that is not there": (
        config('id_column = "customer"', 'id_column = "customer"\noptions.drop = ["agee"]'),
        ["party 'bank'", "unknown column 'agee'", "did you mean 'age'"],
    ),
    "a word among numbers forced": (
        lambda folder: (
            bank(put("age", 4, "old"))(folder),
            config('id_column = "customer"', 'id_column = "customer"\noptions.numeric = ["age"]')(
                folder
            ),
        ),
        ["party 'bank'", "column 'age'", "'old'", "row 'c004'", "na_values"],
    ),
}


@pytest.mark.parametrize("case", TABLES)
def test_bad_tables(case: str, tmp_path: Path) -> None:
    path = write_run_inputs(tmp_path)
    spoil, expected = TABLES[case]
    spoil(tmp_path)
    if case == "label table without the column":
        path.write_text(path.read_text().replace('"churned"', '"churnd"'))
    message = rejected_with("train", path, "--out", tmp_path / "run")
    assert all(words in message for words in expected), message
    assert not (tmp_path / "run").exists()


CONFIGS: dict[str, tuple[Spoil, list[str]]] = {
    "absent": (lambda folder: (folder / "run.toml").unlink(), ["run.toml", "xvfl init"]),
    "not TOML": (
        lambda folder: (folder / "run.toml").write_text("[labels\n"),
        ["run.toml", "not valid TOML", "line 1"],
    ),
    "not UTF-8": (
        lambda folder: (folder / "run.toml").write_bytes(b"# \xe9t\xe9\n"),
        ["run.toml", "UTF-8"],
    ),
    "a key misspelled": (
        config("epochs = 3", "epoch = 3"),
        ["run.toml", "train", "unknown key 'epoch'", "did you mean 'epochs'"],
    ),
    "a section misspelled": (
        config("[train]", "[training]"),
        ["unknown key 'training'", "did you mean 'train'"],
    ),
    "an option misspelled": (
        config('id_column = "customer"', 'id_column = "customer"\noptions.na_value = ["?"]'),
        ["parties.bank: options", "'na_value'", "did you mean 'na_values'"],
    ),
    "a key missing": (config('column = "churned"', ""), ["labels", "'column' is missing"]),
    "a wrong type": (
        config("epochs = 3", 'epochs = "many"'),
        ["train: epochs", "expected an integer, got 'many'"],
    ),
    "a flag for a number": (
        config("epochs = 3", "learning_rate = true"),
        ["learning_rate: expected a number, got True"],
    ),
    "neither number nor list": (
        config("[train]", '[loss]\nlambda1 = "x"\n[train]'),
        ["lambda1: expected a number, got 'x'"],
    ),
    "a number for a section": (
        config("[labels]", "loss = 3\n[labels]"),
        ["loss: expected a table ([section]), got 3"],
    ),
    "a bad value": (
        config("epochs = 3", "epochs = -1"),
        ["epochs: expected a positive integer, got -1"],
    ),
    "a bad share": (
        config("[labels]", "test_fraction = 1.5\n[labels]"),
        ["test_fraction: expected a share"],
    ),
    "an unknown method": (
        config("[train]", '[loss]\nmethod = "xvlf"\n[train]'),
        ["loss: unknown method 'xvlf'", "did you mean 'xvfl'"],
    ),
    "one party": (
        config('[parties.shop]\ntable = "shop.parquet"\nid_column = "customer"\n', ""),
        ["parties: expected two or more [parties.NAME], got ['bank']"],
    ),
    "labels with an unknown party": (
        config('party = "bank"', 'party = "bnak"'),
        ["labels.party", "unknown party 'bnak'", "did you mean 'bank'"],
    ),
    "no id column": (
        config('table = "shop.parquet"\nid_column = "customer"', 'table = "shop.parquet"'),
        ["party 'shop'", "name the id column"],
    ),
    "a party that cannot name a file": (
        config("[parties.shop]", '[parties."the/shop"]'),
        ["party name 'the/shop'", "rename the party"],
    ),
    "no GPU": (
        config('device = "cpu"', 'device = "cuda"'),
        ["device: expected a GPU", "use 'cpu'"],
    ),
}


@pytest.mark.parametrize("case", CONFIGS)
def test_bad_configurations(case: str, tmp_path: Path) -> None:
    if case == "no GPU" and torch.cuda.is_available():
        pytest.skip("there is a GPU")
    path = write_run_inputs(tmp_path)
    spoil, expected = CONFIGS[case]
    spoil(tmp_path)
    message = rejected_with("train", path, "--out", tmp_path / "run")
    assert all(words in message for words in expected), message
    assert not (tmp_path / "run").exists()


@pytest.mark.slow
def test_a_real_process_prints_one_line_and_no_traceback(tmp_path: Path) -> None:
    write_run_inputs(tmp_path)
    bank(put("customer", 3, "c001"))(tmp_path)
    done = subprocess.run(
        [sys.executable, "-m", "xvfl", "train", "run.toml", "--out", "run"],
        cwd=tmp_path,
        env={"PYTHONPATH": str(SOURCE), "PATH": "/usr/bin:/bin", "OMP_NUM_THREADS": "1"},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 2 and done.stdout == ""
    assert done.stderr.startswith("error: party 'bank', file bank.csv")
    assert len(done.stderr.splitlines()) == 1
    assert not (tmp_path / "run").exists()


def test_columns_without_information_are_left_out_with_a_warning(tmp_path: Path) -> None:
    path = write_run_inputs(tmp_path)
    bank(lambda t: t.assign(one="x", nothing=None))(tmp_path)
    said = run_xvfl("train", path, "--out", tmp_path / "run")
    left_out = "left out 'one' (constant), 'nothing' (all values missing)"
    warned = f"warning: party 'bank', file bank.csv: {left_out}"
    assert said.code == 0 and said.err.splitlines() == [warned]


def test_training_that_diverges_says_so(tmp_path: Path) -> None:
    path = write_run_inputs(tmp_path)
    config("batch_size = 32", 'batch_size = 32\noptimizer = "sgd"\nlearning_rate = 1e30')(tmp_path)
    result = run_xvfl("train", path, "--out", tmp_path / "run")
    assert result.code == 2 and "rows by party" in result.out
    assert "diverged" in result.err and "lower learning_rate" in result.err
    assert not (tmp_path / "run" / MANIFEST).exists()


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Tables, configuration and a finished run."""
    folder = tmp_path_factory.mktemp("trained")
    assert run_xvfl("train", write_run_inputs(folder), "--out", folder / "run").code == 0
    return folder


@pytest.fixture
def folder(trained: Path, tmp_path: Path) -> Path:
    """Give a copy of it to spoil."""
    return Path(shutil.copytree(trained, tmp_path / "copy"))


def predict(folder: Path, *more: object, output: str = "answers.csv") -> list[object]:
    """Ask for a prediction of both tables."""
    given = (f"bank={folder / 'bank.csv'}", f"shop={folder / 'shop.parquet'}")
    return ["predict", folder / "run", *given, "--out", folder / output, *more]


REQUESTS: dict[str, tuple[list[str], list[str]]] = {
    "unknown party": (["shp=x.csv"], ["tables", "'shp'", "did you mean 'shop'"]),
    "no equals sign": (["x.csv"], ["tables: expected NAME=TABLE, got 'x.csv'"]),
    "a party twice": (["bank=x.csv"], ["tables", "'bank' is given twice"]),
    "unknown mode": (
        ["--mode", "colab"],
        ["unknown mode 'colab'", "did you mean", "collaborative, peers"],
    ),
    "whose": (["--mode", "local"], ["choose the predicting party", "bank, shop"]),
    "nobody": (["--party", "bnk"], ["unknown party 'bnk'", "did you mean 'bank'"]),
    "id column": (["--id", "client"], ["bank.csv", "unknown id column 'client'"]),
}


@pytest.mark.parametrize("case", REQUESTS)
def test_bad_requests(case: str, folder: Path) -> None:
    more, expected = REQUESTS[case]
    message = rejected_with(*predict(folder, *more))
    assert all(words in message for words in expected), message
    assert not (folder / "answers.csv").exists() and has_no_temporary_files(folder)


def test_a_party_without_its_table(folder: Path) -> None:
    asked = ["predict", folder / "run", "--mode", "local", "--party", "shop"]
    given = [f"bank={folder / 'bank.csv'}", "--out", folder / "answers.csv"]
    assert "expected its table, got ['bank']" in rejected_with(*asked, *given)


@pytest.mark.parametrize(
    ("output", "expected"),
    [("answers.xlsx", "ending in .csv or .parquet"), ("nowhere/answers.csv", "create it first")],
)
def test_bad_outputs(output: str, expected: str, folder: Path) -> None:
    message = rejected_with(*predict(folder, output=output))
    assert expected in message and output in message
    assert not (folder / output).exists()


def test_a_column_lost_since_training(folder: Path) -> None:
    shop(lambda t: t.rename(columns={"basket": "baskets"}))(folder)
    message = rejected_with(*predict(folder, "--strict"))
    assert "party 'shop'" in message and "'basket'" in message and "'baskets'" in message
    assert "add or rename columns" in message
    assert not (folder / "answers.csv").exists()
    said = run_xvfl(*predict(folder))
    assert said.code == 0 and "'basket' (did you mean 'baskets'?)" in said.err


def test_odd_rows_are_answered_and_flagged(folder: Path) -> None:
    def odd(table: pd.DataFrame) -> None:
        table["age"] = table["age"].astype(float)
        table.loc[0, "job"] = "astronaut"
        table.loc[1, "balance"] = 1e7
        table.loc[2, ["age", "balance", "job"]] = None

    bank(odd)(folder)
    asked = predict(folder, "--mode", "collaborative")
    result = run_xvfl(*asked)
    assert result.code == 0
    assert "warning: 1 of 120 rows have no observed feature at the parties used" in result.err
    answers = pd.read_csv(folder / "answers.csv", keep_default_na=False).set_index("id")
    assert answers.loc["c000", "notes"] == "bank: unseen category in job"
    assert answers.loc["c001", "notes"] == "bank: balance far outside the training range"
    assert answers.loc["c002", ["notes", "mode", "parties"]].tolist() == [
        "not observed by any party: class prior",
        "prior",
        "",
    ]
    chances = answers.filter(like="proba_").astype(float)
    prior = RunDir(folder / "run").manifest()["prior"]
    assert chances.loc["c002"].tolist() == pytest.approx(prior)
    assert np.allclose(chances.sum(axis=1), 1)


def cut(path: Path) -> None:
    """Lose the second half of a file."""
    data = path.read_bytes()
    path.write_bytes(data[: len(data) // 2])


def change_manifest(**new: object) -> Callable[[Path], None]:
    """Change what the manifest says."""

    def spoil(run: Path) -> None:
        said = json.loads((run / MANIFEST).read_text())
        (run / MANIFEST).write_text(json.dumps({**said, **new}))

    return spoil


RUNS: dict[str, tuple[Callable[[Path], object], list[str]]] = {
    "absent": (lambda run: shutil.rmtree(run), ["no such model or run folder", "check the path"]),
    "of another version": (
        change_manifest(format=FORMAT + 1, version="9.9"),
        [f"format {FORMAT + 1}", "xvfl 9.9", "train the model again"],
    ),
    "of version 0.1": (
        lambda run: (run / MANIFEST).write_text('{"format": 1, "version": "0.1.0", "seed": 0}'),
        [
            "run: written by xvfl 0.1.0 in format 1, this version reads format 2; train the model "
            "again, or install the version that wrote it"
        ],
    ),
    "cut short": (lambda run: (run / MANIFEST).unlink(), [MANIFEST, "--resume"]),
    "not a run": (
        lambda run: [path.unlink() for path in (run / MANIFEST, run / CHECKPOINT)],
        [MANIFEST, "not a complete run"],
    ),
    "manifest cut": (lambda run: cut(run / MANIFEST), [MANIFEST, "cannot be read"]),
    "manifest of another kind": (
        lambda run: (run / MANIFEST).write_text("[]"),
        [MANIFEST, "expected a JSON object"],
    ),
    "manifest with a key lost": (change_manifest(net=None), ["damaged", "train it again"]),
    "weights cut": (lambda run: cut(run / MODEL), [MODEL, "truncated or damaged"]),
    "weights damaged": (
        lambda run: (run / MODEL).write_bytes(b"\xff" * 100),
        [MODEL, "truncated or damaged"],
    ),
    "weights lost": (lambda run: (run / MODEL).unlink(), [MODEL, "is missing"]),
    "weights of other nets": (
        lambda run: RunDir(run).save_tensors(MODEL, {"bank/x": torch.zeros(1)}, {}),
        ["weights do not fit its nets"],
    ),
    "encoder lost": (
        lambda run: (run / "encoders" / "bank.json").unlink(),
        ["encoders/bank.json is missing"],
    ),
    "encoder cut": (lambda run: cut(run / "encoders" / "bank.json"), ["bank.json"]),
    "configuration lost": (lambda run: (run / "config.toml").unlink(), ["config.toml is missing"]),
}


@pytest.mark.parametrize("case", RUNS)
def test_bad_run_folders(case: str, folder: Path) -> None:
    spoil, expected = RUNS[case]
    spoil(folder / "run")
    for asked in (["evaluate", folder / "run"], predict(folder)):
        message = rejected_with(*asked)
        assert str(folder / "run") in message
        assert all(words in message for words in expected), message
    assert not (folder / "answers.csv").exists()
    assert not (folder / "run" / "evaluation.json").exists()


def test_a_run_is_not_overwritten(folder: Path) -> None:
    before = (folder / "run" / MODEL).read_bytes()
    message = rejected_with("train", folder / "run.toml", "--out", folder / "run")
    assert "already contains a run" in message and "--resume" in message
    assert (folder / "run" / MODEL).read_bytes() == before
    (folder / "file").write_text("")
    assert "cannot be created" in rejected_with(
        "train", folder / "run.toml", "--out", folder / "file"
    )


def test_tables_moved_away_since_training(folder: Path, tmp_path: Path) -> None:
    path = write_run_inputs(tmp_path)
    here = tmp_path / "elsewhere"
    here.mkdir()
    for name in ("run.toml", "bank.csv", "shop.parquet"):
        shutil.move(tmp_path / name, here / name)
    assert run_xvfl("train", here / path.name, "--out", tmp_path / "run").code == 0
    shutil.rmtree(here)
    message = rejected_with("evaluate", tmp_path / "run")
    assert str(here) in message and "restore them" in message


@pytest.fixture
def stopped(tmp_path: Path) -> Path:
    """Tables, configuration and a run interrupted after its fourth step."""
    train(write_run_inputs(tmp_path), tmp_path / "run", show=interrupt_at(4))
    return tmp_path


@pytest.mark.parametrize(
    "spoil",
    [
        config("epochs = 3", "epochs = 4"),
        config("embedding_dim = 8", "embedding_dim = 4"),
        config("[labels]", "test_fraction = 0.4\n[labels]"),
        bank(lambda t: t.iloc[1:]),
        shop(lambda t: t.assign(visits=t["visits"].to_numpy()[::-1])),
    ],
    ids=["epochs", "net", "split", "rows", "values"],
)
def test_resuming_something_else(spoil: Spoil, stopped: Path) -> None:
    before = checkpoint_bytes(stopped / "run")
    spoil(stopped)
    message = rejected_with("train", stopped / "run.toml", "--out", stopped / "run", "--resume")
    assert "configuration or the tables changed" in message and "another folder" in message
    assert checkpoint_bytes(stopped / "run") == before


def test_a_truncated_checkpoint(stopped: Path) -> None:
    cut(stopped / "run" / CHECKPOINT)
    message = rejected_with("train", stopped / "run.toml", "--out", stopped / "run", "--resume")
    assert CHECKPOINT in message and "truncated or damaged" in message
    assert "train again" in message and "--resume" not in message
    assert not (stopped / "run" / MANIFEST).exists()


@pytest.mark.slow
def test_a_full_disk_leaves_the_last_checkpoint_whole(stopped: Path) -> None:
    before = checkpoint_bytes(stopped / "run")
    room = len(before) // 2
    code = (
        "import resource, runpy\n"
        f"resource.setrlimit(resource.RLIMIT_FSIZE, ({room}, {room}))\n"
        "runpy.run_module('xvfl', run_name='__main__', alter_sys=True)"
    )
    done = subprocess.run(
        [sys.executable, "-c", code, "train", "run.toml", "--out", "run", "--resume"],
        cwd=stopped,
        env={"PYTHONPATH": str(SOURCE), "PATH": "/usr/bin:/bin", "PYTHONDONTWRITEBYTECODE": "1"},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 2 and len(done.stderr.splitlines()) == 1, done.stderr
    assert done.stderr.startswith(f"error: run/{CHECKPOINT}: could not be written")
    assert "unchanged" in done.stderr
    assert_left_whole(stopped / "run", before)
    assert run_xvfl("train", stopped / "run.toml", "--out", stopped / "run", "--resume").code == 0
    train(stopped / "run.toml", stopped / "whole")
    assert_same_run(stopped / "run", stopped / "whole")


@pytest.fixture
def small_disk(stopped: Path) -> Iterator[Path]:
    """Mount a disk with room for one checkpoint and a half, the run on it."""
    disk = stopped / "disk"
    disk.mkdir()
    size = len(checkpoint_bytes(stopped / "run")) * 3 // 2 + 8 * os.sysconf("SC_PAGE_SIZE")
    mount = ["mount", "-t", "tmpfs", "-o", f"size={size}", "tmpfs", str(disk)]
    if shutil.which("mount") is None or subprocess.run(mount, capture_output=True).returncode:
        pytest.skip("mounting a small disk needs root")
    try:
        yield Path(shutil.copytree(stopped / "run", disk / "run"))
    finally:
        subprocess.run(["umount", str(disk)], check=True)


def test_a_really_full_disk(small_disk: Path, stopped: Path) -> None:
    before = checkpoint_bytes(small_disk)
    message = rejected_with("train", stopped / "run.toml", "--out", small_disk, "--resume")
    assert "No space left on device" in message
    assert_left_whole(small_disk, before)


def assert_left_whole(run: Path, before: bytes) -> None:
    """Check that a failed save changed nothing."""
    assert checkpoint_bytes(run) == before and has_no_temporary_files(run)
    assert RunDir(run).load_tensors(CHECKPOINT)[1]["progress"]["step"] == 4
    assert not (run / MANIFEST).exists() and not (run / MODEL).exists()
