"""`python -m xvfl_lab.bench`: the bench on machines that have torch and numpy and nothing else."""

import argparse
from dataclasses import replace
from pathlib import Path

from xvfl_lab.bench.grid import published
from xvfl_lab.bench.outcome import CLAIMS, LINES, Outcome, text
from xvfl_lab.bench.run import SECTIONS, bench
from xvfl_lab.bench.sections import FULL, QUICK


def show(found: Outcome) -> None:
    """Print what a section found."""
    print(text(LINES, [line.cells() for line in found.lines]), "\n", flush=True)


def main() -> None:
    """Time what was asked for, print it, and write it as JSON."""
    parser = argparse.ArgumentParser(description=main.__doc__)
    parser.add_argument(
        "sections", nargs="*", help=f"among {', '.join(SECTIONS)}; none = all but big and grid"
    )
    parser.add_argument("--quick", action="store_true", help="tiny shapes, seconds")
    parser.add_argument("--out", type=Path, default=Path("out/bench.json"))
    parser.add_argument("--tasks", type=Path, help="grid: folder of prepared NAME-PARTIES.npz")
    parser.add_argument(
        "--results", type=Path, help="grid: folder of published runs; results/runs if there"
    )
    given = parser.parse_args()
    plan = replace(
        QUICK if given.quick else FULL,
        tasks=given.tasks,
        results=published(given.results, given.quick),
    )
    found = bench(given.sections, plan, given.out, show)
    if found.claims:
        print(text(CLAIMS, [claim.cells() for claim in found.claims]))


if __name__ == "__main__":
    main()
