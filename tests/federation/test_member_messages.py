"""Members in a federation: one row in a message, with the embeddings of all members."""

import json
from collections.abc import Sequence
from dataclasses import asdict, replace
from typing import Any

import pytest
import torch
from torch import Tensor

from tests.federation.split_helpers import InMemoryCheckpoints
from tests.federation.training_helpers import make_endpoint
from tests.methods.test_every_method import EVERY, named
from tests.methods.test_members import NET, federation_of
from tests.options import resolved
from tests.problems import CLASSES, SEED, split_digits
from xvfl.config import LossConfig, PrivacyConfig, TrainConfig
from xvfl.federation.begin_run import RunTerms, begin_run
from xvfl.federation.endpoint import Endpoint
from xvfl.federation.fused import FusedFederation
from xvfl.federation.member_rows import join_members, split_members
from xvfl.federation.party_worker import PartyWorker
from xvfl.federation.remote_party import RemoteParty
from xvfl.federation.run_settings import RunSettings
from xvfl.federation.split import SplitFederation
from xvfl.methods import METHODS, Method, protect_labels
from xvfl.methods.build import build_method, build_parties
from xvfl.methods.members import member_seeds
from xvfl.primitives.rows import Rows
from xvfl.primitives.task import Classification
from xvfl.training.loop import Trainer
from xvfl.training.optimizer import WeightUpdate
from xvfl.training.predict import logits, predictable_rows
from xvfl.wire import codec
from xvfl.wire.in_process import InProcessTransport
from xvfl.wire.messages import Begin, Complete, Embed, Embedded

M = 3
CONFIG = replace(NET, members=M)


def test_rows_of_members_are_placed_side_by_side() -> None:
    rows, views, width = 4, 2, 5
    by_member = torch.randn(M * rows, views, width)
    message = join_members(by_member, M)
    assert message.shape == (rows, views, M * width)
    for member in range(M):
        for row in range(rows):
            for view in range(views):
                for column in range(width):
                    value = by_member[member * rows + row, view, column]
                    assert message[row, view, member * width + column] == value
    torch.testing.assert_close(split_members(message, M), by_member, rtol=0, atol=0)
    assert join_members(by_member[:0], M).shape == (0, views, M * width)
    assert split_members(message[:0], M).shape == (0, views, width)
    assert join_members(by_member, 1) is by_member and split_members(message, 1) is message


class RecordingTransport(InProcessTransport):
    """Records the requests and their replies."""

    def __init__(self, end: Endpoint) -> None:
        super().__init__(end.hello, self.handle)
        self.end, self.messages = end, list[tuple[Any, Any]]()

    def handle(self, frame: bytes) -> bytes:
        reply = self.end.handle(frame)
        self.messages.append((codec.decode(frame), codec.decode(reply)))
        return reply


def settings_json(loss: LossConfig, train: TrainConfig) -> str:
    weight = resolved(loss=loss).loss.reconstruction_weight
    settings = RunSettings(loss.method, CONFIG, train, weight, run="run")
    return json.dumps(asdict(settings))


def split_of(
    workers: Sequence[PartyWorker], loss: LossConfig
) -> tuple[SplitFederation, list[RecordingTransport]]:
    """Put workers behind endpoints."""
    ends = [make_endpoint(worker, InMemoryCheckpoints()) for worker in workers]
    lines = [RecordingTransport(end) for end in ends]
    width = NET.embedding_dim * METHODS[loss.method].branches
    parties = [RemoteParty(w.name, line) for w, line in zip(workers, lines, strict=True)]
    split = SplitFederation(parties, width, members=M)
    # Steps too small to change what is compared.
    text = settings_json(loss, TrainConfig(optimizer="sgd", learning_rate=1e-15))
    for line in lines:
        line.request(Begin(1, "run", 0, text, torch.zeros(0, dtype=torch.int32))).result()
    return split, lines


def gradients(
    method: Method,
    federation: FusedFederation | SplitFederation,
    fused: FusedFederation,
    rows: Rows,
) -> list[Tensor]:
    """Compute and clear the gradients of all weights."""
    federation.train(True)
    federation.backward(torch.stack(list(method.loss(federation, rows).values())).sum())
    if isinstance(federation, SplitFederation):
        federation.update(WeightUpdate("save_best"))  # Sends the last gradients.
        federation.flush()
    found = []
    for net in (*(worker.net for worker in fused.workers), method.heads):
        for weight in net.parameters():
            found.append(torch.zeros_like(weight) if weight.grad is None else weight.grad)
            weight.grad = None
    return found


def test_noisy_labels_give_the_fused_gradients() -> None:
    method, fused, rows = federation_of(LossConfig(), CONFIG, [SEED])
    method = protect_labels(method, PrivacyConfig("noise"), CLASSES, [SEED])
    expected = gradients(method, fused, fused, rows)
    split, _ = split_of(fused.workers, LossConfig())
    for found, value in zip(gradients(method, split, fused, rows), expected, strict=True):
        torch.testing.assert_close(found, value, rtol=1e-9, atol=1e-12)


