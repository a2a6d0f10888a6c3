"""The benchmarked shapes, random rows of them, and trainers on these rows.

The input width of a bottom counts encoded columns and flags.
"""

import copy
from collections.abc import Iterator
from dataclasses import dataclass, replace

import torch
from torch import Tensor, nn

from xvfl import nets
from xvfl.config import NO_PROTECTION, LossConfig, NetConfig, TrainConfig
from xvfl.federation.fused import FusedFederation
from xvfl.federation.party_worker import PartyWorker
from xvfl.methods import MethodParts, method_spec
from xvfl.methods.build import build_parties
from xvfl.options import resolve_options
from xvfl.primitives.layout import Feature, Layout
from xvfl.primitives.rows import PartyTable, Rows
from xvfl.training.loop import Trainer
from xvfl_lab.bench import bare, floor, reference
from xvfl_lab.bench.floor import NetPass


@dataclass(frozen=True)
class Shape:
    """Equal parties, and the fraction of their features that is observed."""

    parties: int
    features: tuple[Feature, ...]
    bottom: tuple[int, ...]
    """Widths of a bottom after its input; the last is d."""
    head: tuple[int, ...]
    """Widths of a head after its input; the last is the number of classes."""
    batch: int
    rows: int = 2000
    overlap: float = 0.4
    """Fraction of aligned rows."""
    rate: float = 0.5
    """Fraction of its features that a party misses in an incomplete row."""

    @property
    def layout(self) -> Layout:
        """The layout of every party."""
        return Layout(self.features)

    @property
    def inputs(self) -> int:
        """Width of a bottom's input."""
        return self.layout.encoded + self.layout.raw

    @property
    def completer(self) -> tuple[int, ...]:
        """Widths of a completer: those of a bottom, reversed."""
        return (*self.bottom[::-1], self.layout.encoded)


def numbers(count: int) -> tuple[Feature, ...]:
    """Return numeric features."""
    return tuple(Feature(f"c{i}", "numeric", 1) for i in range(count))


def tables(
    parties: int = 2, d: int = 512, batch: int = 50, rows: int = 2000, classes: int = 2
) -> Shape:
    """Return the paper's shape for tables: three layers of width d; 30 features a party."""
    return Shape(parties, numbers(30), (d, d, d), (d, d, classes), batch, rows)


PUBLIC: dict[str, Shape] = {
    "S1": Shape(4, (Feature("c", "category", 4),), (10, 10, 10), (2,), 128, overlap=1.0),
    "S2": Shape(4, numbers(70), (128, 128, 128), (12,), 128, overlap=1.0),
    "S3": Shape(2, numbers(196), (32, 10), (10,), 128, overlap=1.0),
}
"""Shapes in public use, every row aligned: bottoms 5-10-10-10, 140-128-128-128 and 392-32-10."""


LAMBDAS = (0.1, 0.1)
"""λ1 and λ2 of the reference: the defaults of `LossConfig`."""


