"""What the lab's methods share with all others: they learn, mix no runs, and split alike."""

import math
from dataclasses import replace
from pathlib import Path

import pytest
import torch

from tests import small_tables
from tests.federation.split_helpers import (
    begin_run,
    make_endpoints,
    make_federation,
    settings_json,
)
from tests.federation.test_split import (
    TOLERANCE,
    assert_equal,
    fused_gradients,
    make_small_method,
    split_gradients,
)
from tests.methods.test_every_method import small_federation
from tests.problems import CLASSES, accuracies, split_digits, train_small
from tests.wire.transport_helpers import open_transports
from xvfl.config import LAB_METHODS, LossConfig
from xvfl.errors import ModeError
from xvfl.methods import METHODS
from xvfl.training.predict import logits
from xvfl_lab import methods


def test_importing_registers_the_methods() -> None:
    assert set(methods.METHODS) <= set(METHODS)
    assert set(LAB_METHODS) < set(methods.METHODS)


@pytest.mark.parametrize("method", LAB_METHODS)
def test_64_rows_are_learned_by_heart(method: str) -> None:
    tables, rows = split_digits(64)
    found = accuracies(*train_small(LossConfig(method=method), tables, rows, epochs=300), rows)
    assert {name.split("/")[0] for name in found} == {"local", "collaborative"}
    assert set(found.values()) == {1.0}, found


@pytest.mark.parametrize("method", LAB_METHODS)
def test_shuffled_labels_leave_test_rows_at_chance(method: str) -> None:
    tables, rows = split_digits(500, shuffled=True)
    first, rest = torch.arange(500).split([128, 372])
    trained = train_small(LossConfig(method=method), tables, rows.take(first), epochs=10)
    spread = math.sqrt(2 / 9 / len(rest))
    found = accuracies(*trained, rows.take(rest))
    assert all(abs(share - 1 / CLASSES) < 4 * spread for share in found.values()), found


@pytest.mark.parametrize("method", LAB_METHODS)
def test_they_do_not_assist(method: str) -> None:
    made, federation, rows = small_federation(LossConfig(method=method), 0)
    with pytest.raises(ModeError, match="supported: local, collaborative"):
        logits(made, federation, rows, "assisted", 1)


@pytest.mark.parametrize("method", LAB_METHODS)
def test_stacked_runs_lose_the_mean_of_what_each_loses_alone(method: str) -> None:
    loss = LossConfig(method=method)
    halves = torch.tensor([0, 1, 2, 3, 4, 5, 6, 7]), torch.tensor([8, 8, 10, 11, 9, 9, 8, 15])
    apart = []
    for seed, index in zip((3, 4), halves, strict=True):
        made, federation, rows = small_federation(loss, seed)
        apart.append(made.loss(federation, rows.take(index, rows.step)))
    made, federation, rows = small_federation(loss, 3, 4)
    stacked = replace(rows.take(torch.cat(halves), rows.step), runs=2)
    for name, term in made.loss(federation, stacked).items():
        torch.testing.assert_close(term, (apart[0][name] + apart[1][name]) / 2)


@pytest.mark.parametrize(("method", "k"), [("iavfl", 2), ("iavfl", 4), ("fedcvt", 2)])
def test_gradients_across_the_wire_are_the_fused_ones(method: str, k: int, tmp_path: Path) -> None:
    made = make_federation(k, torch.float64, dropout=0.3, branches=2)
    small = make_small_method(made, method)
    expected = fused_gradients(made, small, 0.0)
    with open_transports("memory", made.names, make_endpoints(made, 0.0), tmp_path) as found:
        split = begin_run(found, made.names, settings_json(), 2)
        assert_equal(split_gradients(made, small, split), expected, TOLERANCE[torch.float64])


def test_an_interrupted_run_goes_on_with_its_memory(tmp_path: Path) -> None:
    config = small_tables.write_run_inputs(
        tmp_path, f'{small_tables.CONFIG}\n[loss]\nmethod = "fedcvt"\n'
    )
    small_tables.train(config, tmp_path / "whole")
    small_tables.train(config, tmp_path / "parts", show=small_tables.interrupt_at(4))
    small_tables.train(config, tmp_path / "parts", resume=True)
    small_tables.assert_same_run(tmp_path / "whole", tmp_path / "parts")
