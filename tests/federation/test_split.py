"""The central test: a cut federation computes the fused one's gradients, whatever carries it."""

from dataclasses import replace
from pathlib import Path

import pytest
import torch
from torch import Tensor

from tests.federation.split_helpers import (
    HOLDINGS,
    LAYOUTS,
    begin_run,
    make_endpoints,
    make_federation,
    make_small_method,
    settings_json,
)
from tests.problems import METHODS, SEED, Problem, make_problem
from tests.wire.transport_helpers import open_transports
from xvfl.federation.fused import FusedFederation
from xvfl.federation.party_worker import PartyWorker
from xvfl.federation.split import SplitFederation
from xvfl.methods import Method, Mode
from xvfl.methods.pooling import decision_weights
from xvfl.training.calibration import calibrate
from xvfl.training.optimizer import WeightUpdate
from xvfl.training.predict import logits, predictable_rows

TOLERANCE = {torch.float32: 1e-6, torch.float64: 1e-12}


def gradients(made: Problem, method: Method) -> dict[str, Tensor]:
    """Take every net's gradients, and clear them."""
    nets = {**dict(zip(made.names, made.parties, strict=True)), "heads": method.heads}
    found = {}
    for holder, net in nets.items():
        for name, parameter in net.named_parameters():
            grad = parameter.grad
            found[f"{holder}.{name}"] = torch.zeros_like(parameter) if grad is None else grad
            parameter.grad = None
    return found


def fused_gradients(made: Problem, method: Method, reconstruction: float) -> dict[str, Tensor]:
    each = zip(made.names, made.parties, made.tables, strict=True)
    fused = FusedFederation([PartyWorker(*of_party, [SEED], reconstruction) for of_party in each])
    fused.train(True)
    terms = method.loss(fused, made.rows)
    fused.backward(torch.stack(list(terms.values())).sum())
    return gradients(made, method)


def split_gradients(made: Problem, method: Method, split: SplitFederation) -> dict[str, Tensor]:
    split.train(True)
    terms = method.loss(split, made.rows)
    split.backward(torch.stack(list(terms.values())).sum())
    split.update(
        WeightUpdate("save_best")
    )  # Sends the last gradients out, and leaves them for us to see.
    split.flush()
    return gradients(made, method)


def assert_equal(ours: dict[str, Tensor], theirs: dict[str, Tensor], tolerance: float) -> None:
    scale = max(float(value.abs().max()) for value in theirs.values())
    assert scale > 1e-3
    for name, value in theirs.items():
        worst = float((ours[name] - value).abs().max()) / scale
        assert worst <= tolerance, f"{name}: {worst}"


CASES = [(name, k) for name in METHODS for k in (2, 3, 4)]
DTYPES = {"memory": torch.float64, "grpc": torch.float32}
"""Type of the numbers over each transport; `test_elastic` sends double precision over gRPC."""


@pytest.mark.parametrize(("kind", "dtype"), DTYPES.items())
@pytest.mark.parametrize(("name", "k"), CASES)
def test_gradients_are_the_fused_ones(
    name: str, k: int, dtype: torch.dtype, kind: str, authority: Path
) -> None:
    made = make_federation(k, dtype, dropout=0.3)
    weight = 0.7 if name == "xvfl+" else 0.0
    method = make_small_method(made, name)
    expected = fused_gradients(made, method, weight)
    ends = make_endpoints(made, weight)
    with open_transports(kind, made.names, ends, authority) as found:
        split = begin_run(found, made.names, settings_json())
        assert_equal(split_gradients(made, method, split), expected, TOLERANCE[dtype])


def test_gradients_of_a_step_without_completion_are_the_fused_ones(authority: Path) -> None:
    made = make_federation(3, torch.float64)
    made = replace(made, rows=replace(made.rows, completing=False))
    method = make_small_method(made, "xvfl+")
    expected = fused_gradients(made, method, 0.7)
    with open_transports("memory", made.names, make_endpoints(made, 0.7), authority) as found:
        split = begin_run(found, made.names, settings_json())
        assert_equal(split_gradients(made, method, split), expected, TOLERANCE[torch.float64])


@pytest.mark.parametrize("mode", ["local", "assisted", "collaborative"])
def test_D9_pooled_decisions_are_the_fused_ones(mode: Mode, authority: Path) -> None:
    made = make_federation(3, torch.float64)
    method = make_small_method(made, "xvfl+")
    decision_weights(method).update(
        {
            "local/p0": [0.25, 0.75],
            "local/p1": [1.0, 0.0],
            "assisted/p1": [0.5, 0.5],
            "collaborative": [0.25, 0.75, 0.5],
        }
    )
    rows = made.rows.take(predictable_rows(made.rows, mode, 1).nonzero().flatten())
    expected = logits(method, made.federation(), rows, mode, 1)
    with open_transports("memory", made.names, make_endpoints(made), authority) as found:
        split = begin_run(found, made.names, settings_json())
        torch.testing.assert_close(logits(method, split, rows, mode, 1), expected)


def test_D9_calibration_of_a_federation_is_that_of_one_process(authority: Path) -> None:
    made = make_problem(LAYOUTS[:3], [each[:3] for each in HOLDINGS * 12])
    found = []
    method = make_small_method(made, "xvfl+")
    with open_transports("memory", made.names, make_endpoints(made), authority) as lines:
        for federation in (made.federation(), begin_run(lines, made.names, settings_json())):
            temperatures = calibrate(method, federation, made.rows)
            found.append((temperatures, dict(decision_weights(method))))
    assert found[0][1] == found[1][1] and found[0][1]
    assert found[0][0] == pytest.approx(found[1][0])
