"""Benchmarks on a CPU; contenders take turns."""

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from pathlib import Path

import torch

from xvfl.training.threads import limit_threads
from xvfl_lab.bench import memory
from xvfl_lab.bench.outcome import Claim, Line, Outcome
from xvfl_lab.bench.shapes import PUBLIC, Shape, SyntheticRows, steps, tables
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
    contenders = {
        "xvfl": steps(synthetic.trainer("xvfl")),
        "reference": synthetic.train_reference(),
        "floor": synthetic.floor(),
        "xvfl+": steps(synthetic.trainer("xvfl+")),
    }
    times = _time_tables(contenders, plan.rounds, plan.steps)
    faster, above = times.ratio("reference", "xvfl"), times.ratio("xvfl", "floor")
    case = f"k = 2, d = {plan.d}, batch 50"
    claims = (
        Claim(f"{case}: reference / xvfl", faster, FASTER, True),
        Claim(f"{case}: xvfl / floor", above, FLOOR, False),
    )
    return Outcome(times.lines("paper", case, "xvfl"), claims)


def public(plan: Plan) -> Outcome:
    """Time the rivals' losses in S1 to S3 against plain loops, and X-VFL against vanilla."""
    outcome, many = Outcome(), 5 * plan.steps
    for name, shape in PUBLIC.items():
        synthetic = SyntheticRows.of(shape)
        for method in ("vanilla", "laser"):
            contenders = {
                method: steps(synthetic.trainer(method)),
                f"bare {method}": synthetic.bare(method, fused=False),
                f"bare {method}, fused AdamW": synthetic.bare(method, fused=True),
            }
            times = _time_tables(contenders, plan.rounds, many)
            faster = times.ratio(f"bare {method}", method)
            what = f"{name}, {method}: bare loop, torch's default AdamW / ours"
            claim = Claim(what, faster, 1.0, True)
            outcome += Outcome(times.lines("public", name, method), (claim,))
        ours = {m: steps(synthetic.trainer(m)) for m in ("vanilla", "laser", "xvfl", "xvfl+")}
        times = _time_tables(ours, plan.rounds, many)
        outcome += Outcome(times.lines("public", name, "vanilla"))
    return outcome


def parties(plan: Plan) -> Outcome:
    """Time X-VFL's step by the number of parties."""
    shapes = {f"k = {k}": tables(parties=k, d=plan.d, rows=500) for k in plan.parties}
    times = _time_shapes(shapes, plan)
    outcome = Outcome(_growth_lines("parties", times))
    if "k = 32" not in shapes:
        return outcome
    ratio = times.ratio("k = 32", "k = 4")
    return outcome + Outcome((), (Claim("time(k = 32) / time(k = 4)", ratio, GROWTH, False),))


def growth(plan: Plan) -> Outcome:
    """Time X-VFL's step by the size of embeddings, batches and tables."""
    base = tables(d=plan.d)
    families = {
        "width": {f"d = {d}": tables(d=d) for d in plan.widths},
        "batch": {f"batch {b}": replace(base, batch=b) for b in plan.batches},
        "table": {f"{n} rows": replace(base, rows=n) for n in plan.tables},
    }
    outcome = Outcome()
    for section, shapes in families.items():
        outcome += Outcome(_growth_lines(section, _time_shapes(shapes, plan)))
    return outcome


def peak(plan: Plan) -> Outcome:
    """Measure the peak memory of training steps."""
    case, to = f"k = 2, d = {plan.d}, batch 50", memory.CONTENDERS[0]
    peaks = {each: memory.peak(each, tables(d=plan.d)) for each in memory.CONTENDERS}
    lines = (
        Line("memory", case, name, peak, "MiB", peak / peaks[to] if peaks[to] else None, to)
        for name, peak in peaks.items()
    )
    return Outcome(tuple(lines))


SECTIONS: dict[str, Callable[[Plan], Outcome]] = {
    "paper": paper,
    "public": public,
    "parties": parties,
    "growth": growth,
    "memory": peak,
}


def _time_tables(contenders: Mapping[str, Iterator[object]], rounds: int, steps_each: int) -> Times:
    """Time contenders with one thread, as tables are trained."""
    with limit_threads(False, torch.device("cpu")):
        return take_turns(contenders, rounds, steps_each)


def _time_shapes(shapes: Mapping[str, Shape], plan: Plan) -> Times:
    """Time X-VFL's step in several shapes, in fewer rounds since steps are long."""
    trainers = {name: SyntheticRows.of(shape).trainer("xvfl") for name, shape in shapes.items()}
    contenders = {name: steps(trainer) for name, trainer in trainers.items()}
    return _time_tables(contenders, min(plan.rounds, 7), 1)


def _growth_lines(section: str, times: Times) -> tuple[Line, ...]:
    return tuple(
        replace(line, case=line.contender, contender="xvfl")
        for line in times.lines(section, "", next(iter(times.rounds)))
    )
