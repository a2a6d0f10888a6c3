"""A coordinator that chooses the party's net in `Begin`: every step of the attack is refused."""

from collections.abc import Iterator
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from tests.security.hostile_coordinator import (
    HONEST,
    LINEAR,
    LINEARIZING,
    NARROWEST,
    ROWS,
    TRAINED,
    HostileCoordinator,
    attacked_process,
    attacked_service,
    read_columns,
    trained_by,
)
from xvfl.config import PrivacyConfig
from xvfl.errors import WireError
from xvfl.federation.request_ledger import RequestLedger, RequestLimits
from xvfl.federation.run_settings import RunSettings
from xvfl.federation.settings_limits import copy_bytes
from xvfl.primitives.layout import Layout
from xvfl.wire.messages import Embedded, ErrorReply, Flush, Instruction, Message, Ready


@pytest.fixture(scope="module")
def party(tmp_path_factory: pytest.TempPathFactory) -> Iterator[HostileCoordinator]:
    """A party process with default options; no test of this fixture begins a run successfully."""
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


def test_columns_cannot_be_read_without_a_known_row(party: HostileCoordinator) -> None:
    found = read_columns(party, replace(HONEST, net=LINEAR))
    assert max(found) < 0.5, found
    assert "net.hidden_dim: this party allows 64 to 1024, got 1" in party.rejections()[-1]


NETS: list[tuple[dict[str, Any], str]] = [
    *(({"hidden_dim": hidden}, "net.hidden_dim") for hidden in (2, 8, 32, 64, 127)),
    ({"skip_rank": 65}, "net.skip_rank"),
    ({"hidden_dim": 14_000}, "net.hidden_dim"),
    ({"embedding_dim": 4096}, "net.embedding_dim"),
    ({"embedding_dim": 1}, "net.embedding_dim"),
    ({"members": 64}, "net.members"),
    ({"number_embedding_dim": 4096}, "net.number_embedding_dim"),
    ({"n_blocks": 1000}, "net.n_blocks"),
    ({"base_channels": 8192}, "net.base_channels"),
]
TRAINS: list[tuple[dict[str, Any], str]] = [
    ({"learning_rate": 1e-12}, "train.learning_rate"),
    ({"learning_rate": 1e6}, "train.learning_rate"),
    ({"learning_rate": 1e-5}, "train.learning_rate"),
    ({"learning_rate": 0.5}, "train.learning_rate"),
    ({"weight_decay": 1.0}, "train.weight_decay"),
    *(({"optimizer": name}, "train.weight_decay") for name in ("adam", "sgd", "page")),
    ({"learning_rate": float("nan")}, "learning_rate"),
    ({"weight_decay": 500.0}, "train.weight_decay"),
    ({"momentum": 0.9999}, "train.momentum"),
    ({"batch_size": 10**7}, "train.batch_size"),
    ({"image_shift": 0.9}, "train.image_shift"),
    ({"completion_interval": 4}, "train.completion_interval"),
    ({"completion_interval": 10**6}, "train.completion_interval"),
]
OTHERS: list[tuple[dict[str, Any], str]] = [
    ({"reconstruction": 0.0}, "reconstruction"),
    ({"reconstruction": 1e9}, "reconstruction"),
    ({"method": "laser+mask", "reconstruction": 0.0}, "reconstruction"),
    ({"unmasked_copies": 0.99}, "unmasked_copies"),
    ({"method": "linear"}, "method"),
    ({"warm": "../../other"}, "warm"),
    ({"a_new_setting": 1}, "a_new_setting"),
]


@pytest.mark.parametrize(
    ("part", "change", "reason"),
    [
        *(("net", *each) for each in NETS),
        *(("train", *each) for each in TRAINS),
        *(("", *each) for each in OTHERS),
    ],
)
def test_settings_out_of_bounds_are_refused(
    party: HostileCoordinator, part: str, change: dict[str, Any], reason: str
) -> None:
    settings = asdict(HONEST) | {"run": "b"}
    (settings[part] if part else settings).update(change)
    refused(party, party.begin_with(settings, "b"), reason)
    assert party.peak_bytes() < 800e6


@pytest.mark.parametrize(
    ("training", "reason"),
    [
        (torch.zeros(0), "matched rows or more"),
        (torch.arange(20), "matched rows or more"),
        (torch.zeros(ROWS), "each training row once"),
    ],
)
def test_few_or_repeated_training_rows_are_refused(
    party: HostileCoordinator, training: torch.Tensor, reason: str
) -> None:
    refused(party, party.begin(HONEST, "b", training), reason)
    assert not (party.folder / "shop" / "encoder.json").exists()


