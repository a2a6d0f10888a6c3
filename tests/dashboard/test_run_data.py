"""What runs write for the dashboard, compared with slow and obvious computations."""

import base64
import json
from pathlib import Path

import numpy as np
import torch
from hypothesis import given
from hypothesis import strategies as st

from tests.small_tables import write_run_inputs
from xvfl.config import parse_config
from xvfl.data.encoded import Encoded
from xvfl.model.dashboard.curves import MAX_POINTS, curves
from xvfl.model.missing_map import MAX_GROUPS, dataset_map, rows_map
from xvfl.model.missing_rates import RATES, hide
from xvfl.model.run_dir import RunDir
from xvfl.model.workflow import open_dataset
from xvfl.primitives.layout import Feature, Layout
from xvfl.primitives.metrics import confusion, ece, reliability
from xvfl.primitives.rows import align_rows
from xvfl.training.predict import mean_score, mode_losses, score


def test_records_have_the_validation_loss_of_every_mode(finished_runs: Path) -> None:
    records = [each for each in RunDir(finished_runs / "tables").records()]
    assert len(records) == 3
    for each in records:
        losses = each["modes"]
        scored = [loss for key, loss in losses.items() if not key.startswith("assisted")]
        assert set(losses) == {
            "local/bank",
            "local/shop",
            "assisted/bank",
            "assisted/shop",
            "collaborative",
        }
        assert np.isclose(each["score"], -np.mean(scored))


def test_score_is_minus_the_mean_of_the_mode_losses(finished_runs: Path, tmp_path: Path) -> None:
    config = write_run_inputs(tmp_path)
    parsed = parse_config(config.read_text(), str(config))
    from xvfl.model.model import Model

    model = Model.load(RunDir(finished_runs / "tables"))
    with open_dataset(parsed, tmp_path, RunDir(tmp_path / "run")) as dataset:
        rows = dataset.validation_rows(torch.device("cpu"))
        federation = model.federation(dataset.tables)
        losses = mode_losses(model.method, federation, rows, model.task)
        assert set(losses) == {"local/bank", "local/shop", "collaborative"}
        assert score(model.method, federation, rows, model.task) == mean_score(losses)
        assert mean_score({}) == 0.0


def test_missing_map_counts_the_cells_of_the_tables(tmp_path: Path) -> None:
    config = write_run_inputs(tmp_path)
    parsed = parse_config(config.read_text(), str(config))
    with open_dataset(parsed, tmp_path, RunDir(tmp_path / "run")) as dataset:
        data = dataset_map(dataset)
        rows = dataset.training_rows(torch.device("cpu"))
    assert sum(group["rows"] for group in data["groups"]) == len(rows) == data["rows"]
    assert data["columns"]["bank"] == ["age", "balance", "job"]
    for group in data["groups"]:
        members = [
            i
            for i in range(len(rows))
            if [n for n, seen in zip(["bank", "shop"], rows.seen[i], strict=True) if seen]
            == group["parties"]
        ]
        assert len(members) == group["rows"]
        for party, name in enumerate(("bank", "shop")):
            table = dataset.tables[name]
            cells = [
                table.observed[int(rows.handles[i, party])].tolist()
                if rows.handles[i, party] >= 0
                else [False] * 3
                for i in members
            ]
            assert np.allclose(group["observed"][name], np.mean(cells, 0), atol=1e-4)
            full = rows.full[members, party].float().mean()
            assert np.isclose(group["full"][name], full, atol=1e-4)


def test_a_map_without_columns_joins_small_groups() -> None:
    parties = [f"p{i}" for i in range(5)]
    generator = torch.Generator().manual_seed(0)
    handles = torch.where(torch.rand(200, 5, generator=generator) < 0.6, 0, -1)
    rows = align_rows(handles, [torch.full((1,), 2)] * 5)
    data = rows_map(rows, parties)
    assert len(data["groups"]) == MAX_GROUPS and data["groups"][-1]["parties"] == ["other"]
    assert sum(group["rows"] for group in data["groups"]) == 200
    json.dumps(data)


@given(rate=st.floats(0, 1), seed=st.integers(0, 1000), n=st.integers(1, 6), partial=st.booleans())
def test_hiding_keeps_one_feature_of_each_observed_row(
    rate: float, seed: int, n: int, partial: bool
) -> None:
    layout = Layout(
        (Feature("a", "numeric", 1), Feature("b", "category", 3), Feature("c", "hashed", 4, 8))
    )
    rng = np.random.default_rng(seed)
    observed = rng.random((n, 3)) < (0.5 if partial else 1.0)
    values = np.ones((n, 4), np.float32) * observed[:, [0, 1, 1, 1]]
    codes = np.full((n, 1), 5) * observed[:, 2:]
    encoded = Encoded([str(i) for i in range(n)], values, codes, observed, [""] * n)
    draws = rng.random((n, 3))
    hidden = hide(encoded, layout, draws, rate)
    assert not (hidden.observed & ~observed).any()
    assert (hidden.observed.any(1) == observed.any(1)).all()
    assert (hidden.values == values * hidden.observed[:, [0, 1, 1, 1]]).all()
    assert (hidden.codes == codes * hidden.observed[:, 2:]).all()
    kept = observed & (draws >= rate)
    several = kept.any(1)
    assert (hidden.observed[several] == kept[several]).all()


