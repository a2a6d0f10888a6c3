"""Under `no_gradients`, what parties receive in training does not depend on the labels.

The exceptions are stated in docs/differential-privacy.md: when weights are saved as the best, and
when training stops, both by the validation score; and the stratified split of the rows.
"""

from collections.abc import Iterator
from dataclasses import replace

import pytest
import torch

from tests.federation.elastic_helpers import (
    LOSS,
    NAMES,
    NET,
    make_endpoint,
    make_workers,
    run_terms,
    train_config,
)
from tests.federation.split_helpers import InMemoryCheckpoints
from tests.federation.test_no_gradients import recorded_requests
from tests.options import resolved
from tests.problems import CLASSES, SEED
from xvfl.config import LossConfig, PrivacyConfig
from xvfl.federation.build import build_method, build_parties
from xvfl.federation.elastic import ElasticFederation
from xvfl.federation.party_worker import PartyWorker
from xvfl.federation.predict import score
from xvfl.federation.privacy_accounting import PrivacyStatement
from xvfl.federation.remote_party import RemoteParty
from xvfl.methods.base import Method
from xvfl.training.loop import Trainer
from xvfl.wire import codec
from xvfl.wire.messages import Embed, Flush, Message

NO_GRADIENTS = PrivacyConfig("no_gradients")

pytestmark = pytest.mark.usefixtures("limited_threads")


def private_workers(privacy: PrivacyStatement) -> tuple[list[PartyWorker], Method]:
    tables = {worker.name: worker.table for worker in make_workers()[0]}
    layouts = {name: table.layout for name, table in tables.items()}
    net = replace(NET, skip_rank=None)
    options = resolved(net, LossConfig(method="laser+mask"), privacy=NO_GRADIENTS)
    net, loss = options.net, options.loss
    with torch.random.fork_rng(devices=[]):
        nets = build_parties(layouts, net, loss, [SEED], privacy=NO_GRADIENTS)
        method = build_method(2, CLASSES, False, net, loss, [SEED], privacy=NO_GRADIENTS)
    workers = [PartyWorker(n, nets[n], tables[n], [SEED], 0.0, privacy) for n in tables]
    return workers, method


def requests_of_a_run(
    label_shift: int, sends_gradients: bool, privacy: PrivacyStatement | None
) -> list[bytes]:
    """Train for three epochs; return the requests, without the updates of the best weights."""
    workers, method, rows = make_workers()
    if privacy is not None:
        workers, method = private_workers(privacy)
    rows = replace(rows, y=(rows.y + label_shift * (torch.arange(len(rows)) % 2)) % CLASSES)
    requests: list[Message] = []
    ends = [make_endpoint(worker, InMemoryCheckpoints()) for worker in workers]
    lines = [recorded_requests(end, requests) for end in ends]  # type: ignore[arg-type]
    peers = [RemoteParty(name, line) for name, line in zip(NAMES, lines, strict=True)]
    train = train_config("adamw", epochs=3)
    terms = replace(run_terms(train), sends_gradients=sends_gradients)
    federation = ElasticFederation(peers, terms)
    federation.wait_for(2)
    trainer = Trainer(federation, method, rows, train)
    for _ in trainer.run(lambda: score(method, federation, rows)):
        pass
    return [codec.encode(each) for each in without_best(requests)]


def without_best(requests: list[Message]) -> Iterator[Message]:
    for each in requests:
        if isinstance(each, Embed | Flush):
            kept = [i for i in each.instructions if i.kind not in ("save_best", "load_best")]
            each = replace(each, instructions=tuple(replace(i, number=0) for i in kept))
        yield each


PRIVATE = PrivacyStatement(4.0, 1e-5, 2, 1.0, 2.0)


@pytest.mark.parametrize("privacy", [None, PRIVATE])
def test_requests_are_the_same_for_other_labels(privacy: PrivacyStatement | None) -> None:
    before = requests_of_a_run(0, False, privacy)
    assert before == requests_of_a_run(1, False, privacy)
    assert len(before) > 60


@pytest.mark.slow
def test_with_gradients_they_differ() -> None:
    assert LOSS.method == "xvfl+"
    assert requests_of_a_run(0, True, None) != requests_of_a_run(1, True, None)
