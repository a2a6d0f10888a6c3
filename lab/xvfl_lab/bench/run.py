"""Run sections of the bench."""

from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path

import torch

from xvfl.errors import ConfigError, unknown
from xvfl_lab.bench import gpu, sections
from xvfl_lab.bench.agreement import agreement
from xvfl_lab.bench.big import big
from xvfl_lab.bench.grid import grid
from xvfl_lab.bench.outcome import CLAIMS, LINES, Outcome
from xvfl_lab.bench.sections import Plan


def fit(plan: Plan) -> Outcome:
    """Compare a fit on Bank Marketing with the defaults of version 0.1.0; needs the product."""
    from xvfl_lab.bank_fit import compare_fits, compare_steps

    return compare_fits(plan) + compare_steps(plan)


ON_GPU: dict[str, Callable[[Plan], Outcome]] = {
    "agreement": agreement,
    "gpu": gpu.table,
    "images": gpu.images,
}
BY_NAME: dict[str, Callable[[Plan], Outcome]] = {"big": big, "fit": fit, "grid": grid}
"""Sections that run only if named."""
SECTIONS: dict[str, Callable[[Plan], Outcome]] = {**sections.SECTIONS, **ON_GPU, **BY_NAME}


Show = Callable[[Sequence[str], Sequence[Sequence[str]]], None]
"""Shows a table, given as header and rows."""
PUBLISHED = Path("lab") / "results" / "runs"


def bench(
    wanted: Sequence[str],
    quick: bool,
    out: Path,
    show: Show,
    tasks: Path | None = None,
    results: Path | None = None,
) -> None:
    """Run the named sections, or all that this machine supports; write results after each.

    Targets hold for the full shapes: a quick benchmark has none. `tasks` and `results` are the
    folders of the section `grid`; by default it compares with the repository's results.
    """
    if results is None and not quick and PUBLISHED.is_dir():
        results = PUBLISHED
    plan = replace(sections.QUICK if quick else sections.FULL, tasks=tasks, results=results)
    for name in wanted:
        if name not in SECTIONS:
            raise ConfigError(unknown("section", name, SECTIONS))
        needed = name in ON_GPU or (name == "grid" and not plan.quick)
        if needed and not torch.cuda.is_available():
            raise ConfigError(f"section {name!r}: expected a GPU, found none; leave it out")
    usual = {**sections.SECTIONS, **(ON_GPU if torch.cuda.is_available() else {})}
    outcome = Outcome()
    with torch.random.fork_rng(devices=[]):
        for name in wanted or usual:
            one = SECTIONS[name](plan)
            one = replace(one, claims=()) if plan.quick else one
            show(LINES, [line.cells() for line in one.lines])
            outcome += one
            outcome.write(out)
    if outcome.claims:
        show(CLAIMS, [claim.cells() for claim in outcome.claims])
