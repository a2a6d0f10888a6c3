"""The bench compares like with like, and runs."""

import json
import os
import subprocess
import sys
from collections.abc import Iterator, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path

import pytest
import torch
from torch import Tensor, nn

from lab_tests.command_line import error_of, xvfl_lab
from xvfl import maths
from xvfl.config import NetConfig
from xvfl.errors import ConfigError
from xvfl.federation.fused import FusedFederation
from xvfl.training.loop import Trainer
from xvfl_lab.bench import bare, floor, gpu, grid, reference
from xvfl_lab.bench.outcome import Claim, Outcome
from xvfl_lab.bench.sections import FULL, QUICK
from xvfl_lab.bench.shapes import PUBLIC, SyntheticRows, config, numbers, steps, tables
from xvfl_lab.bench.timing import Times, take_turns
from xvfl_lab.experiments.dispatch import in_this_process
from xvfl_lab.experiments.execute import execute, load_from
from xvfl_lab.experiments.run_store import RunStore
from xvfl_lab.experiments.runner import Result
from xvfl_lab.experiments.stacked_runs import RunConfig
from xvfl_lab.methods import METHODS
from xvfl_lab.task import save_task


@pytest.fixture
def double() -> Iterator[None]:
    torch.set_default_dtype(torch.float64)
    yield
    torch.set_default_dtype(torch.float32)


def gradients(weights: list[nn.Parameter]) -> list[Tensor]:
    return [torch.zeros_like(each) if each.grad is None else each.grad for each in weights]


def same_gradients(ours: list[nn.Module], theirs: list[nn.Module]) -> None:
    pairs = zip(ours, theirs, strict=True)
    for our, their in pairs:
        found, expected = gradients(list(our.parameters())), gradients(list(their.parameters()))
        assert any(bool(each.any()) for each in expected)
        torch.testing.assert_close(found, expected, rtol=1e-10, atol=1e-12)


def nets_of(trainer: Trainer) -> list[nn.Module]:
    assert isinstance(trainer.federation, FusedFederation)
    return [
        each
        for worker in trainer.federation.workers
        for each in (worker.net.bottom, worker.net.completer)
    ]


@pytest.mark.usefixtures("double")
@pytest.mark.parametrize("k", [2, 3, 4])
def test_the_reference_computes_our_loss_and_its_gradients(k: int) -> None:
    drawn = SyntheticRows.of(tables(parties=k, d=8, rows=60, classes=3))
    trainer = drawn.trainer("xvfl")
    nets, rows = drawn.reference(trainer)
    at = torch.randperm(60)[:40]
    terms = trainer.method.loss(trainer.federation, trainer.rows.take(at))  # type: ignore[arg-type]
    ours, theirs = sum(terms.values()), reference.loss(nets, rows.take(at), 0.1, 0.1)
    torch.testing.assert_close(ours, theirs, rtol=1e-12, atol=1e-12)
    ours.backward()
    theirs.backward()
    each = [net for pair in zip(nets.f, nets.xcom, strict=True) for net in pair]
    same_gradients([*nets_of(trainer), trainer.method.heads], [*each, nets.h])


@pytest.mark.usefixtures("double")
@pytest.mark.parametrize("method", ["vanilla", "laser"])
def test_bare_loops_compute_our_losses(method: str) -> None:
    """With two parties LASER has one subset of each size: nothing is left to chance."""
    drawn = SyntheticRows.of(replace(PUBLIC["S3"], rows=50))
    trainer = drawn.trainer(method)  # type: ignore[arg-type]
    ours = sum(trainer.method.loss(trainer.federation, trainer.rows).values())  # type: ignore[arg-type]
    heads = trainer.method.heads
    each = list(heads) if isinstance(heads, nn.ModuleList) else [heads]
    bottoms = nets_of(trainer)[::2]
    x = [torch.cat([table.values, table.observed.double()], 1) for table in drawn.tables]
    E = [net(rows) for net, rows in zip(bottoms, x, strict=True)]
    torch.testing.assert_close(ours, bare.LOSSES[method](each, E, drawn.rows.y))


