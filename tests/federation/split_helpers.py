"""Small federations behind endpoints, to compare split with fused computation."""

import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict, replace

import torch
from torch import Tensor, nn

from tests.options import resolved
from tests.problems import CLASSES, MIXED, NUMBERS, SEED, D, Problem, make_problem, smooth_net
from xvfl.config import LossConfig, NetConfig, TrainConfig
from xvfl.federation.endpoint import Endpoint, PartyRun
from xvfl.federation.party_worker import PartyWorker
from xvfl.federation.remote_party import RemoteParty
from xvfl.federation.run_settings import RunSettings
from xvfl.federation.split import SplitFederation
from xvfl.methods import Method, MethodParts, method_spec
from xvfl.primitives.task import CLASSIFICATION, Regression
from xvfl.wire.messages import Begin, Hello
from xvfl.wire.transport import Transport

LAYOUTS = [NUMBERS, MIXED, NUMBERS, MIXED]
HOLDINGS = ["FFFF", "FGFG", "FPF-", "-FPF", "P-PP", "PPFP", "F---", "FFFF", "EFPF", "PFFE"]


class InMemoryCheckpoints:
    """Store checkpoints in memory."""

    def __init__(self) -> None:
        self.saved: dict[tuple[str, int], tuple[dict[str, Tensor], int]] = {}

    def save(self, run: str, step: int, tensors: Mapping[str, Tensor], last_update: int) -> None:
        self.saved[run, step] = (
            {name: each.clone() for name, each in tensors.items()},
            last_update,
        )

    def newest(self, run: str, step: int) -> tuple[int, dict[str, Tensor], int] | None:
        steps = [each for of, each in self.saved if of == run and each <= step]
        return (max(steps), *self.saved[run, max(steps)]) if steps else None


def make_federation(
    k: int, dtype: torch.dtype = torch.float64, dropout: float = 0.0, branches: int = 1
) -> Problem:
    """Sample a federation of k parties with rows of every kind."""
    problem = make_problem(LAYOUTS[:k], [each[:k] for each in HOLDINGS])
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(SEED)
        for net in problem.parties:
            bottom = smooth_net(net.layout.encoded + net.layout.raw, branches * D).to(dtype)
            net.bottom = nn.Sequential(nn.Dropout(dropout), bottom)
            net.to(dtype)
    tables = [replace(table, values=table.values.to(dtype)) for table in problem.tables]
    return replace(
        problem, tables=tables, rows=replace(problem.rows, weight=problem.rows.weight.to(dtype))
    )


def make_small_method(problem: Problem, name: str, **more: object) -> Method:
    """Build a method with small heads, in the problem's precision."""
    config = resolved(loss=LossConfig(method=name, **more)).loss  # type: ignore[arg-type]
    numbers = problem.rows.y.is_floating_point()
    task, outputs = (Regression(), 1) if numbers else (CLASSIFICATION, CLASSES)
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(SEED)
        parts = MethodParts(
            lambda width: smooth_net(width, outputs), len(problem.parties), D, (SEED,), task=task
        )
        method = method_spec(config.method).build(config, parts)
    method.heads.to(problem.rows.weight.dtype)
    return method


def settings_json(train: TrainConfig | None = None, reconstruction: float = 0.0) -> str:
    """Serialize the settings of a small run."""
    given = RunSettings(
        "xvfl+",
        NetConfig(D, 6),
        train or TrainConfig(optimizer="sgd", learning_rate=1e-15),
        reconstruction,
    )
    return json.dumps(asdict(given))


def make_endpoints(
    problem: Problem, reconstruction: float = 0.0, stores: Sequence[InMemoryCheckpoints] = ()
) -> list[Endpoint]:
    """Put each party of a problem behind an endpoint."""
    ends = []
    for i, (name, net, table) in enumerate(
        zip(problem.names, problem.parties, problem.tables, strict=True)
    ):
        side = PartyWorker(name, net, table, [SEED], reconstruction)
        holdings = torch.zeros(len(table), dtype=torch.uint8)
        hello = Hello(0, f"instance_id-{name}", False, len(table), "columns", "session")
        store = stores[i] if stores else InMemoryCheckpoints()
        ends.append(
            Endpoint(hello, lambda s, t, side=side, h=holdings: PartyRun(side, h), store)  # type: ignore[misc]
        )
    return ends


def begin_run(
    lines: Sequence[Transport], names: Sequence[str], settings: str, branches: int = 1
) -> SplitFederation:
    """Begin a run over transports."""
    peers = [RemoteParty(name, line) for name, line in zip(names, lines, strict=True)]
    split = SplitFederation(peers, branches * D)
    for line in lines:
        line.request(Begin(1, "run", 0, settings, torch.zeros(0, dtype=torch.int32))).result(30)
    return split
