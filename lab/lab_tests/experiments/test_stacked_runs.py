"""Many runs at once: each ends as it would alone."""

from dataclasses import replace

import numpy as np
import pytest
import torch

from xvfl.config import LossConfig, NetConfig, TrainConfig
from xvfl.methods.pooling import decision_weights
from xvfl.primitives.layout import Feature, Layout
from xvfl.training.predict import logits
from xvfl_lab.datasets.digits import digits
from xvfl_lab.experiments.runner import Result, run_many
from xvfl_lab.experiments.stacked_runs import RunConfig, StackedRuns
from xvfl_lab.methods import METHODS
from xvfl_lab.task import Task

LAYOUTS = {
    "a": Layout(
        (Feature("u", "numeric", 1), Feature("v", "numeric", 2), Feature("w", "category", 3))
    ),
    "b": Layout((Feature("x", "numeric", 1), Feature("y", "hashed", 2, buckets=5))),
}


def small_task(rows: int = 160, seed: int = 0) -> Task:
    """Two parties with numbers, categories, hashed codes and natural gaps."""
    rng = np.random.default_rng(seed)
    y = rng.integers(0, 3, rows)
    values = {
        "a": np.concatenate(
            [rng.random((rows, 3)) * 0.5 + y[:, None] / 6, np.eye(3)[rng.integers(0, 3, rows)]], 1
        ),
        "b": rng.random((rows, 1)) * 0.5 + y[:, None] / 6,
    }
    return Task(
        "small",
        LAYOUTS,
        {name: each.astype(np.float32) for name, each in values.items()},
        y.astype(np.int64),
        {"a": rng.random((rows, 3)) > 0.1, "b": np.ones((rows, 2), dtype=bool)},
        {"b": rng.integers(1, 5, (rows, 1))},
        test=np.arange(rows) % 4 == 0,
    )


def configs(method: str, weights: str = "best", **loss: object) -> list[RunConfig]:
    """Three runs that differ in seed, rate and overlap."""
    train = TrainConfig(epochs=3, batch_size=16, learning_rate=1e-2)
    one = RunConfig(
        method,
        0.5,
        0,
        net=NetConfig(embedding_dim=6, hidden_dim=8),
        loss=LossConfig(method=method, **loss),  # type: ignore[arg-type]
        train=train,
        weights=weights,  # type: ignore[arg-type]
    )
    return [
        replace(one, rate=rate, seed=seed, overlap=overlap, train=replace(train, random_state=seed))
        for seed, rate, overlap in ((0, 0.5, 0.4), (1, 0.9, 0.4), (2, 0.3, 0.8))
    ]


def run(task: Task, config: RunConfig) -> Result:
    return run_many(task, [config])[0]


@pytest.mark.parametrize("method", METHODS)
def test_every_method_ends_alone_as_among_others(method: str) -> None:
    task = small_task()
    todo = configs(method)
    together = run_many(task, todo)
    for config, found in zip(todo, together, strict=True):
        alone = run(task, config)
        assert found.config == config and found.metrics.keys() == alone.metrics.keys()
        for way, metrics in alone.metrics.items():
            assert found.metrics[way] == pytest.approx(metrics, abs=2e-4, nan_ok=True), way


@pytest.mark.parametrize("changes", [{}, {"cross_completion": False}])
def test_runs_of_several_lambdas_end_as_each_would_alone(changes: dict[str, object]) -> None:
    task = small_task()
    one, other, third = configs("xvfl+", weights="last", **changes)
    todo = [
        one,
        replace(one, name="without", loss=replace(one.loss, lambda1=0.0, lambda2=0.0)),
        replace(other, loss=replace(other.loss, lambda2=3.0)),
        replace(third, loss=replace(third.loss, lambda1=2.0)),
    ]
    found = run_many(task, todo)
    for config, mine in zip(todo, found, strict=True):
        for way, metrics in run(task, config).metrics.items():
            assert mine.metrics[way] == pytest.approx(metrics, abs=2e-4, nan_ok=True), way
    assert found[0].metrics != found[1].metrics


@pytest.mark.parametrize("changes", [{"aggregation": "concat"}, {"cross_completion": False}])
def test_ablations_too(changes: dict[str, object]) -> None:
    task = small_task()
    todo = configs("xvfl+", weights="last", **changes)
    for config, found in zip(todo, run_many(task, todo), strict=True):
        alone = run(task, config)
        for way, metrics in alone.metrics.items():
            assert found.metrics[way] == pytest.approx(metrics, abs=2e-4, nan_ok=True), way