@pytest.mark.parametrize("k", [2, 5])
def test_the_floor_has_the_pairs_that_the_loss_looks_at(k: int) -> None:
    drawn = SyntheticRows.of(replace(tables(parties=k, d=8, rows=70), batch=70))
    full = drawn.rows.full
    passed: dict[str, int] = {}
    for call in drawn.passes():
        passed[call.net] = passed.get(call.net, 0) + call.rows
    assert passed["head"] == int(maths.used_mask(full).sum())
    completed = full.all(1, keepdim=True) | ~full
    for i in range(k):
        assert passed[f"completer {i}"] == int(completed[:, i].sum())
        assert passed[f"bottom {i}"] == int(full[:, i].sum() + completed[:, i].sum())


def test_the_floor_multiplies_and_moves_every_weight() -> None:
    step = floor.train([floor.NetPass("net", (3, 4, 2), 5, back=False)])
    next(step)
    frame = step.gi_frame  # type: ignore[attr-defined]
    weights, before = frame.f_locals["weights"], {}
    before = {key: each.clone() for key, each in weights.items()}
    next(step)
    assert all(not torch.equal(before[key], each) for key, each in weights.items())


def test_public_shapes_are_the_published_ones() -> None:
    widths = {name: (shape.parties, shape.inputs, *shape.bottom) for name, shape in PUBLIC.items()}
    assert widths == {
        "S1": (4, 5, 10, 10, 10),
        "S2": (4, 140, 128, 128, 128),
        "S3": (2, 392, 32, 10),
    }
    assert {name: shape.head for name, shape in PUBLIC.items()} == {
        "S1": (2,),
        "S2": (12,),
        "S3": (10,),
    }


def test_contenders_take_turns() -> None:
    order: list[str] = []

    def contender(name: str) -> Iterator[None]:
        while True:
            order.append(name)
            yield

    times = take_turns({"a": contender("a"), "b": contender("b")}, rounds=2, steps=2, warm=1)
    assert "".join(order) == "ab" + "aabb" * 2
    assert {name: len(each) for name, each in times.rounds.items()} == {"a": 2, "b": 2}


def test_ratios_are_medians_over_the_rounds() -> None:
    times = Times({"a": [1.0, 2.0, 90.0], "b": [2.0, 4.0, 30.0]})
    assert times.median("a") == 2.0 and times.ratio("a", "b") == 0.5
    assert Claim("", 1.5, 1.5, True).met and not Claim("", 1.5, 1.4, False).met


def test_many_runs_at_once_step_on_any_device() -> None:
    runs = gpu.configs("xvfl", NetConfig(8, 8), config(20))
    assert len(runs) == 35 and len({(run.seed, run.rate) for run in runs}) == 35
    step = gpu.training(gpu.random_table(60), runs[:3], torch.device("cpu"), captured=False)
    next(step)
    small = NetConfig(8, 8, n_blocks=1, base_channels=8)
    image = gpu.configs("xvfl", small, config(10))[:1]
    next(gpu.training(gpu.random_images(20), image, torch.device("cpu"), captured=False))


def test_a_trainer_goes_on_for_ever() -> None:
    drawn = SyntheticRows.of(replace(tables(d=4, rows=40), features=numbers(2), batch=20))
    step = steps(drawn.trainer("vanilla"))
    for _ in range(50):
        next(step)


def test_the_command_prints_a_table_and_writes_json(tmp_path: Path) -> None:
    path = tmp_path / "made" / "bench.json"
    said = xvfl_lab("bench", "paper", "parties", "--quick", "--out", path)
    assert said.code == 0 and "reference" in said.out and "wrote" in said.out
    found = json.loads(path.read_text())
    contenders = {line["contender"] for line in found["lines"] if line["section"] == "paper"}
    assert contenders == {"xvfl", "xvfl+", "reference", "floor"}
    assert all(line["value"] > 0 for line in found["lines"])
    assert found["claims"] == [] and found["torch"]


def test_the_module_runs_without_the_command_line(tmp_path: Path) -> None:
    path = tmp_path / "bench.json"
    command = [sys.executable, "-m", "xvfl_lab.bench", "paper", "--quick", "--out", str(path)]
    said = subprocess.run(command, capture_output=True, text=True, check=True)
    assert "floor" in said.stdout and json.loads(path.read_text())["lines"]


