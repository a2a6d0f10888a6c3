"""Training over transports: the fused run's weights, faults on the way, checkpoints."""

import json
from collections.abc import Iterator
from dataclasses import asdict, replace
from pathlib import Path

import pytest
import torch
from torch import Tensor

from tests.conftest import CLASSES, SEED, digits
from tests.federation.split_helpers import Kept
from tests.wire.lines import lines
from xvfl.config import LossConfig, NetConfig, TrainConfig
from xvfl.data.rows import Rows
from xvfl.federation.ask import Peer
from xvfl.federation.build import build_method, build_parties
from xvfl.federation.endpoint import Endpoint, Settings, Workplace
from xvfl.federation.fused import Fused
from xvfl.federation.kernels import small_kernels
from xvfl.federation.party import PartyNet, PartySide
from xvfl.federation.predict import score
from xvfl.federation.roster import Roster, Terms
from xvfl.federation.train import Trainer
from xvfl.methods import Method
from xvfl.wire.messages import Hello

NET, LOSS, ROWS = NetConfig(embedding=8, hidden=16), LossConfig(), 240
NAMES = ("p0", "p1")


@pytest.fixture(autouse=True)
def quick() -> Iterator[None]:
    """Compute as real runs do."""
    layouts = {name: table.layout for name, table in digits(2)[0].items()}
    with small_kernels(layouts, torch.device("cpu")), torch.random.fork_rng(devices=[]):
        yield


def config(optimiser: str, epochs: int) -> TrainConfig:
    rate = 2e-3 if optimiser == "adamw" else 2e-2
    return TrainConfig(
        epochs=epochs,
        batch=24,
        optimiser=optimiser,
        learning_rate=rate,
        patience=0,
        seed=SEED,  # type: ignore[arg-type]
    )


def nets() -> tuple[dict[str, PartyNet], Method]:
    """Build the same nets every time."""
    tables, _ = digits(ROWS)
    layouts = {name: table.layout for name, table in zip(NAMES, tables.values(), strict=True)}
    with torch.random.fork_rng(devices=[]):
        parties = build_parties(layouts, NET, LOSS, [SEED])
        return parties, build_method(layouts, CLASSES, NET, LOSS, [SEED])


def sides(dtype: torch.dtype = torch.float32) -> tuple[list[PartySide], Method, Rows]:
    """Put the parties to work on the digits, in a precision."""
    tables, rows = digits(ROWS)
    parties, method = nets()
    method.heads.to(dtype)
    weight = LOSS.our_weights[1]
    made = [
        PartySide(
            name,
            parties[name].to(dtype),
            replace(table, values=table.values.to(dtype)),
            [SEED],
            weight,
        )
        for name, table in zip(NAMES, tables.values(), strict=True)
    ]
    return made, method, replace(rows, weight=rows.weight.to(dtype))


def weights(made: list[PartySide], method: Method) -> list[Tensor]:
    holders = [*(side.net for side in made), method.heads]
    return [value.detach().clone() for net in holders for value in net.parameters()]


def fused(train: TrainConfig, dtype: torch.dtype) -> list[Tensor]:
    made, method, rows = sides(dtype)
    federation = Fused(made)
    trainer = Trainer(federation, method, rows, train)
    for _ in trainer.run(lambda: score(method, federation, rows)):
        pass
    trainer.load_best()
    return weights(made, method)


def endpoint(side: PartySide, store: Kept, life: str = "first") -> Endpoint:
    count = len(side.table)
    holdings = torch.full((count,), 2, dtype=torch.uint8)
    hello = Hello(0, f"{side.name}-{life}", False, count, "columns", "session")
    return Endpoint(hello, lambda settings, training: Workplace(side, holdings), store)


def terms(train: TrainConfig, minimum: int = 2) -> Terms:
    said = Settings(SEED, "xvfl+", NET, train, LOSS.our_weights[1])
    return Terms("run", json.dumps(asdict(said)), 8, minimum, patience_s=20)


CASES = [
    ("page", "memory", torch.float64, 1e-12),
    ("adamw", "grpc", torch.float64, 1e-12),
    ("sgd", "grpc", torch.float32, 1e-5),
]
"""AdamW in single precision drifts apart once rounding has flipped a ReLU."""


@pytest.mark.parametrize(("optimiser", "kind", "dtype", "tolerance"), CASES)
def test_two_hundred_steps_end_in_the_fused_weights(
    optimiser: str, kind: str, dtype: torch.dtype, tolerance: float, authority: Path
) -> None:
    train = config(optimiser, epochs=20)
    expected = fused(train, dtype)
    made, method, rows = sides(dtype)
    ends = [endpoint(side, Kept()) for side in made]
    with lines(kind, NAMES, ends, authority) as found:
        roster = Roster([Peer(*each) for each in zip(NAMES, found, strict=True)], terms(train))
        trainer = Trainer(roster, method, rows, train)
        for _ in trainer.run(lambda: score(method, roster, rows)):
            pass
        trainer.load_best()
        roster.flush()
        assert trainer.progress.step == 200
    pairs = zip(weights(made, method), expected, strict=True)
    assert max(float((ours - theirs).abs().max()) for ours, theirs in pairs) <= tolerance
