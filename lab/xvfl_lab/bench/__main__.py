"""`python -m xvfl_lab.bench`: the benchmarks on machines that have torch and numpy alone."""

import argparse
from dataclasses import replace
from pathlib import Path

from xvfl_lab.bench.grid import published_runs
from xvfl_lab.bench.outcome import CLAIMS, LINES, Outcome, text
from xvfl_lab.bench.run import SECTIONS, bench
from xvfl_lab.bench.sections import FULL, QUICK


def show(outcome: Outcome) -> None:
    """Print the results of a section."""
    print(text(LINES, [line.cells() for line in outcome.lines]), "\n", flush=True)


def main() -> None:
    """Time sections, print the results, and write them as JSON."""
    parser = argparse.ArgumentParser(description=main.__doc__)
    parser.add_argument(
        "sections", nargs="*", help=f"of {', '.join(SECTIONS)}; by default all but big and grid"
    )
    parser.add_argument("--quick", action="store_true", help="tiny shapes, seconds")
    parser.add_argument("--out", type=Path, default=Path("out/bench.json"))
    parser.add_argument("--tasks", type=Path, help="grid: folder of prepared NAME-PARTIES.npz")
    parser.add_argument(
        "--results", type=Path, help="grid: folder of published runs; default lab/results/runs"
    )
    options = parser.parse_args()
    plan = replace(
        QUICK if options.quick else FULL,
        tasks=options.tasks,
        results=published_runs(options.results, options.quick),
    )
    outcome = bench(options.sections, plan, options.out, show)
    if outcome.claims:
        print(text(CLAIMS, [claim.cells() for claim in outcome.claims]))


if __name__ == "__main__":
    main()