def test_a_section_that_is_not_there_is_refused() -> None:
    assert "unknown section 'papers': did you mean 'paper'" in error_of("bench", "papers")
    if not torch.cuda.is_available():
        assert "expected a GPU, found none" in error_of("bench", "gpu")
        assert "expected a GPU, found none" in error_of("bench", "grid")


def test_outcomes_add_up() -> None:
    one = Outcome((), (Claim("a", 1.0, 2.0, True),))
    assert len((one + one).claims) == 2


def test_big_tables_are_measured_when_asked_for(monkeypatch: pytest.MonkeyPatch) -> None:
    from xvfl_lab import big_tables
    from xvfl_lab.bench import run

    asked = []

    def measured(rows: int, folder: Path, steps: int) -> dict[str, float]:
        asked.append((rows, steps))
        return {"steps_mb": 700.0 + rows / 1e6}

    rates = {"streamed_step_ms": 50.0, "of_memory_rate": 0.9}
    rates |= {"predicted_rows_s": 2e4, "of_model_rate": 0.6}
    monkeypatch.setattr(big_tables, "measure", measured)
    monkeypatch.setattr(big_tables, "rates", lambda folder, steps: rates)
    found = run.BY_NAME["big"](FULL)
    assert asked == [(1_000_000, 500), (4_000_000, 500)]
    assert [claim.met for claim in found.claims] == [True, True]
    assert found.claims[0].value == pytest.approx(704 / 701)
    assert "big" in run.SECTIONS and "big" not in {**run.sections.SECTIONS, **run.ON_GPU}


@pytest.mark.slow
@pytest.mark.skipif("XVFL_DATA" not in os.environ, reason="XVFL_DATA does not name the data")
@pytest.mark.filterwarnings("ignore:.*probably missing values:xvfl.DataWarning")
def test_a_fit_is_compared_with_the_old_defaults() -> None:
    from xvfl_lab.bench import run

    found = run.BY_NAME["fit"](QUICK)
    assert [(line.case, line.contender) for line in found.lines if line.unit == "CPU s"] == [
        ("bank, 2000 rows", "0.1.0"),
        ("bank, 2000 rows", "now"),
    ]
    assert all(line.value > 0 for line in found.lines if line.unit)
    assert len(found.claims) == 3


@pytest.mark.slow
def test_the_grid_is_made_anew_and_compared(tmp_path: Path) -> None:
    """Three tiny tables, a seed and a rate; and what was published is what is made again."""
    for name in grid.TABLES:
        save_task(gpu.random_table(80), tmp_path / f"{name}-2.npz")
    plan = replace(QUICK, tasks=tmp_path, results=tmp_path / "runs")
    with pytest.raises(ConfigError, match="bank.jsonl: expected the 8 runs to compare with, got 0"):
        grid.grid(plan)
    for name in grid.TABLES:
        store = RunStore(tmp_path / "runs" / f"{name}.jsonl")
        load = partial(load_from, tmp_path)
        execute(grid.jobs_of(name, plan), store, load, "cpu", in_this_process, lambda *_: None)
    found = grid.grid(plan)
    assert [line.contender for line in found.lines][:3] == ["8 runs"] * 3
    assert [claim.value for claim in found.claims[1:]] == [0, 0, 0]
    assert all(line.value > 0 for line in found.lines if "within" in line.contender)


def test_five_seeds_of_every_method_and_rate_are_the_grid() -> None:
    configs = [job.config for job in grid.jobs_of("bank", FULL)]
    assert {each.seed for each in configs} == set(range(5))
    assert len(configs) == 5 * 3 * len(METHODS)


def test_accuracies_are_apart_in_errors_of_the_published_mean() -> None:
    def made(values: Sequence[float]) -> list[Result]:
        return [
            Result(RunConfig("m", 0.5, seed), {"local": {"accuracy": value}}, 1.0, 0.5)
            for seed, value in enumerate(values)
        ]

    published = made([0.7, 0.8, 0.9])
    assert grid.apart(published, published) == [0.0]
    same = grid.apart(made([0.8, 0.8]), made([0.8003, 0.8003]))
    assert same == [pytest.approx(3.0)], "no deviation: one in ten thousand rows is an error"
    assert grid.apart(made([0.8, 0.9, 1.0]), published) == [pytest.approx(0.1 / (0.1 / 3**0.5))]
