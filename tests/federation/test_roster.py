"""Training over transports: the fused run's weights, faults on the way, checkpoints."""

from pathlib import Path

import pytest
import torch
from torch import Tensor

from tests.conftest import CLASSES, SEED, digits
from tests.federation.split_helpers import Kept
from tests.wire.lines import TRANSPORTS, lines
from xvfl.config import LossConfig, NetConfig, TrainConfig
from xvfl.federation.ask import Peer
from xvfl.federation.build import build_method, build_parties
from xvfl.federation.endpoint import Endpoint, Settings, Workplace
from xvfl.federation.fused import Fused
from xvfl.federation.party import PartyNet, PartySide
from xvfl.federation.predict import score
from xvfl.federation.roster import Roster, Terms
from xvfl.federation.train import Trainer
from xvfl.methods import Method
from xvfl.wire.messages import Hello

NET, LOSS, ROWS = NetConfig(embedding=8, hidden=16), LossConfig(), 240
NAMES = ("p0", "p1")


def config(optimiser: str, epochs: int) -> TrainConfig:
    rate = 2e-3 if optimiser == "adamw" else 2e-2
    return TrainConfig(
        epochs=epochs, batch=24, optimiser=optimiser, learning_rate=rate, patience=0, seed=SEED  # type: ignore[arg-type]
    )


def nets() -> tuple[dict[str, PartyNet], Method]:
    """Build the same nets every time."""
    tables, _ = digits(ROWS)
    layouts = {name: table.layout for name, table in zip(NAMES, tables.values(), strict=True)}
    with torch.random.fork_rng(devices=[]):
        parties = build_parties(layouts, NET, LOSS, [SEED])
        return parties, build_method(layouts, CLASSES, NET, LOSS, [SEED])


def sides() -> tuple[list[PartySide], Method]:
    tables, _ = digits(ROWS)
    parties, method = nets()
    weight = LOSS.our_weights[1]
    made = [
        PartySide(name, parties[name], table, [SEED], weight)
        for name, table in zip(NAMES, tables.values(), strict=True)
    ]
    return made, method


def weights(made: list[PartySide], method: Method) -> list[Tensor]:
    holders = [*(side.net for side in made), method.heads]
    return [value.detach().clone() for net in holders for value in net.parameters()]


def fused(train: TrainConfig) -> list[Tensor]:
    made, method = sides()
    federation = Fused(made)
    _, rows = digits(ROWS)
    trainer = Trainer(federation, method, rows, train)
    with torch.random.fork_rng(devices=[]):
        for _ in trainer.run(lambda: score(method, federation, rows)):
            pass
    trainer.load_best()
    return weights(made, method)


def endpoint(side: PartySide, store: Kept, life: str = "first") -> Endpoint:
    count = len(side.table)
    holdings = torch.full((count,), 2, dtype=torch.uint8)
    hello = Hello(0, f"{side.name}-{life}", False, count, "columns", "session")
    return Endpoint(hello, lambda settings: Workplace(side, holdings), store)


def terms(train: TrainConfig, minimum: int = 2) -> Terms:
    import json
    from dataclasses import asdict

    said = Settings(SEED, NET, train, LOSS.our_weights[1])
    return Terms("run", json.dumps(asdict(said)), 8, minimum, patience_s=20)


@pytest.mark.parametrize(("optimiser", "kind"), [("adamw", "memory"), ("page", "memory"), ("sgd", "grpc"), ("adamw", "grpc")])
def test_two_hundred_steps_end_in_the_fused_weights(
    optimiser: str, kind: str, authority: Path
) -> None:
    train = config(optimiser, epochs=20)
    expected = fused(train)
    made, method = sides()
    ends = [endpoint(side, Kept()) for side in made]
    _, rows = digits(ROWS)
    with lines(kind, NAMES, ends, authority) as found, torch.random.fork_rng(devices=[]):
        roster = Roster([Peer(*each) for each in zip(NAMES, found, strict=True)], terms(train))
        trainer = Trainer(roster, method, rows, train)
        for _ in trainer.run(lambda: score(method, roster, rows)):
            pass
        trainer.load_best()
        roster.flush()
        assert trainer.progress.step == 200
    worst = max(float((a - b).abs().max()) for a, b in zip(weights(made, method), expected, strict=True))
    assert worst <= 1e-5


assert set(TRANSPORTS) == {"memory", "grpc"}
