"""Attacks of a coordinator that breaks the protocol: single-row extraction, hijacked training.

Hijacking: D. Pasquini, G. Ateniese, M. Bernaschi, Unleashing the tiger: inference attacks on split
learning, CCS 2021; here with the features of a few known rows instead of a similar public table.
Shapes: m rows, M members, d embedding width of a member, p encoded columns.
"""

import copy
import json
from collections.abc import Callable
from dataclasses import asdict, dataclass

import torch
from torch import Tensor

from xvfl.audit.feature_attacks import decoder_attack, jacobian
from xvfl.audit.scoring import FeatureScore, score_features
from xvfl.audit.simulation import RUN, Protection, Scenario, SimulatedParty
from xvfl.federation.member_rows import split_members
from xvfl.nets.party_net import PartyNet
from xvfl.primitives.random import named_generator
from xvfl.wire.messages import (
    Backward,
    Begin,
    Complete,
    Completed,
    CueGradient,
    Embed,
    Embedded,
    Flush,
    Gradient,
    Instruction,
    Message,
    Ready,
)

CUES_PER_ROW = 4
SOLVER_TOLERANCE = 1e-5
"""Directions below it are lost in the float32 gradients."""
HIJACK_BATCH, HIJACK_RATE = 64, 3e-3
MIN_BATCH = 8


@dataclass(frozen=True)
class ActiveResult:
    """What an active attack reached."""

    score: FeatureScore
    n_requests: int
    n_rejected: int
    rejections: list[str]
    """Reasons in the party's log, each once."""
    refused: bool
    """The party refused the requests that the attack needs."""


class DishonestCoordinator:
    """A coordinator that sends a party any request it likes."""

    def __init__(self, scenario: Scenario, protection: Protection, party: str) -> None:
        self.scenario, self.protection = scenario, protection
        self.party: SimulatedParty = scenario.make_party(party, protection)
        self.n_requests = 0
        self._last_update = 0
        net = scenario.options(protection).net
        settings = json.dumps(asdict(scenario.settings(protection)))
        handles = scenario.training_handles()[party]
        reply = self.send(lambda number: Begin(number, RUN, 0, settings, handles))
        assert isinstance(reply, Ready), reply
        self.members, self.width = net.members, net.members * net.embedding_dim

    def send(self, request: Callable[[int], Message]) -> Message:
        """Send a request with the next request id."""
        self.n_requests += 1
        return self.party.transport.request(request(self.n_requests)).result()

    def embed(
        self,
        handles: Tensor,
        gradients: tuple[Gradient, ...] = (),
        rate: float | None = None,
        training: bool = True,
    ) -> Tensor | None:
        """Request embeddings, with gradients of the last ones; None if refused. (m, M·d)"""
        instructions: tuple[Instruction, ...] = ()
        if rate is not None:
            self._last_update += 1
            instructions = (Instruction(self._last_update, "step", rate),)
        views = ("plain",)
        reply = self.send(
            lambda number: Embed(number, gradients, instructions, 0, training, views, handles.int())
        )
        return reply.values[:, 0] if isinstance(reply, Embedded) else None

    def result(self, score: FeatureScore, refused: bool) -> ActiveResult:
        """Summarize an attack."""
        reasons = self.party.rejections
        distinct = list(dict.fromkeys(reasons))
        return ActiveResult(score, self.n_requests, len(reasons), distinct, refused)


def extract_rows(
    scenario: Scenario, protection: Protection, party: str, n_rows: int
) -> ActiveResult:
    """Request rows one at a time, and rows that were never matched, with gradients of the cue.

    In version 0.1 the reply holds the gradient of the row's reconstruction error. With the first
    weights, which the shared seed gives, this is a linear system for the features.
    """
    coordinator = DishonestCoordinator(scenario, protection, party)
    table = scenario.table(party)
    handles = torch.arange(min(n_rows, len(table)))
    rng = named_generator("cpu", "extraction")
    cues = torch.rand(CUES_PER_ROW, coordinator.width, generator=rng) * 2 - 1
    net = scenario.first_net(party, protection, scenario.train.random_state)
    solve = _row_solver(net, cues, coordinator.members)
    coordinator.embed(torch.tensor([len(table)]))  # A row that was never matched.
    refused = True
    predicted = torch.full((len(handles), table.values.flatten(1).shape[1]), 0.5)
    for place, handle in enumerate(handles):
        replies = [_cue_gradient(coordinator, handle, cue) for cue in cues]
        received = [each for each in replies if each is not None]
        if len(received) == len(cues):
            refused = False
            predicted[place] = solve(torch.stack(received))[: predicted.shape[1]]
    return coordinator.result(score_features(predicted, table.take(handles)), refused)


