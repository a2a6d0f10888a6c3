"""A party that asks its peers for more than its own gaps need, over TLS.

The party `bank` is this process, with a client that sends what it likes. The coordinator and the
peers are processes of their own.
"""

import json
import threading
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
import torch

from tests.service.predicting_federation import Predicting, held_by, write_party
from xvfl.federation.prediction_ledger import PredictionLimits
from xvfl.model.model import Model
from xvfl.model.run_dir import RunDir
from xvfl.service.config import load_party_config
from xvfl.service.party import connect_party
from xvfl.service.party_inputs import PartyInputs
from xvfl.service.prediction.party_prediction import PartyPredictor
from xvfl.service.uploads.party_encoder import load_parts
from xvfl.wire.client import PartyClient
from xvfl.wire.messages import Assist, Assistance, ErrorReply, Message

pytestmark = pytest.mark.slow
MAX_PER_ROW = 4
SECONDS = 30.0


@dataclass
class Bank:
    """A party with the peers that it asks."""

    federation: Predicting
    predictor: PartyPredictor
    client: PartyClient
    table: pd.DataFrame
    events: list[dict[str, Any]] = field(default_factory=list)

    @property
    def folder(self) -> Path:
        return self.federation.folder

    def ask(self, handles: list[int], caller: str = "caller") -> Message:
        """Ask for help with rows."""
        rows = torch.tensor(handles, dtype=torch.int32)
        message = Assist(time.time_ns() // 1_000_000, caller, SECONDS, rows)
        return self.client.call(message, 2 * SECONDS)

    def handles(self, gap: bool) -> list[int]:
        """Return the handles of the rows with or without a gap that a peer holds."""
        threshold = load_parts(RunDir(self.folder / "bank"), 1).full_threshold
        features = self.table.drop(columns="customer")
        incomplete = (features.notna().mean(axis=1) < threshold).tolist()
        peers = set(held_by(self.folder, "shop", "clinic"))
        all_handles = self.predictor.handles().tolist()
        rows = zip(self.table["customer"], all_handles, incomplete, strict=True)
        return [h for each, h, has_gap in rows if h >= 0 and has_gap == gap and each in peers]


@pytest.fixture(scope="module")
def bank(trained: Path) -> Iterator[Bank]:
    folder = trained
    with Predicting(folder).start("shop", "clinic") as federation:
        write_party(folder, "bank", federation.listen)
        config = load_party_config(folder / "bank.toml")
        state, events = RunDir(config.state_dir), list[dict[str, Any]]()
        inputs = PartyInputs.load("bank", config, state, str(folder / "bank-new.csv"))
        limits = PredictionLimits(max_per_row=MAX_PER_ROW)
        predictor = PartyPredictor(inputs, limits, events.append)
        client = connect_party(config, predictor.endpoint, events.append, 60.0)
        thread = threading.Thread(target=client.run, daemon=True)
        thread.start()
        federation.event("main", "party_available", party="bank")
        table = pd.read_csv(folder / "bank-new.csv")
        yield Bank(federation, predictor, client, table, events)
        client.stop()
        thread.join(60)


def test_rows_with_a_gap_are_assisted(bank: Bank) -> None:
    reply = bank.ask(bank.handles(gap=True)[:20])
    assert all(peers(reply))


@pytest.mark.parametrize("state", ["never released", "revoked", "of another run"])
def test_a_party_without_a_released_head_is_not_assisted(bank: Bank, state: str) -> None:
    handles, index = bank.handles(gap=True)[:5], bank.folder / "main" / "releases.json"
    saved = index.read_text()
    records = json.loads(saved)
    if state == "never released":
        del records["bank"]
    elif state == "revoked":
        records["bank"] |= {"revoked": True, "delivered": True}
    else:
        records["bank"]["run"] = "other"
    index.write_text(json.dumps(records))
    try:
        reply = bank.ask(handles)
    finally:
        index.write_text(saved)
    assert isinstance(reply, ErrorReply), "embeddings of peers for a party without a head"
    assert "release" in reply.text
    assert isinstance(bank.ask(handles), Assistance)


def test_rows_without_a_gap_are_not_assisted(bank: Bank) -> None:
    with_gap, full = bank.handles(gap=True)[20:25], bank.handles(gap=False)[:30]
    reply = bank.ask([*full, *with_gap])
    assert not any(peers(reply)[:30]) and all(peers(reply)[30:])
    # The party can compute the prediction of a row without a gap with its released head.
    assert isinstance(reply, Assistance)
    rows = [bank.predictor.handles().tolist().index(each) for each in full]
    table = bank.table.set_index("customer").iloc[rows]
    model = Model.load(RunDir(bank.folder / "bank" / "bundle"))
    own = model.predict({"bank": table}, "assisted", "bank").values
    np.testing.assert_allclose(reply.values[:30].numpy(), own, atol=1e-5)


def test_a_request_is_bounded(bank: Bank) -> None:
    every = [each for each in bank.predictor.handles().tolist() if each >= 0]
    assert len(every) > 390
    for handles in (every, [-1], [every[0], every[0]]):
        reply = bank.ask(handles)
        assert isinstance(reply, ErrorReply), f"answered for {len(handles)} rows"
        assert "expected up to 200 rows of the party, each at most once" in reply.text


def test_invented_callers_have_one_budget(bank: Bank) -> None:
    handles, before = bank.handles(gap=True)[25:30], requests(bank, "shop")
    for number in range(3):
        reply = bank.ask(handles, f"invented {number}")
        assert any(peers(reply))
    callers = {each["caller"] for each in requests(bank, "shop")[len(before) :]}
    assert callers == {"party:bank"}


def test_the_other_rows_of_a_batch_are_answered(bank: Bank) -> None:
    alone = next(each for each in held_by(bank.folder, "bank") if each in first_ten(bank.folder))
    others = [each for each in held_by(bank.folder, "shop") if each != alone][:89]
    batch = [alone, *others]
    for _ in range(MAX_PER_ROW):
        (answer,) = bank.federation.predict([alone]).predictions
        assert answer["parties"] == ["bank"]
    first, *rest = bank.federation.predict(batch).predictions
    assert first["refused"] == ["bank"] and first["mode"] == "refused"
    assert first["prediction"] is None and "probabilities" not in first
    assert "max_per_row (4) is used up until " in first["notes"][0]
    assert all(each["prediction"] in ("yes", "no") and each["parties"] for each in rest)
    only = bank.federation.predict([alone])
    assert only.status == 429 and 0 < int(only.headers["Retry-After"]) <= 86_400


def peers(reply: Message) -> list[set[str]]:
    """Return the peers that contributed to each row."""
    assert isinstance(reply, Assistance), reply
    return [set(each.parties) - {"bank"} for each in reply.rows]


def requests(bank: Bank, party: str) -> list[dict[str, Any]]:
    """Read what a party has counted."""
    files = sorted((bank.folder / party / "prediction").glob("requests-*.jsonl"))
    return [json.loads(line) for file in files for line in file.read_text().splitlines()]


def first_ten(folder: Path) -> set[str]:
    """Return the rows that bank alone may hold."""
    return set(pd.read_csv(folder / "new-ids.csv")["customer"][:10])
