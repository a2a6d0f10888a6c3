"""Benchmarks on a CPU; contenders take turns."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import torch

from xvfl.config import LossConfig
from xvfl.training.threads import limit_threads
from xvfl_lab.bench import memory, reference
from xvfl_lab.bench.outcome import Claim, Line, Outcome
from xvfl_lab.bench.shapes import PUBLIC, SyntheticRows, steps, tables
from xvfl_lab.bench.timing import Times, take_turns

FASTER, FLOOR, GROWTH = 1.5, 1.4, 9.0


@dataclass(frozen=True)
class Plan:
    """Sizes and repetitions of the benchmarks, and the folders they read."""

    rounds: int = 15
    steps: int = 3
    d: int = 512
    parties: tuple[int, ...] = (2, 4, 8, 16, 32, 64)
    widths: tuple[int, ...] = (64, 128, 256, 512, 1024)
    batches: tuple[int, ...] = (50, 100, 200, 400, 800)
    tables: tuple[int, ...] = (1_000, 10_000, 100_000)
    gpu_steps: int = 20
    quick: bool = False
    tasks: Path | None = None
    """Folder of prepared data sets; None = find and prepare them."""
    results: Path | None = None
    """Folder of published runs to compare with."""


FULL = Plan()
QUICK = Plan(2, 1, 32, (2, 4), (16, 32), (50, 100), (1_000, 2_000), 10, quick=True)


def paper(plan: Plan) -> Outcome:
    """Time X-VFL's step in the paper's shape for tables against reference and lower bound."""
    synthetic = SyntheticRows.of(tables(d=plan.d))
    times = _time_tables(
        {
            "xvfl": steps(synthetic.trainer("xvfl")),
            "reference": reference_steps(synthetic),
            "floor": synthetic.floor(),
            "xvfl+": steps(synthetic.trainer("xvfl+")),
        },
        plan,
    )
    faster, above = times.ratio("reference", "xvfl"), times.ratio("xvfl", "floor")
    case = f"k = 2, d = {plan.d}, batch 50"
    return Outcome(
        _lines("paper", case, times, "xvfl"),
        (
            Claim(f"{case}: reference / xvfl", faster, FASTER, True),
            Claim(f"{case}: xvfl / floor", above, FLOOR, False),
        ),
    )


def reference_steps(synthetic: SyntheticRows) -> Iterator[None]:
    """Train with the reference, from the initial weights of our trainer."""
    nets, rows = synthetic.reference(synthetic.trainer("xvfl"))
    loss = LossConfig(method="xvfl")
    assert isinstance(loss.lambda1, float) and isinstance(loss.lambda2, float)
    return reference.train(nets, rows, synthetic.shape.batch, loss.lambda1, loss.lambda2)


def public(plan: Plan) -> Outcome:
    """Time the rivals' losses in S1 to S3 against plain loops, and X-VFL against vanilla."""
    outcome = Outcome()
    for name, shape in PUBLIC.items():
        synthetic = SyntheticRows.of(shape)
        for method in ("vanilla", "laser"):
            contenders = {
                method: steps(synthetic.trainer(method)),
                f"bare {method}": synthetic.bare(method, fused=False),
                f"bare {method}, fused AdamW": synthetic.bare(method, fused=True),
            }
            times = _time_tables(contenders, _more_steps(plan))
            faster = times.ratio(f"bare {method}", method)
            claim = Claim(
                f"{name}, {method}: bare loop, torch's default AdamW / ours", faster, 1.0, True
            )
            outcome += Outcome(_lines("public", name, times, method), (claim,))
        ours: tuple[str, ...] = ("vanilla", "laser", "xvfl", "xvfl+")
        times = _time_tables(
            {each: steps(synthetic.trainer(each)) for each in ours}, _more_steps(plan)
        )
        outcome += Outcome(_lines("public", name, times, "vanilla"))
    return outcome


def parties(plan: Plan) -> Outcome:
    """Time X-VFL's step by the number of parties."""
    cases = {f"k = {k}": tables(parties=k, d=plan.d, rows=500) for k in plan.parties}
    each = {name: steps(SyntheticRows.of(shape).trainer("xvfl")) for name, shape in cases.items()}
    times = _time_tables(each, _fewer_rounds(plan))
    few, many = "k = 4", "k = 32"
    outcome = Outcome(_growth_lines("parties", times))
    if many not in cases:
        return outcome
    claim = Claim("time(k = 32) / time(k = 4)", times.ratio(many, few), GROWTH, False)
    return outcome + Outcome((), (claim,))


def growth(plan: Plan) -> Outcome:
    """Time X-VFL's step by the size of embeddings, batches and tables."""
    base = tables(d=plan.d)
    families = {
        "width": {f"d = {d}": tables(d=d) for d in plan.widths},
        "batch": {f"batch {b}": replace(base, batch=b) for b in plan.batches},
        "table": {f"{n} rows": replace(base, rows=n) for n in plan.tables},
    }
    outcome = Outcome()
    for section, cases in families.items():
        each = {
            name: steps(SyntheticRows.of(shape).trainer("xvfl")) for name, shape in cases.items()
        }
        outcome += Outcome(_growth_lines(section, _time_tables(each, _fewer_rounds(plan))))
    return outcome


def peak(plan: Plan) -> Outcome:
    """Measure the peak memory of training steps."""
    case, peaks = f"k = 2, d = {plan.d}, batch 50", {}
    for contender in memory.CONTENDERS:
        peaks[contender] = memory.peak(contender, tables(d=plan.d))
    to, of = next(iter(peaks.items()))
    ratios = {name: value / of if of else None for name, value in peaks.items()}
    return Outcome(
        tuple(Line("memory", case, name, peaks[name], "MiB", ratios[name], to) for name in peaks)
    )


SECTIONS: dict[str, Callable[[Plan], Outcome]] = {
    "paper": paper,
    "public": public,
    "parties": parties,
    "growth": growth,
    "memory": peak,
}


def _time_tables(contenders: Mapping[str, Iterator[object]], plan: Plan) -> Times:
    """Time contenders with one thread, as tables are trained."""
    with limit_threads(False, torch.device("cpu")):
        return take_turns(contenders, plan.rounds, plan.steps)


def _more_steps(plan: Plan) -> Plan:
    """Time more steps, for short ones."""
    return replace(plan, steps=5 * plan.steps)


def _fewer_rounds(plan: Plan) -> Plan:
    """Time fewer rounds, for long steps."""
    return replace(plan, rounds=min(plan.rounds, 7), steps=1)


def _lines(section: str, case: str, times: Times, to: str) -> tuple[Line, ...]:
    return tuple(
        Line(section, case, name, times.median(name), ratio=times.ratio(name, to), to=to)
        for name in times.rounds
    )


def _growth_lines(section: str, times: Times) -> tuple[Line, ...]:
    names: Sequence[str] = list(times.rounds)
    return tuple(
        replace(line, case=line.contender, contender="xvfl")
        for line in _lines(section, "", times, names[0])
    )