def _cue_gradient(coordinator: DishonestCoordinator, handle: Tensor, cue: Tensor) -> Tensor | None:
    """Request the gradient of a cue for a single row, else in the smallest batch, else None."""
    n_rows = len(coordinator.scenario.table(coordinator.party.name))
    others = (int(handle) + torch.arange(MIN_BATCH)) % n_rows
    for handles in (handle.view(1), others):
        # The update of the previous batch, which leaves the weights.
        if coordinator.embed(handles, rate=0.0) is None:
            continue
        tensor_id = coordinator.n_requests
        every = cue.expand(len(handles), -1).contiguous()
        replace_observed = torch.ones(len(handles), dtype=torch.bool)
        completed = coordinator.send(
            lambda number, tensor_id=tensor_id, every=every, replaced=replace_observed: Complete(  # type: ignore[misc]
                number, tensor_id, every, replaced
            )
        )
        if not isinstance(completed, Completed):
            continue
        zero = Gradient(coordinator.n_requests, torch.zeros_like(completed.values))
        reply = coordinator.send(lambda number, zero=zero: Backward(number, zero))  # type: ignore[misc]
        if isinstance(reply, CueGradient):
            return reply.values[0]
    return None


def _row_solver(net: PartyNet, cues: Tensor, members: int) -> Callable[[Tensor], Tensor]:
    """Return a function from the gradients of all cues (cues, M·d) to the features of a row (p,).

    With the completion X̃ of a cue, its Jacobian J, and the weight w of each column in the party's
    loss (0 where missing), a gradient is Jᵀ(w·X̃ − w·x): linear in w and in w·x. Of a completer that
    sees features, the attacker assumes that it saw none. Each member gives a system of its own; the
    result is the mean of the solutions.
    """
    net = copy.deepcopy(net).requires_grad_(False).double()
    layout = net.layout
    shape = layout.image or (layout.encoded,)

    def complete(cue: Tensor) -> Tensor:
        nothing = torch.zeros(len(cue), layout.raw, dtype=torch.bool)
        inputs = net.completer_inputs(cue.new_zeros(len(cue), *shape), nothing, cue)
        x: Tensor = net.completer(*inputs).flatten(1)
        return x

    cues = split_members(cues.double(), members)
    J = jacobian(complete, cues).mT
    blocks = torch.cat([J * complete(cues).unsqueeze(1), -J], 2)
    systems = blocks.view(members, -1, blocks.shape[-1])
    inverse = torch.linalg.pinv(systems, rtol=SOLVER_TOLERANCE)

    def solve(gradients: Tensor) -> Tensor:
        by_member = split_members(gradients.double(), members).view(members, -1, 1)
        weight, weighted = (inverse @ by_member).squeeze(2).chunk(2, 1)
        x: Tensor = (weighted / weight.clamp(min=1e-12)).mean(0).float()
        return x

    return solve


def hijack(
    scenario: Scenario, protection: Protection, party: str, n_known: int, steps: int
) -> ActiveResult:
    """Send gradients that train the party's bottom to encode its features; then decode all rows.

    The gradients move the embeddings of known rows towards a fixed linear code of their features.
    """
    coordinator = DishonestCoordinator(scenario, protection, party)
    table = scenario.table(party)
    order = torch.randperm(len(table), generator=torch.Generator().manual_seed(0))
    known = order[:n_known]
    rng = named_generator("cpu", "hijack")
    values = table.values.flatten(1)
    code = torch.randn(values.shape[1], coordinator.width, generator=rng)
    code /= values.shape[1] ** 0.5
    pending: tuple[Gradient, ...] = ()
    refused = False
    for _ in range(steps):
        picked = known[torch.randperm(len(known), generator=rng)[:HIJACK_BATCH]]
        E = coordinator.embed(picked, pending, HIJACK_RATE if pending else None)
        if E is None:
            refused = True
            break
        wrong = E - (values[picked] - 0.5) @ code
        pending = (Gradient(coordinator.n_requests, (wrong / len(picked)).unsqueeze(1)),)
    coordinator.send(lambda number: Flush(number, (), (), -1))
    blocks = [coordinator.embed(block, training=False) for block in _blocks(len(table))]
    E = torch.cat([each for each in blocks if each is not None])
    score, _ = decoder_attack(E, table, n_known)
    return coordinator.result(score, refused)


def _blocks(n_rows: int) -> list[Tensor]:
    return list(torch.split(torch.arange(n_rows), 1024))