def test_missing_rates_start_at_the_evaluation_on_the_same_rows(finished_runs: Path) -> None:
    folder = RunDir(finished_runs / "tables")
    data, evaluation = folder.read_json("missing_rates.json"), folder.read_json("evaluation.json")
    assert data["rates"] == list(RATES)
    (shop,) = [each for each in evaluation["same_rows"] if each["party"] == "shop"]
    # All rows of the shop are rows of the bank.
    assert data["rows"] == shop["rows"]
    for mode, key in (("local", "local/shop"), ("assisted", "assisted/shop")):
        assert np.isclose(data["metrics"][key][0]["nll"], shop["metrics"][mode]["nll"], atol=1e-6)
    together = data["metrics"]["collaborative"][0]["nll"]
    assert np.isclose(together, shop["metrics"]["collaborative"]["nll"], atol=1e-6)


@given(seed=st.integers(0, 1000), n=st.integers(1, 40), classes=st.integers(2, 5))
def test_confusion_and_reliability_against_loops(seed: int, n: int, classes: int) -> None:
    rng = np.random.default_rng(seed)
    proba = rng.dirichlet(np.ones(classes), n)
    y = rng.integers(classes, size=n)
    counts = np.zeros((classes, classes), dtype=int)
    bins: dict[int, list[tuple[float, bool]]] = {}
    for row, label in zip(proba, y, strict=True):
        best = int(row.argmax())
        counts[label, best] += 1
        bins.setdefault(min(int(row.max() * 15), 14), []).append((row.max(), best == label))
    assert (confusion(proba, y) == counts).all()
    table = [
        (len(each), np.mean([a for a, _ in each]), np.mean([b for _, b in each]))
        for _, each in sorted(bins.items())
    ]
    assert np.allclose(reliability(proba, y), table)
    assert np.isclose(ece(proba, y), sum(abs(a - b) * rows / n for rows, a, b in table))


def test_evaluation_has_confusion_and_reliability_of_every_line(finished_runs: Path) -> None:
    evaluation = RunDir(finished_runs / "tables").read_json("evaluation.json")
    assert evaluation["classes"] == ["no", "yes"]
    for line in evaluation["lines"]:
        assert np.sum(line["confusion"]) == line["rows"]
        assert sum(rows for rows, _, _ in line["reliability"]) == line["rows"]
        assert np.isclose(np.trace(line["confusion"]) / line["rows"], line["metrics"]["accuracy"])


def test_examples_of_tables_show_hidden_values_and_no_ids(finished_runs: Path) -> None:
    text = (finished_runs / "tables" / "completion.json").read_text()
    assert not any(f"c{i:03d}" in text for i in range(300))
    data = json.loads(text)
    assert set(data["tables"]) == {"bank", "shop"} and not data["images"]
    for each in data["tables"].values():
        cells = [cell for row in each["examples"] for cell in row]
        assert {cell["state"] for cell in cells} <= {"observed", "hidden", "missing"}
        assert all(("truth" in cell) == (cell["state"] == "hidden") for cell in cells)
    quality = data["tables"]["bank"]["quality"]
    assert quality["age"]["kind"] == "number" and quality["job"]["kind"] == "category"
    assert all(low <= high for _, _, low, high in quality["age"]["pairs"])


def test_examples_of_images_keep_observed_pixels(finished_runs: Path) -> None:
    data = RunDir(finished_runs / "images").read_json("completion.json")
    left = data["images"]["left"]
    assert left["shape"] == [1, 8, 4] and len(left["examples"]) == 6

    def decode(text: str) -> np.ndarray:
        return np.frombuffer(base64.b64decode(text), np.uint8)

    for each in left["examples"]:
        original, masked, completed = (each[name] for name in ("original", "masked", "completed"))
        seen = decode(masked["observed"]).astype(bool)
        assert seen.sum() < decode(original["observed"]).sum()
        given, filled = decode(original["pixels"]), decode(completed["pixels"])
        assert (given[seen] == filled[seen]).all()


def test_curves_keep_the_last_epoch_and_are_bounded() -> None:
    def record(epoch: int, loss: float) -> dict[str, object]:
        modes = {"collaborative": loss} if epoch > 10 else {}
        return {"kind": "epoch", "epoch": epoch, "decision": loss, "score": -loss, "modes": modes}

    records = [record(i + 1, 1.0) for i in range(1000)]
    repeated = [record(999, 2.0), record(1000, 3.0), {"kind": "search", "score": 1.0}]
    data = curves([*records, *repeated])
    assert len(data["epoch"]) <= MAX_POINTS and data["epoch"][-1] == 1000
    assert data["terms"]["decision"][-1] == data["modes"]["collaborative"][-1] == 3.0
    assert data["modes"]["collaborative"][0] is None
    assert curves([])["epoch"] == []