def test_a_run_has_one_net_and_an_alignment_has_one_threshold(fresh: HostileCoordinator) -> None:
    """The coordinator asks for other nets under the same name, and scans missing cells."""
    first = replace(HONEST, full_threshold=0.95)
    assert isinstance(fresh.begin(first), Ready)
    wider = replace(first, net=replace(HONEST.net, hidden_dim=192))
    refused(fresh, fresh.begin(wider), "settings or training rows of run 'a' changed")
    refused(fresh, fresh.begin(first, training=torch.arange(500)), "training rows of run 'a'")
    renamed = asdict(first) | {"run": "other"}
    refused(fresh, fresh.begin_with(renamed, "a"), "expected settings of 'a'")
    for number, threshold in enumerate((0.75, 0.85, 1.0)):
        reply = fresh.begin(replace(first, full_threshold=threshold), f"run-{number}")
        refused(fresh, reply, "full_threshold: this party uses 0.95")
    # Without a threshold, the party keeps the one of the alignment.
    levels = fresh.begin(first)
    other = fresh.begin(HONEST, "b", torch.arange(300, 550))
    assert isinstance(levels, Ready) and isinstance(other, Ready)
    assert torch.equal(levels.row_status, other.row_status)


def test_the_narrowest_accepted_net_reveals_less(tmp_path: Path) -> None:
    """An accepted net still reveals something; the secret is one with which it reveals much."""
    attacker = attacked_service(tmp_path, secret=bytes([3] * 32))
    found = read_columns(attacker, NARROWEST)
    assert attacker.rejections() == [] and np.mean(found) < 0.7, found


@pytest.mark.parametrize(
    ("attack", "reason"), list(zip(LINEARIZING, ("features hardly", "layer"), strict=True))
)
def test_a_net_that_becomes_linear_is_not_used(
    fresh: HostileCoordinator, attack: str, reason: str
) -> None:
    """Training that leaves the linear skip alone would make every column readable."""
    settings, rows, updates = LINEARIZING[attack]
    assert isinstance(fresh.begin(settings), Ready)
    rate = settings.train.learning_rate
    for step in range(updates):
        reply = fresh.embed(step, rate if step else None, rows, TRAINED)
        if isinstance(reply, ErrorReply):
            break
    refused(fresh, reply, reason)
    refused(fresh, fresh.embed(step + 1, training=False, views=("plain",)), "expected Begin first")


def test_a_refused_net_is_not_saved(fresh: HostileCoordinator) -> None:
    """The last update arrives with the request for a checkpoint."""
    assert isinstance(fresh.begin(LINEARIZING["high learning rate"][0]), Ready)
    fresh.embed(0, rows=torch.arange(64), views=TRAINED)
    for step in range(1, 20):
        reply = flush(fresh, "step", 0.05, save=step)
        if isinstance(reply, ErrorReply):
            break
        fresh.embed(step, rows=torch.arange(64), views=TRAINED)
    refused(fresh, reply, "features hardly interact")
    saved = sorted(path.name for path in (fresh.folder / "shop").glob("*.safetensors"))
    assert saved[-1].endswith(f"{step - 1:09}.safetensors")


def test_a_net_that_is_never_updated_answers_few_batches(fresh: HostileCoordinator) -> None:
    assert isinstance(fresh.begin(HONEST), Ready)
    replies = [fresh.embed(step, rows=torch.arange(64)) for step in range(40)]
    assert sum(isinstance(each, Embedded) for each in replies) == 21
    refused(fresh, replies[-1], "expected an update of the last training batch first")
    # Beginning again would return to the first weights, also after a restart of the party.
    refused(fresh, fresh.begin(HONEST), "expected an update")
    restarted = attacked_service(fresh.folder)
    refused(restarted, restarted.begin(HONEST), "expected an update")
    refused(restarted, restarted.begin(replace(HONEST, reconstruction=0.5)), "run 'a' changed")