@pytest.mark.parametrize("loss", EVERY, ids=named)
def test_gradients_are_the_fused_ones(loss: LossConfig) -> None:
    method, fused, rows = federation_of(loss, CONFIG, [SEED])
    expected = gradients(method, fused, fused, rows)
    split, lines = split_of(fused.workers, loss)
    for found, value in zip(gradients(method, split, fused, rows), expected, strict=True):
        torch.testing.assert_close(found, value, rtol=1e-9, atol=1e-12)
    width = M * NET.embedding_dim * METHODS[loss.method].branches
    for i, line in enumerate(lines):
        for request, reply in line.messages:
            if isinstance(request, Embed):
                held = int((rows.handles[:, i] >= 0).sum())
                assert torch.equal(request.handles, rows.handles[:, i].int())
                assert isinstance(reply, Embedded)
                assert reply.values.shape == (held, len(request.views), width)
            if isinstance(request, Complete):
                assert request.cue.shape == reply.values.shape == (len(rows), width)
                assert request.replace_observed.shape == (len(rows),)


@pytest.mark.parametrize("loss", EVERY, ids=named)
def test_predictions_are_the_fused_ones(loss: LossConfig) -> None:
    method, fused, rows = federation_of(loss, CONFIG, [SEED])
    split, _ = split_of(fused.workers, loss)
    for mode in method.modes:
        for party in range(2):
            expected = logits(method, fused, rows, mode, party)
            found = logits(method, split, rows, mode, party)
            rows_of_mode = predictable_rows(rows, mode, party)
            torch.testing.assert_close(found[rows_of_mode], expected[rows_of_mode])


def digits_with_members() -> tuple[list[PartyWorker], Method, Rows]:
    tables, rows = split_digits(240)
    config = resolved(replace(CONFIG, embedding_dim=8, hidden_dim=16)).net
    loss = resolved().loss
    layouts = {
        name: table.layout for name, table in zip(("p0", "p1"), tables.values(), strict=True)
    }
    with torch.random.fork_rng(devices=[]):
        nets = build_parties(layouts, config, loss, [SEED])
        method = build_method(2, Classification(range(CLASSES)), False, config, loss, [SEED])
    weight, seeds = loss.reconstruction_weight, member_seeds([SEED], M)
    each = zip(layouts, tables.values(), strict=True)
    return [PartyWorker(n, nets[n], table, seeds, weight) for n, table in each], method, rows


def train_split(
    train: TrainConfig,
) -> tuple[list[Tensor], SplitFederation, Method, Rows]:
    workers, method, rows = digits_with_members()
    ends = [make_endpoint(worker, InMemoryCheckpoints()) for worker in workers]
    parties = [
        RemoteParty(end.hello.instance_id[:2], InProcessTransport(end.hello, end.handle))
        for end in ends
    ]
    text = settings_json(LossConfig(), train)
    federation = SplitFederation(parties, 8, members=M)
    begin_run(federation, RunTerms("run", text))
    for _ in (trainer := Trainer(federation, method, rows, train)).run(lambda: 0.0):
        pass
    federation.flush()
    assert trainer.progress.step
    return weights(workers, method), federation, method, rows


TRAIN = TrainConfig(
    epochs=6,
    batch_size=40,
    optimizer="adamw",
    learning_rate=5e-3,
    patience=0,
    completion_interval=1,
    random_state=SEED,
)
SGD = replace(TRAIN, optimizer="sgd", epochs=2, learning_rate=1e-2)
"""Adam's first steps depend on the sign of tiny gradients, so rounding would decide."""


def weights(workers: Sequence[PartyWorker], method: Method) -> list[Tensor]:
    nets = [*(worker.net for worker in workers), method.heads]
    return [weight.detach().clone() for net in nets for weight in net.parameters()]


def test_training_is_the_fused_one() -> None:
    workers, method, rows = digits_with_members()
    fused = FusedFederation(workers)
    first = weights(workers, method)
    for _ in Trainer(fused, method, rows, SGD).run(lambda: 0.0):
        pass
    expected = weights(workers, method)
    assert max(float((a - b).abs().max()) for a, b in zip(first, expected, strict=True)) > 0.01
    found, *_ = train_split(SGD)
    for each, value in zip(found, expected, strict=True):
        torch.testing.assert_close(each, value, rtol=1e-4, atol=1e-5)


@pytest.mark.slow
def test_members_learn() -> None:
    _, federation, method, rows = train_split(TRAIN)
    found = logits(method, federation, rows, "collaborative", 0).argmax(1)
    assert float((found == rows.y).double().mean()) > 0.8
