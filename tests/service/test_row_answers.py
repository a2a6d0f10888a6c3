"""Answers of collaborative predictions by the federation, computed by hand."""

from types import SimpleNamespace
from typing import Any

import torch

from xvfl.federation.predict_in_time import PartyAnswer, TimelyBatch
from xvfl.primitives.task import Classification
from xvfl.service.prediction.row_answers import answer_rows, to_json

MODEL: Any = SimpleNamespace(
    names=("bank", "shop", "clinic"),
    prior=(0.75, 0.25),
    task=Classification(("no", "yes")),
    temperature=lambda mode, party: 1.0,
    completes=lambda mode, party: True,
    loss=SimpleNamespace(self_completion_weight=0.0),
    method=SimpleNamespace(modes=("local", "assisted", "collaborative")),
)
SEEN = torch.tensor([[1, 1], [1, 0], [0, 0], [0, 0]]).bool()
FULL = torch.tensor([[1, 0], [1, 0], [0, 0], [0, 0]]).bool()
OBSERVED = torch.tensor([[1.0, 0.25], [1.0, 0.0], [0.0, 0.0], [0.0, 0.0]])
REFUSED = torch.tensor([[0, 0], [0, 0], [0, 0], [0, 1]]).bool()


def answers(
    in_time: bool = True, party: str = "", refused: torch.Tensor = REFUSED
) -> list[dict[str, Any]]:
    """Answer four rows of bank, with 2 features, and shop, with 4; the clinic is unreachable."""
    status = torch.where(refused, 3, SEEN.byte() + FULL.byte())
    handles, E = torch.arange(4), torch.zeros(4, 1, 8)
    parties = {
        i: PartyAnswer(handles, status[:, i], E, OBSERVED[:, i], "used up") for i in range(2)
    }
    batch = TimelyBatch(parties, (4, 1, 8), 1)
    away = {"clinic": "not connected"}
    out, absent = torch.tensor([[0.0, 1.0]] * 4), [{}, {}, away, {}]
    values, found = answer_rows(MODEL, out, batch, [2, 4], in_time, absent, party)
    return [to_json(MODEL.task, *each, away) for each in zip(values, found, strict=True)]


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


def test_rows_of_an_assisted_party_are_reported_as_in_one_process() -> None:
    found = answers(party="shop")
    # Bank has the first two rows in full; nobody observes the last two.
    assert [each["mode"] for each in found] == ["assisted"] * 2 + ["prior", "refused"]
    assert [each["parties"] for each in found] == [["bank", "shop"], ["bank"], [], []]
    # 3 and 4 of the shop's 4 features.
    assert [each["completed"] for each in found] == [0.75, 1.0, 0.0, 0.0]
    found = answers(party="bank")
    assert [each["parties"] for each in found] == [["bank"], ["bank"], [], []]
    assert [each["mode"] for each in found[:2]] == ["assisted"] * 2


def test_a_row_that_the_assisted_party_refuses_gets_no_prediction_of_its_peers() -> None:
    refused = torch.tensor([[0, 1]] * 4).bool()
    for each in answers(party="shop", refused=refused):
        assert each["mode"] == "refused" and each["prediction"] is None
        assert each["parties"] == [] and each["refused"] == ["shop"]
        assert each["notes"][0] == "shop: used up" and "probabilities" not in each
