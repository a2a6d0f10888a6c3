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
from xvfl_lab.bench.outcome import Outcome
from xvfl_lab.bench.sections import Plan

ON_GPU: dict[str, Callable[[Plan], Outcome]] = {
    "agreement": agreement,
    "gpu": gpu.table,
    "images": gpu.images,
}
BY_NAME: dict[str, Callable[[Plan], Outcome]] = {"big": big, "grid": grid}
"""Sections that run only if named."""
SECTIONS: dict[str, Callable[[Plan], Outcome]] = {**sections.SECTIONS, **ON_GPU, **BY_NAME}


def bench(wanted: Sequence[str], plan: Plan, out: Path, tell: Callable[[Outcome], None]) -> Outcome:
    """Run the named sections, or all that this machine supports; write results after each.

    `tell` is called with the results of each section. Targets hold for the full shapes: a quick
    benchmark has none.
    """
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
            tell(one)
            outcome += one
            outcome.write(out)
    return outcome
