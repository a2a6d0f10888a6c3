"""Small federations that several tests share."""

from collections.abc import Sequence
from dataclasses import dataclass, replace

import torch
from sklearn.datasets import load_digits
from torch import Tensor, nn

from tests import twin
from tests.options import resolved
from xvfl import nets
from xvfl.config import LossConfig, NetConfig, TrainConfig
from xvfl.federation.fused import FusedFederation
from xvfl.federation.party_worker import PartyWorker
from xvfl.methods import Method
from xvfl.methods.build import build_method, build_parties
from xvfl.nets.party_net import PartyNet
from xvfl.primitives.layout import Feature, Layout, any_image
from xvfl.primitives.masks import drop_features
from xvfl.primitives.random import CounterRNG
from xvfl.primitives.rows import PartyTable, Rows
from xvfl.primitives.task import Classification
from xvfl.training.loop import Trainer
from xvfl.training.predict import logits, mode_party_pairs

METHODS = ("xvfl+", "xvfl", "standalone", "vanilla", "laser", "laser+mask")
"""Methods of the product, whether those of the lab are registered or not."""
D, CLASSES, SEED, STEP = 5, 3, 2, 7

NUMBERS = Layout(tuple(Feature(name, "numeric", 1) for name in "abcd"))
MIXED = Layout(
    (
        Feature("job", "category", 3),
        Feature("age", "numeric", 1),
        Feature("when", "numeric", 5),
        Feature("flag", "category", 2),
        Feature("city", "hashed", 3, 7),
        Feature("shop", "hashed", 2, 4),
    )
)
IMAGE = Layout(image=(2, 4, 3))

FULL, GAPPY, PARTIAL, EMPTY, ABSENT = "FGPE-"
"""What a party observes of a row: all features; all but one, yet full (D6); some; none; or it does
not hold the row."""


@dataclass(frozen=True)
class Problem:
    """A small federation in double precision, and a batch of its rows."""

    parties: list[PartyNet]
    tables: list[PartyTable]
    head: nn.Module
    rows: Rows
    names: list[str]

    def federation(self, reconstruction: float = 0.0) -> FusedFederation:
        """Build a federation of the parties in this process."""
        each = zip(self.names, self.parties, self.tables, strict=True)
        return FusedFederation(
            [PartyWorker(*of_party, [SEED], reconstruction) for of_party in each]
        )

    def parameters(self) -> dict[str, nn.Parameter]:
        """Name every parameter of every net."""
        holders = {**dict(zip(self.names, self.parties, strict=True)), "head": self.head}
        return {f"{h}.{n}": p for h, net in holders.items() for n, p in net.named_parameters()}

    def gradients(self) -> dict[str, Tensor]:
        """Return the gradients and clear them."""
        gradients = {}
        for name, parameter in self.parameters().items():
            grad = parameter.grad
            gradients[name] = torch.zeros_like(parameter) if grad is None else grad
            parameter.grad = None
        return gradients

    def twin_parties(self) -> list[twin.Party]:
        """Wrap the nets for the twin, which computes one row at a time."""
        return [twin_party(net) for net in self.parties]

    def twin_rows(self) -> list[twin.Row]:
        """Convert the batch to the twin's rows."""
        return [self._twin_row(b) for b in range(len(self.rows))]

    def _twin_row(self, b: int) -> twin.Row:
        xs, os = [], []
        for i, (net, table) in enumerate(zip(self.parties, self.tables, strict=True)):
            at = int(self.rows.handles[b, i])
            if at < 0:
                xs.append(torch.zeros(net.layout.encoded, dtype=torch.float64))
                os.append([False] * net.layout.raw)
                continue
            vectors = [net.vectors[j].weight[code] for j, code in enumerate(table.codes[at])]
            xs.append(torch.cat([table.values[at].flatten(), *vectors]))
            os.append(table.observed[at].tolist())
        full, y = self.rows.full[b].tolist(), self.rows.y[b].item()
        return twin.Row(xs, os, full, y, float(self.rows.weight[b]))