def test_stacked_weights_are_those_of_the_runs_alone() -> None:
    task, todo = small_task(), configs("xvfl+", weights="last")
    with torch.random.fork_rng(devices=[]):
        many = StackedRuns(task, todo)
        many.train()
        for run_, config in enumerate(todo):
            alone = StackedRuns(task, [config])
            alone.train()
            for stacked, single in zip(
                many.federation.workers, alone.federation.workers, strict=True
            ):
                for name, weight in single.net.state_dict().items():
                    found = stacked.net.state_dict()[name][run_]
                    torch.testing.assert_close(found, weight, rtol=1e-3, atol=1e-5)


def test_runs_of_different_shapes_are_refused() -> None:
    todo = configs("xvfl+")
    with pytest.raises(ValueError, match="seed, scenario and λ only"):
        StackedRuns(
            small_task(), [todo[0], replace(todo[1], net=NetConfig(embedding_dim=4, hidden_dim=8))]
        )


def test_what_is_missing_on_purpose_reaches_nobody() -> None:
    """Values that a scenario hides are not in the party's table at all."""
    stack = StackedRuns(small_task(), configs("xvfl+"))
    for party, worker in enumerate(stack.federation.workers):
        table = worker.table
        columns = torch.tensor(table.layout.feature_of_column[: table.layout.dense])
        assert (table.values[~table.observed[:, columns]] == 0).all()
        mask = torch.cat([run_.masks[party] for run_ in stack.run_rows])
        assert not (table.observed & ~mask).any()


def test_test_rows_never_train_and_validation_is_apart() -> None:
    stack = StackedRuns(small_task(), configs("laser"))
    drawn = stack.run_rows[0]
    parts = {
        name: set(drawn.base[drawn.where(name)].tolist())
        for name in ("train", "validation", "test")
    }  # type: ignore[arg-type]
    assert parts["test"] == set(range(0, 160, 4))
    assert not parts["train"] & parts["validation"] and not parts["train"] & parts["test"]
    assert len(parts["train"]) + len(parts["validation"]) == 120


@pytest.mark.parametrize("members", [1, 2])
def test_each_run_is_calibrated_as_it_would_be_alone(members: int) -> None:
    """Weights of decisions are chosen run by run, by each run's validation rows (D9)."""
    task, chosen = small_task(900), False
    todo = [
        replace(
            each,
            net=replace(each.net, members=members),
            train=replace(each.train, epochs=1),
            weights="calibrated",
        )
        for each in configs("xvfl+")
    ]
    stack = StackedRuns(task, todo)
    stack.train()
    together = decision_weights(stack.method)
    for run, config in enumerate(todo):
        alone = StackedRuns(task, [config])
        alone.train()
        weights = decision_weights(alone.method)
        assert weights.keys() <= together.keys()
        for key, of_runs in together.items():
            default = [0.0, 1.0, 0.0] if key == "collaborative" else [0.0, 1.0]
            assert torch.as_tensor(of_runs)[run].tolist() == weights.get(key, default)
            chosen |= key in weights
        mode, party = ("local", 0) if run else ("collaborative", 0)
        out = logits(stack.method, stack.federation, stack.rows("test"), mode, party).chunk(3)
        expected = logits(alone.method, alone.federation, alone.rows("test"), mode, party)
        torch.testing.assert_close(out[run].softmax(-1), expected.softmax(-1), atol=1e-3, rtol=0)
    assert chosen


def test_calibrated_runs_of_a_stack_are_also_tested_without_completion() -> None:
    train = TrainConfig(epochs=1, batch_size=256)
    net = NetConfig(embedding_dim=8, hidden_dim=16, members=2)
    runs = [RunConfig("xvfl+", 0.5, seed, net=net, train=train) for seed in (0, 1)]
    results = run_many(digits(), [replace(run, weights="calibrated") for run in runs])
    for result in results:
        assert {"local zero-filled", "collaborative zero-filled"} <= result.metrics.keys()


def test_each_run_chooses_its_share_of_unmasked_copies(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("xvfl.primitives.masks.FEW_FEATURES", 0)
    task = replace(small_task(), observed={})
    runs = [replace(each, overlap=0.4) for each in configs("xvfl+")[:2]]
    runs = [replace(each, rate=rate) for each, rate in zip(runs, (0.0, 0.9), strict=True)]
    for interval, expected in ((4, [0.5, 0.5, 0.0, 0.0]), (1, [0.0] * 4)):
        train = replace(runs[0].train, completion_interval=interval)
        some = [replace(each, net=NetConfig(6, 8, members=2), train=train) for each in runs]
        a, b = StackedRuns(task, some).federation.workers
        assert a._unmasked.tolist() == expected
        assert b._unmasked.tolist() == [0.0] * 4  # a hashed category
