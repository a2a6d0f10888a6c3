"""Answers of collaborative predictions by the federation, computed by hand."""

from types import SimpleNamespace
from typing import Any

import torch

from xvfl.federation.predict_in_time import TimelyBatch
from xvfl.primitives.rows import Rows
from xvfl.primitives.task import Classification
from xvfl.service.prediction.row_answers import collaborative_answers

MODEL: Any = SimpleNamespace(
    names=("bank", "shop", "clinic"),
    prior=(0.75, 0.25),
    task=Classification(("no", "yes")),
    temperature=lambda mode: 1.0,
    completes=True,
    method=SimpleNamespace(modes=("local", "assisted", "collaborative")),
)
SEEN = torch.tensor([[1, 1], [1, 0], [0, 0], [0, 0]]).bool()
FULL = torch.tensor([[1, 0], [1, 0], [0, 0], [0, 0]]).bool()
OBSERVED = torch.tensor([[1.0, 0.25], [1.0, 0.0], [0.0, 0.0], [0.0, 0.0]])
REFUSED = torch.tensor([[0, 0], [0, 0], [0, 0], [0, 1]]).bool()


def answers(in_time: bool = True) -> list[dict[str, Any]]:
    """Answer four rows of bank, with 2 features, and shop, with 4; the clinic is unreachable."""
    rows = Rows(torch.zeros(4, 2), FULL, SEEN, torch.full((4,), -1), torch.ones(4))
    batch = TimelyBatch(
        (0, 1), rows, torch.zeros(4, 2, 1, 8), 1, OBSERVED, REFUSED, ("", "used up")
    )
    holders = [["bank", "shop"], ["bank"], ["clinic"], ["shop"]]
    out, absent = torch.tensor([[0.0, 1.0]] * 4), {"clinic": "not connected"}
    return collaborative_answers(MODEL, out, batch, [2, 4], in_time, absent, holders)


def test_rows_are_reported_as_in_one_process() -> None:
    found = answers()
    assert [each["mode"] for each in found] == ["collaborative"] * 2 + ["prior", "refused"]
    assert [each["parties"] for each in found] == [["bank", "shop"], ["bank"], [], []]
    # 3 and 4 of the shop's features, of 6 in all.
    assert [each["completed"] for each in found] == [0.5, 0.666667, 0.0, 0.0]
    assert [each["prediction"] for each in found] == ["yes", "yes", "no", None]
    assert found[2]["notes"][0] == "unreachable: clinic (not connected)"
    assert found[3]["notes"] == ["shop: used up"] and found[3]["refused"] == ["shop"]


def test_without_time_nothing_is_completed() -> None:
    found = answers(in_time=False)
    assert [each["completed"] for each in found] == [0.0] * 4
    assert "no time for completion" in found[0]["notes"][0]