def twin_party(net: PartyNet) -> twin.Party:
    """Wrap a party's bottom and completer for single rows."""
    shape = net.layout.image

    def f(x: Tensor, given: list[bool]) -> Tensor:
        flags = torch.tensor(given, dtype=x.dtype)
        if shape is None:
            return net.bottom(torch.cat([x, flags])[None])[0]
        image = torch.cat([x.view(shape), flags.view(1, *shape[1:])])
        return net.bottom(image[None])[0]

    def xcom(cue: Tensor) -> Tensor:
        return net.completer(cue[None])[0].flatten()

    if shape is None:
        pairs = enumerate(net.layout.features)
        columns = [i for i, feature in pairs for _ in range(feature.width)]
    else:
        columns = list(range(shape[1] * shape[2])) * shape[0]
    return twin.Party(f, xcom, columns)


def make_problem(layouts: Sequence[Layout], holdings: Sequence[str], seed: int = 0) -> Problem:
    """Sample nets, tables, labels and weights; `holdings`: a string per row, a letter per party."""
    rng = torch.Generator().manual_seed(seed)
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        parties = [PartyNet(layout, *_small_nets(layout)).double() for layout in layouts]
        head = smooth_net(D, CLASSES).double()
    tables, handles = [], []
    for i, layout in enumerate(layouts):
        held = [b for b, holding in enumerate(holdings) if holding[i] != ABSENT]
        held = [held[j] for j in torch.randperm(len(held), generator=rng).tolist()]
        handles.append([held.index(b) if b in held else -1 for b in range(len(holdings))])
        tables.append(sample_table(layout, [holdings[b][i] for b in held] or [EMPTY], rng))
    rows = Rows(
        torch.tensor(handles).T,
        torch.tensor([[how in (FULL, GAPPY) for how in holding] for holding in holdings]),
        torch.tensor([[how in (FULL, GAPPY, PARTIAL) for how in each] for each in holdings]),
        torch.randint(CLASSES, (len(holdings),), generator=rng),
        torch.rand(len(holdings), generator=rng, dtype=torch.float64) + 0.5,
        STEP,
    )
    return Problem(parties, tables, head, rows, [f"p{i}" for i in range(len(layouts))])


def with_numbers(problem: Problem, unlabeled: Sequence[int] = ()) -> Problem:
    """Replace classes by numbers, NaN in unlabeled rows, and the head by one of one output."""
    rng = torch.Generator().manual_seed(9)
    y = torch.randn(len(problem.rows), generator=rng, dtype=torch.float64)
    y[list(unlabeled)] = torch.nan
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(9)
        head = smooth_net(D, 1).to(next(problem.head.parameters()).dtype)
    rows = replace(problem.rows, y=y.to(problem.rows.weight.dtype))
    return replace(problem, rows=rows, head=head)


def smooth_net(fan_in: int, fan_out: int) -> nn.Module:
    """Build a small net without flat regions, so that no gradient is zero."""
    net = nn.Sequential(nn.Linear(fan_in, 6), nn.Tanh(), nn.Linear(6, 6), nn.Tanh())
    return net.append(nn.Linear(6, fan_out))


def _small_nets(layout: Layout) -> tuple[nn.Module, nn.Module]:
    if layout.image is not None:
        return nets.bottom(layout, D, 6, 2), nets.completer(layout, D, 6)
    bottom = smooth_net(layout.encoded + layout.raw, D)
    return bottom, nets.Completer(smooth_net(D, layout.encoded), layout)


def sample_table(layout: Layout, hows: Sequence[str], rng: torch.Generator) -> PartyTable:
    """Sample a party's rows; `hows` says what it observes of each."""
    n = len(hows)
    observed = torch.stack([_sample_mask(how, layout.raw, rng) for how in hows])
    if layout.image is not None:
        values = torch.rand(n, *layout.image, generator=rng, dtype=torch.float64)
        values = values * observed.view(n, 1, *layout.image[1:])
        return PartyTable(layout, values, torch.zeros(n, 0, dtype=torch.long), observed)
    dense, codes = [], []
    for i, feature in enumerate(layout.features):
        present = observed[:, i]
        if feature.kind == "hashed":
            codes.append(torch.randint(feature.buckets, (n,), generator=rng) * present)
            continue
        columns = torch.rand(n, feature.width, generator=rng, dtype=torch.float64)
        if feature.kind == "category":
            columns = nn.functional.one_hot(columns.argmax(1), feature.width).double()
        dense.append(columns * present.unsqueeze(1))
    stacked = torch.stack(codes, 1) if codes else torch.zeros(n, 0, dtype=torch.long)
    return PartyTable(layout, torch.cat(dense, 1), stacked, observed)