@dataclass(frozen=True)
class SyntheticRows:
    """Random rows of a federation."""

    shape: Shape
    tables: list[PartyTable]
    rows: Rows

    @classmethod
    def of(cls, shape: Shape, seed: int = 0) -> "SyntheticRows":
        """Sample the rows of a shape; every row is full at one party at least."""
        rng, n, k = torch.Generator().manual_seed(seed), shape.rows, shape.parties
        full = torch.rand(n, k, generator=rng) < 0.5
        full[torch.arange(n), torch.randint(k, (n,), generator=rng)] = True
        full[torch.randperm(n, generator=rng)[: round(shape.overlap * n)]] = True
        party_tables = [_table(shape, full[:, i], rng) for i in range(k)]
        handles = torch.arange(n).unsqueeze(1).expand(n, k).contiguous()
        y = torch.randint(shape.head[-1], (n,), generator=rng)
        seen = torch.stack([table.observed.any(1) for table in party_tables], 1)
        return cls(shape, party_tables, Rows(handles, full, seen, y, torch.ones(n)))

    def trainer(self, method: str, **train: object) -> Trainer:
        """Return our trainer with new nets."""
        shape, names = self.shape, [f"p{i}" for i in range(self.shape.parties)]
        options = resolve_options(
            NetConfig(embedding_dim=shape.bottom[-1]),
            LossConfig(method=method),
            config(shape.batch, **train),
            NO_PROTECTION,
            federated=False,
            image=False,
            parties=len(names),
            rows=shape.rows,
            custom_nets=True,
        )
        loss = options.loss
        parties = build_parties(
            dict.fromkeys(names, shape.layout),
            options.net,
            loss,
            [0],
            {name: lambda layout, d: nets.mlp([shape.inputs, *shape.bottom]) for name in names},
            {name: lambda layout, d: completer(shape) for name in names},
        )
        parts = MethodParts(
            lambda width: nets.mlp([width, *shape.head]), len(names), shape.bottom[-1], (0,)
        )
        built = method_spec(loss.method).build(loss, parts)
        sides = [
            PartyWorker(name, parties[name], table, [0], loss.reconstruction_weight)
            for name, table in zip(names, self.tables, strict=True)
        ]
        return Trainer(FusedFederation(sides), built, self.rows, options.train)

    def reference(self, trainer: Trainer) -> tuple[reference.Nets, reference.Batch]:
        """Return the nets of an X-VFL trainer and the rows in the form of the reference."""
        assert isinstance(trainer.federation, FusedFederation)
        each = [copy.deepcopy(worker.net) for worker in trainer.federation.workers]
        reference_nets = reference.Nets(
            [net.bottom for net in each],
            [net.completer for net in each],
            copy.deepcopy(trainer.method.heads),
        )
        x, o = [table.values for table in self.tables], [table.observed for table in self.tables]
        return reference_nets, reference.Batch(x, o, self.rows.full, self.rows.y)

    def train_reference(self) -> Iterator[None]:
        """Train with the reference, from the initial weights of our trainer."""
        reference_nets, rows = self.reference(self.trainer("xvfl"))
        return reference.train(reference_nets, rows, self.shape.batch, *LAMBDAS)

    def bare(self, method: str, fused: bool) -> Iterator[None]:
        """Train with a plain loop."""
        shape, k, d = self.shape, self.shape.parties, self.shape.bottom[-1]
        joint = method == "vanilla"
        heads = [nets.mlp([k * d if joint else d, *shape.head]) for _ in range(1 if joint else k)]
        bottoms = [nets.mlp([shape.inputs, *shape.bottom]) for _ in range(k)]
        x = [torch.cat([each.values, each.observed.float()], 1) for each in self.tables]
        return bare.train(bare.LOSSES[method], bottoms, heads, x, self.rows.y, shape.batch, fused)

    def floor(self) -> Iterator[None]:
        """Compute the lower bound of an average batch."""
        return floor.train(self.passes())

    def passes(self) -> list[NetPass]:
        """List how many rows pass through each net in an average batch of X-VFL's loss."""
        shape, full, k = self.shape, self.rows.full, self.shape.parties
        aligned = full.all(1)
        rows = shape.batch / len(full)
        bottom = (shape.inputs, *shape.bottom)
        calls = []
        for i in range(k):
            plain = round(rows * float(full[:, i].sum()))
            completed = round(rows * float((aligned | ~full[:, i]).sum()))
            calls += [
                NetPass(f"bottom {i}", bottom, plain, back=False),
                NetPass(f"completer {i}", shape.completer, completed),
                NetPass(f"bottom {i}", bottom, completed),
            ]
        per_row = full.sum(1) + (full.sum(1) >= 2) + torch.where(aligned, 2 * k, 1)
        head = (shape.bottom[-1], *shape.head)
        return [*calls, NetPass("head", head, round(rows * int(per_row.sum())))]


def _table(shape: Shape, full: Tensor, rng: torch.Generator) -> PartyTable:
    layout, n = shape.layout, len(full)
    observed = (torch.rand(n, layout.raw, generator=rng) >= shape.rate) | full.unsqueeze(1)
    columns = observed[:, torch.tensor(layout.feature_of_column)]
    values = torch.rand(n, layout.encoded, generator=rng) * columns
    return PartyTable(layout, values, torch.zeros(n, 0, dtype=torch.long), observed)


def completer(shape: Shape) -> nn.Module:
    """Build a completer."""
    return nets.Completer(nets.mlp(shape.completer), shape.layout)


def config(batch: int, **train: object) -> TrainConfig:
    """Return a configuration that trains without end at a constant learning rate."""
    always = TrainConfig(
        optimizer="adamw", batch_size=batch, epochs=10**9, patience=0, schedule="constant"
    )
    return replace(always, **train)  # type: ignore[arg-type]


def steps(trainer: Trainer) -> Iterator[None]:
    """Train one step for each `next`."""
    for record in trainer.run(lambda: 0.0):
        if record.kind == "step":
            yield
