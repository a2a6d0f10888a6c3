"""`xvfl evaluate --compare trees`: the same rows as the evaluation, the output, the errors."""

import json
import sys
from dataclasses import replace
from pathlib import Path

import numpy as np
import pandas as pd
import pytest

from tests.command_line import rejected_with, run_xvfl
from tests.small_tables import CONFIG, is_png, make_tables, write_run_inputs
from xvfl.dataset.in_memory import InMemoryDataset
from xvfl.model.quick_trees import tree_rows
from xvfl.model.run_dir import RunDir
from xvfl.model.tree_comparison import held_out_places, training_seconds
from xvfl.model.workflow import open_dataset, open_run

pytest.importorskip("lightgbm")


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("trees")
    assert run_xvfl("train", write_run_inputs(folder, rows=600), "--out", folder / "run").code == 0
    return folder / "run"


@pytest.mark.slow
def test_trees_are_compared_on_the_rows_of_the_evaluation(run: Path) -> None:
    said = run_xvfl("evaluate", run, "--compare", "trees")
    assert said.code == 0 and said.err == ""
    assert all(word in said.out for word in ("logit mean", "pooled", "AUROC", "trained for"))
    found = json.loads((run / "evaluation.json").read_text())
    lines = {(line["way"], line["party"]): line for line in found["trees"]["lines"]}
    assert list(lines) == [
        ("local", "bank"),
        ("local", "shop"),
        ("logit mean", "all"),
        ("pooled", "all"),
    ]
    modes = {"local": "local", "logit mean": "collaborative", "pooled": "collaborative"}
    by_mode = {(line["mode"], line["party"]): line for line in found["lines"]}
    for (way, party), line in lines.items():
        beside = by_mode[modes[way], party]
        assert (line["rows"], line["model_metrics"]) == (beside["rows"], beside["metrics"])
        assert line["metrics"]["auroc"] > 0.9 and line["seconds"] > 0
        assert line["masks"] in ("none", "random")
    assert 0 < found["trees"]["model_seconds"] < 600
    assert is_png(run / "evaluation.png")
    assert run_xvfl("evaluate", run).code == 0
    assert "trees" not in json.loads((run / "evaluation.json").read_text())


def test_trees_train_and_test_on_the_rows_of_the_run(run: Path) -> None:
    folder = RunDir(run)
    _, manifest, config = open_run(folder)
    with open_dataset(config, Path(manifest["base_dir"]), folder) as dataset:
        rows = tree_rows(dataset)  # type: ignore[arg-type]
        places = held_out_places(dataset, manifest["held_out"])  # type: ignore[arg-type]
    assert [dataset.ids[i] for i in places] == manifest["held_out"]  # type: ignore[union-attr]
    parts = [rows.train, rows.validation, places]
    assert sorted(np.concatenate(parts)) == list(range(600)), "disjoint, and all rows"
    bank, shop, y = make_tables(600)
    for place, row in enumerate(dataset.ids):  # type: ignore[union-attr]
        assert manifest["classes"][rows.y[place]] == y[row]
        for table, frame in zip(rows.tables, (bank, shop), strict=True):
            held = frame.loc[row].notna().tolist() if row in frame.index else [False] * 3
            assert table.observed[place].tolist() == held


def test_unlabeled_rows_do_not_train_trees(run: Path) -> None:
    folder = RunDir(run)
    _, manifest, config = open_run(folder)
    with open_dataset(config, Path(manifest["base_dir"]), folder) as dataset:
        assert isinstance(dataset, InMemoryDataset)
    unlabeled = dataset.train[::3]
    y, weight = dataset.rows.y.clone(), dataset.rows.weight * 1.5
    y[unlabeled], weight[unlabeled] = -1, 0.25
    rows = tree_rows(replace(dataset, rows=replace(dataset.rows, y=y, weight=weight)))
    assert sorted([*rows.train, *unlabeled.tolist()]) == dataset.train.tolist()
    np.testing.assert_allclose(rows.weight[rows.train], 1.0)


def test_tables_that_changed_are_rejected(run: Path, tmp_path: Path) -> None:
    bank = pd.read_csv(run.parent / "bank.csv")
    original = bank.copy()
    bank.loc[:200, "churned"] = "yes"
    try:
        bank.to_csv(run.parent / "bank.csv", index=False)
        assert "restore them" in rejected_with("evaluate", run, "--compare", "trees")
    finally:
        original.to_csv(run.parent / "bank.csv", index=False)


def test_unknown_rival_and_missing_package(run: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert "valid: trees" in rejected_with("evaluate", run, "--compare", "forest")
    monkeypatch.setitem(sys.modules, "lightgbm", None)
    said = rejected_with("evaluate", run, "--compare", "trees")
    assert "needs the package lightgbm: pip install 'xvfl[trees]'" in said
    assert run_xvfl("evaluate", run).code == 0


@pytest.mark.slow
def test_runs_of_images_and_runs_out_of_core_are_rejected(tmp_path: Path) -> None:
    config = write_run_inputs(tmp_path)
    bank, _, y = make_tables()
    pixels = np.random.default_rng(0).integers(0, 255, (len(y), 8, 8), dtype=np.uint8)
    np.savez(tmp_path / "photos.npz", images=pixels, ids=np.array(y.index, dtype=str))
    shop = '[parties.shop]\ntable = "shop.parquet"\nid_column = "customer"\n'
    images = CONFIG.replace(shop, '[parties.camera]\ntable = "photos.npz"\n')
    images = images.replace("hidden_dim = 16", "hidden_dim = 16\nn_blocks = 1")
    config.write_text(images.replace("epochs = 3", "epochs = 1"))
    assert run_xvfl("train", config, "--out", tmp_path / "images").code == 0
    said = rejected_with("evaluate", tmp_path / "images", "--compare", "trees")
    assert "party 'camera' holds images" in said

    bank.assign(churned=y).reset_index().to_parquet(tmp_path / "bank.parquet", index=False)
    config.write_text("out_of_core = true\n" + CONFIG.replace("bank.csv", "bank.parquet"))
    assert run_xvfl("train", config, "--out", tmp_path / "disk").code == 0
    said = rejected_with("evaluate", tmp_path / "disk", "--compare", "trees")
    assert "trained out of core" in said


def test_seconds_of_a_resumed_training_add_up() -> None:
    records = [{"kind": "epoch", "seconds": each} for each in (1.0, 2.5, 0.5, 1.25)]
    assert training_seconds(records) == 2.5 + 1.25
    assert training_seconds([]) == 0
