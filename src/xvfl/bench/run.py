"""Run sections of the bench."""

from collections.abc import Callable, Sequence
from dataclasses import replace

import torch

from xvfl.bench import gpu, sections
from xvfl.bench.agreement import agreement
from xvfl.bench.big import big
from xvfl.bench.outcome import Outcome
from xvfl.bench.sections import FULL, QUICK, Plan
from xvfl.errors import ConfigError, unknown

ON_GPU: dict[str, Callable[[Plan], Outcome]] = {
    "agreement": agreement,
    "gpu": gpu.table,
    "images": gpu.images,
}
BY_NAME: dict[str, Callable[[Plan], Outcome]] = {"big": big}
"""Sections that run only when they are asked for."""
SECTIONS: dict[str, Callable[[Plan], Outcome]] = {**sections.SECTIONS, **ON_GPU, **BY_NAME}


def bench(wanted: Sequence[str], quick: bool, tell: Callable[[str, Outcome], None]) -> Outcome:
    """Time sections by name, or all that this machine can; `tell` hears what each found.

    What was promised is of the full shapes: a quick bench judges nothing.
    """
    for name in wanted:
        if name not in SECTIONS:
            raise ConfigError(unknown("section", name, SECTIONS))
        if name in ON_GPU and not torch.cuda.is_available():
            raise ConfigError(f"section {name!r}: expected a GPU, found none; leave it out")
    usual = {**sections.SECTIONS, **(ON_GPU if torch.cuda.is_available() else {})}
    found, plan = Outcome(), QUICK if quick else FULL
    with torch.random.fork_rng(devices=[]):
        for name in wanted or usual:
            one = SECTIONS[name](plan)
            tell(name, one)
            found += one
    return replace(found, claims=()) if quick else found