@pytest.mark.parametrize("trick", ["rate", "low rate", "no objective", "load_best", "begin"])
def test_updates_that_change_nothing_do_not_count(fresh: HostileCoordinator, trick: str) -> None:
    slow = trick == "low rate"
    assert isinstance(fresh.begin(trained_by(learning_rate=1e-4) if slow else HONEST), Ready)
    rows, refusals = torch.arange(64), 0
    views = ("plain", "masked") if trick == "no objective" else TRAINED
    fresh.embed(0, rows=rows, views=views)
    if trick == "load_best":
        flush(fresh, "save_best")
    for step in range(1, 60):
        rate = {"rate": 1e-9, "low rate": 1.1e-6}.get(trick, 1e-3)
        if trick == "load_best":
            flush(fresh, "step", 1e-3)
            reply = fresh.embed(step, rate=0.0, kind="load_best", rows=rows, views=views)
        else:
            reply = fresh.embed(step, rate=rate, rows=rows, views=views)
        if trick == "begin":
            reply = fresh.begin(HONEST)
        refusals += isinstance(reply, ErrorReply)
        if refusals:
            break
    assert refusals and 20 <= step <= 30
    assert "expected an update of the last training batch" in fresh.rejections()[-1]


def flush(attacker: HostileCoordinator, kind: str, rate: float = 0.0, save: int = -1) -> Message:
    attacker.update += 1
    instructions = (Instruction(attacker.update, kind, rate),)
    return attacker.send(lambda number: Flush(number, (), instructions, save))


def test_a_higher_rate_and_views_of_other_methods_are_refused(fresh: HostileCoordinator) -> None:
    assert isinstance(fresh.begin(HONEST), Ready)
    fresh.embed(0, views=TRAINED)
    refused(fresh, fresh.embed(1, rate=0.1, views=TRAINED), "expected a learning rate up to 0.002")
    laser = replace(HONEST, method="laser", reconstruction=0.0)
    assert isinstance(fresh.begin(laser, "b"), Ready)
    refused(fresh, fresh.embed(0, views=("plain", "masked")), "'plain' alone in training")


def test_a_request_for_many_absent_rows_is_refused(fresh: HostileCoordinator) -> None:
    """Handles of −1 count in no budget, but take memory."""
    assert isinstance(fresh.begin(HONEST), Ready)
    absent = torch.full((2_000_000,), -1)
    for training in (True, False):
        reply = fresh.embed(0, rows=absent, views=("plain",), training=training)
        refused(fresh, reply, "this party allows 8192 handles, got 2000000")


def test_copies_of_images_are_estimated() -> None:
    each = copy_bytes(Layout(image=(3, 32, 32)), replace(HONEST.net, base_channels=32))
    ledger = RequestLedger(RequestLimits(), 10)
    ledger.check_size(2048, 2048 * each)
    ledger.check_size(1024, 5 * 1024 * each)
    with pytest.raises(WireError, match="this party allows 2147483648"):
        ledger.check_size(8192, 8 * 8192 * each)


def test_a_refused_run_does_not_fix_the_encoder(tmp_path: Path) -> None:
    attacker = attacked_service(tmp_path, limits="[limits]\nmax_parameters = 1000\n")
    refused(attacker, attacker.begin(HONEST), "nets of 1000 parameters")
    assert not (tmp_path / "shop" / "encoder.json").exists()
    accepting = attacked_service(tmp_path / "accepting")
    assert isinstance(accepting.begin(HONEST), Ready)
    assert (tmp_path / "accepting" / "shop" / "encoder.json").exists()


@pytest.mark.parametrize(
    "settings",
    [
        HONEST,
        replace(HONEST, method="xvfl", reconstruction=0.0),
        replace(
            HONEST,
            method="laser",
            reconstruction=0.0,
            net=replace(HONEST.net, embedding_dim=16, skip_rank=0),
            privacy=PrivacyConfig("no_gradients", epsilon=8.0),
        ),
        replace(HONEST, net=replace(HONEST.net, members=4), payload="int8"),
    ],
)
def test_an_honest_run_is_accepted_and_not_disturbed(
    fresh: HostileCoordinator, settings: RunSettings
) -> None:
    assert isinstance(fresh.begin(settings), Ready)
    views = TRAINED if settings.method == "xvfl+" else ("plain",)
    rows, others = torch.arange(64), torch.arange(64, 128)
    for step in range(60):
        batch = others if step % 2 else rows
        rate = 2e-3 * (1 - step / 60) if step else None
        assert isinstance(fresh.embed(step, rate, batch, views), Embedded)
        # Another party failed: the same batch is requested again.
        assert isinstance(fresh.embed(step, None, batch, views), Embedded)
    assert fresh.rejections() == []
