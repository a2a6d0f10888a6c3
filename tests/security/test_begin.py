"""A coordinator that chooses the settings in `Begin`: a party bounds what it computes."""

from collections.abc import Iterator
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import pytest
import torch

from tests.security.hostile_coordinator import (
    HONEST,
    ROWS,
    TRAINED,
    HostileCoordinator,
    attacked_process,
    attacked_service,
)
from xvfl.config import PrivacyConfig
from xvfl.federation.run_settings import RunSettings
from xvfl.wire.messages import Embedded, ErrorReply, Message, Ready


@pytest.fixture(scope="module")
def party(tmp_path_factory: pytest.TempPathFactory) -> Iterator[HostileCoordinator]:
    """An interactive party process; no test of this fixture begins a run successfully."""
    with attacked_process(tmp_path_factory.mktemp("hostile")) as attacker:
        yield attacker


@pytest.fixture
def fresh(tmp_path: Path) -> HostileCoordinator:
    """The same party in this process, for a test of its own."""
    return attacked_service(tmp_path)


def refused(attacker: HostileCoordinator, reply: Message, reason: str) -> None:
    """Require that a request was refused for this reason, and logged."""
    assert isinstance(reply, ErrorReply) and reason in reply.text, reply
    assert attacker.rejections()[-1] == reply.text


CHANGES: list[tuple[str, dict[str, Any], str]] = [
    ("net", {"hidden_dim": 14_000}, "hidden_dim"),
    ("net", {"embedding_dim": 8192}, "embedding_dim"),
    ("net", {"number_embedding_dim": 8192}, "number_embedding_dim"),
    ("net", {"skip_rank": 10**9}, "skip_rank"),
    ("net", {"n_blocks": 10**9}, "n_blocks"),
    ("net", {"base_channels": 8192}, "base_channels"),
    ("train", {"learning_rate": float("nan")}, "learning_rate"),
    ("privacy", {"label_protection": "no_gradients"}, "label_protection"),
    ("privacy", {"label_protection": "no_gradients", "epsilon": 1.0}, "label_protection"),
    ("", {"method": "linear"}, "method"),
    ("", {"a_new_setting": 1}, "a_new_setting"),
]


@pytest.mark.slow
@pytest.mark.parametrize(("part", "change", "reason"), CHANGES)
def test_settings_out_of_bounds_are_refused(
    party: HostileCoordinator, part: str, change: dict[str, Any], reason: str
) -> None:
    settings = asdict(HONEST) | {"run": "b"}
    (settings[part] if part else settings).update(change)
    refused(party, party.begin_with(settings, "b"), reason)
    assert party.peak_bytes() < 800e6
    assert not (party.folder / "shop" / "encoder.json").exists()


def test_a_run_has_one_net(fresh: HostileCoordinator) -> None:
    """The coordinator asks for other nets under the same name, also after a restart."""
    assert isinstance(fresh.begin(HONEST), Ready)
    wider = replace(HONEST, net=replace(HONEST.net, hidden_dim=192))
    for attacker in (fresh, attacked_service(fresh.folder)):
        refused(attacker, attacker.begin(wider), "settings of run 'a' changed")
        renamed = asdict(HONEST) | {"run": "other"}
        refused(attacker, attacker.begin_with(renamed, "a"), "expected settings of 'a'")
        assert isinstance(attacker.begin(HONEST), Ready)


def test_the_next_batch_needs_the_update_of_the_last_one(fresh: HostileCoordinator) -> None:
    assert isinstance(fresh.begin(HONEST), Ready)
    assert isinstance(fresh.embed(0, rows=torch.arange(64)), Embedded)
    refused(fresh, fresh.embed(1, rows=torch.arange(64)), "expected the update of the last")
    assert isinstance(fresh.embed(1, training=False, views=("plain",)), Embedded)
    refused(fresh, fresh.embed(1, 1e-3, kind="save_best"), "expected the update of the last")
    assert isinstance(fresh.embed(1, 1e-3, torch.arange(64)), Embedded)


def test_a_request_for_many_absent_rows_is_refused(fresh: HostileCoordinator) -> None:
    assert isinstance(fresh.begin(HONEST), Ready)
    absent = torch.full((2_000_000,), -1)
    for training in (True, False):
        reply = fresh.embed(0, rows=absent, views=("plain",), training=training)
        refused(fresh, reply, "copies of rows")


@pytest.mark.parametrize(
    "settings",
    [
        HONEST,
        replace(HONEST, method="xvfl", reconstruction=0.0, privacy=PrivacyConfig("noise")),
        replace(HONEST, net=replace(HONEST.net, members=4)),
    ],
)
def test_an_honest_run_is_accepted(fresh: HostileCoordinator, settings: RunSettings) -> None:
    assert isinstance(fresh.begin(settings), Ready)
    views = TRAINED if settings.method == "xvfl+" else ("plain",)
    for step in range(4):
        rate = 2e-3 if step else None
        assert isinstance(fresh.embed(step, rate, torch.arange(ROWS - 64), views), Embedded)
    assert fresh.rejections() == []
