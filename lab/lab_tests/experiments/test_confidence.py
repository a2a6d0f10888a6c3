"""The three cases of the confidence figure are the method's own predictions; examples by hand."""

from pathlib import Path

import numpy as np
import pytest
import torch

from xvfl.config import LossConfig, NetConfig, TrainConfig
from xvfl.primitives.layout import Layout
from xvfl.training.predict import logits
from xvfl_lab.experiments import confidence as cf
from xvfl_lab.experiments import plot_confidence
from xvfl_lab.experiments.figure_cache import cached_figure
from xvfl_lab.experiments.figure_plot import draw_once
from xvfl_lab.experiments.figures import Job
from xvfl_lab.experiments.stacked_runs import RunConfig, StackedRuns
from xvfl_lab.task import Task

NET = NetConfig(embedding_dim=8, hidden_dim=16, n_blocks=2, base_channels=8)


def pictures(rows: int = 60) -> Task:
    """Draw images of 16 × 16 whose class is the brighter side's."""
    rng = np.random.default_rng(0)
    y = np.arange(rows) % 2
    whole = rng.integers(0, 120, (rows, 3, 16, 16))
    whole[y == 1] += 120
    values = {"left": whole[..., :8].astype(np.uint8), "right": whole[..., 8:].astype(np.uint8)}
    layouts = {name: Layout(image=(3, 16, 8)) for name in values}
    return Task("pictures", layouts, values, y, test=np.arange(rows) >= 40)


def run_config(method: str, epochs: int = 1, seed: int = 0) -> RunConfig:
    loss = LossConfig(method=method)  # type: ignore[arg-type]
    train = TrainConfig(epochs=epochs, batch_size=17, patience=0, random_state=seed)
    return RunConfig(method, 1.0, seed, net=NET, loss=loss, train=train)


@pytest.mark.parametrize("method", ["xvfl", "xvfl+"])
@pytest.mark.parametrize("absent", [0, 1])
def test_the_cases_are_the_methods_own_predictions(method: str, absent: int) -> None:
    stack = StackedRuns(pictures(), [run_config(method)])
    found, y = cf.three_cases(stack, absent)
    test, whole = stack.rows("test"), stack.rows("whole")
    here = test.seen[:, 1 - absent] & ~test.seen[:, absent]
    assert 0 < here.sum() < len(here) and torch.equal(y, test.y)

    def proba(rows, mode, party):
        out = logits(stack.method, stack.federation, rows, mode, party)
        return torch.softmax(out.double(), -1)

    expected = {
        "single": proba(test, "local", 1 - absent),
        "single-xcom": proba(test, "collaborative", 0),
        "both": proba(whole, "collaborative", 0),
    }
    for name, want in expected.items():
        torch.testing.assert_close(
            torch.from_numpy(found[name])[here], want[here], atol=1e-6, rtol=0
        )


def test_the_example_is_the_image_nearest_to_the_papers() -> None:
    true = np.array([[0.9, 0.9, 0.9], [0.7, 0.97, 0.95], [0.728, 0.2, 0.962]])
    p = {name: np.stack([c, 1 - c], 1) for name, c in zip(cf.PAPER, true.T, strict=True)}
    y = torch.zeros(3, dtype=torch.long)
    assert cf.nearest(p, y) == 1
    found = cf.measure(p, y)
    assert found["cases"]["single"]["confidence"] == pytest.approx(2.328 / 3)
    assert found["cases"]["single-xcom"]["accuracy"] == pytest.approx(2 / 3)
    change = found["changes"]["single-xcom - single"]
    gaps = [0.0, 0.27, -0.528]
    assert change["mean"] == pytest.approx(np.mean(gaps)) and change["verdict"] == "level"
    assert change["error"] == pytest.approx(np.std(gaps, ddof=1) / np.sqrt(3))
    assert found["share lifted by XCom"] == pytest.approx(1 / 3)
    assert found["share lifted above both"] == pytest.approx(1 / 3)
    assert found["share like the paper's"] == pytest.approx(1 / 3)
    assert cf.describe(p, y, 1, "cifar10")["confidence"]["single"] == pytest.approx(0.7)


def test_the_picture_shows_nothing_where_nobody_looked() -> None:
    stack = StackedRuns(pictures(), [run_config("xvfl", epochs=2)])
    stack.train()
    shown = cf.picture(stack, 3)
    assert shown["image"].shape == shown["completed"].shape == (3, 16, 16)
    np.testing.assert_array_equal(shown["image"][..., 8:], shown["completed"][..., 8:])
    assert np.abs(shown["image"] - shown["completed"])[..., :8].max() > 0
    assert np.isnan(shown["single/cam"][:, :8]).all()
    for name in cf.PAPER:
        cam = shown[f"{name}/cam"]
        assert np.isnan(cam).any() == (name == "single")
        assert np.nanmin(cam) >= 0 and np.nanmax(cam) in (0, pytest.approx(1))


def test_the_figure_is_made_and_drawn(tmp_path: Path) -> None:
    todo = [
        Job("tinyimagenet5", 2, 0, 0, run_config(method, seed=seed))
        for method in cf.METHODS
        for seed in (0, 1)
    ]
    told: list[str] = []
    cpu = torch.device("cpu")
    record = cached_figure(
        tmp_path,
        cf.NAME,
        {},
        cpu,
        lambda: cf.look_at_all(tmp_path, pictures(), todo, cpu, told.append),
    )
    found = record["figures"]["methods"]["xvfl+"]["absent"]["right"]
    each = [seed["cases"]["both"]["accuracy"] for seed in found["seeds"]]
    assert found["cases"]["both"]["accuracy"]["mean"] == pytest.approx(np.mean(each))
    picture = draw_once(tmp_path, cf.NAME, plot_confidence.plot, tmp_path / "confidence.png")
    assert picture.stat().st_size > 10_000
    assert len(told) == 4


def test_halved_images_are_those_of_half_the_size() -> None:
    small = cf.half_resolution(pictures())
    assert small.layouts["left"] == Layout(image=(3, 8, 4))
    block = pictures().values["left"][0, 1, 2:4, 4:6].astype(float).mean()
    assert abs(small.values["left"][0, 1, 1, 2] - block) <= 0.5