def _sample_mask(how: str, raw: int, rng: torch.Generator) -> Tensor:
    missing = {FULL: 0, GAPPY: 1, EMPTY: raw}.get(how)
    if missing is None:
        missing = int(torch.randint(1, raw, (), generator=rng))
    return torch.randperm(raw, generator=rng) >= missing


def split_digits(count: int, shuffled: bool = False) -> tuple[dict[str, PartyTable], Rows]:
    """Split images of the digits 0 to 2 between two parties; `shuffled` permutes the labels."""
    x, y = load_digits(n_class=CLASSES, return_X_y=True)
    rng = torch.Generator().manual_seed(SEED)
    at = torch.randperm(len(x), generator=rng)[:count]
    images = torch.from_numpy(x).float()[at].view(count, 8, 8) / 16
    labels = torch.from_numpy(y)[at].long()
    if shuffled:
        labels = labels[torch.randperm(count, generator=rng)]
    layout = Layout(tuple(Feature(f"c{j}", "numeric", 1) for j in range(32)))
    observed = torch.ones(count, 32, dtype=torch.bool)
    codes = torch.zeros(count, 0, dtype=torch.long)
    halves = {"left": images[:, :, :4], "right": images[:, :, 4:]}
    tables = {
        name: PartyTable(layout, half.reshape(count, 32), codes, observed)
        for name, half in halves.items()
    }
    everywhere = torch.ones(count, 2, dtype=torch.bool)
    handles = torch.arange(count).unsqueeze(1).expand(-1, 2)
    return tables, Rows(handles, everywhere, everywhere, labels, torch.ones(count))


def sampled_mask(observed: Tensor, party: str, step: int, which: int = 0) -> Tensor:
    """Reproduce the mask that a party sampled in a step."""
    rows, raw = observed.shape
    draws = CounterRNG([SEED], party, "mask", which)
    return drop_features(observed, draws.uniform(step, rows, 1 + raw, observed.device))


def train_small(
    loss: LossConfig, tables: dict[str, PartyTable], rows: Rows, epochs: int
) -> tuple[Method, FusedFederation]:
    """Train small nets, at most until every mode predicts every training row correctly."""
    net = NetConfig(embedding_dim=16, hidden_dim=32)
    layouts = {name: table.layout for name, table in tables.items()}
    config = TrainConfig(
        epochs=epochs, learning_rate=1e-2, schedule="constant", weight_decay=0.0, patience=0
    )
    options = resolved(net, loss, config)
    net, loss, config = options.net, options.loss, options.train
    with torch.random.fork_rng(devices=[]):
        parties = build_parties(layouts, net, loss, [SEED])
        method = build_method(
            len(layouts), Classification(range(CLASSES)), any_image(layouts), net, loss, [SEED]
        )
        weight = loss.reconstruction_weight
        fused = FusedFederation(
            [PartyWorker(n, parties[n], tables[n], [SEED], weight) for n in tables]
        )
        trainer = Trainer(fused, method, rows, config)
        for record in trainer.run(lambda: 0.0):
            tenth_epoch = record.kind == "epoch" and record.progress.epoch % 10 == 0
            if tenth_epoch and min(accuracies(method, fused, rows).values()) == 1:
                break
    return method, fused


def accuracies(method: Method, federation: FusedFederation, rows: Rows) -> dict[str, float]:
    """Return the training accuracy of every mode and party."""
    scores = {}
    for mode, party in mode_party_pairs(method, federation):
        right = logits(method, federation, rows, mode, party).argmax(1) == rows.y
        scores[f"{mode}/{party}"] = right.float().mean().item()
    return scores
