"""Label protection `no_gradients`: parties train by their own objectives alone."""

import torch
from torch import Tensor

from tests.federation.split_helpers import make_federation, make_small_method
from tests.federation.test_split import gradients
from tests.problems import SEED, Problem
from xvfl.federation.fused import FusedFederation
from xvfl.federation.party_worker import PartyWorker
from xvfl.methods import Method

RECONSTRUCTION = 0.7


def fused_gradients(
    made: Problem, method: Method, sends_gradients: bool, reconstruction: float
) -> dict[str, Tensor]:
    each = zip(made.names, made.parties, made.tables, strict=True)
    workers = [PartyWorker(*of_party, [SEED], reconstruction) for of_party in each]
    fused = FusedFederation(workers, sends_gradients)
    fused.train(True)
    fused.backward(torch.stack(list(method.loss(fused, made.rows).values())).sum())
    return gradients(made, method)


def test_only_heads_learn_from_labels() -> None:
    made = make_federation(2, torch.float64)
    method = make_small_method(made, "xvfl+")
    before = fused_gradients(made, method, sends_gradients=False, reconstruction=RECONSTRUCTION)
    made.rows.y.copy_((made.rows.y + 1) % 3)
    after = fused_gradients(made, method, sends_gradients=False, reconstruction=RECONSTRUCTION)
    for key, value in before.items():
        changed = not torch.equal(value, after[key])
        assert changed == key.startswith("heads"), key
    assert any(bool(v.any()) for key, v in before.items() if not key.startswith("heads"))
