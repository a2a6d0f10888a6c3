"""Parties in one process."""

import torch

from tests.federation.split_helpers import HOLDINGS
from tests.problems import NUMBERS, make_problem


def test_the_self_view_alone_equals_the_self_view_beside_others() -> None:
    made = make_problem([NUMBERS] * 2, [each[:2] for each in HOLDINGS])
    federation = made.federation(1.0)
    federation.train(False)
    plain, own = federation.embed(made.rows, ["plain", "self"]).unbind(2)
    torch.testing.assert_close(federation.embed(made.rows, ["self"])[:, :, 0], own)
    assert not torch.equal(own, plain)
