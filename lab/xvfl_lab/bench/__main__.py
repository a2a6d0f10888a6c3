"""`python -m xvfl_lab.bench`: the benchmarks on machines that have torch and numpy alone."""

import argparse
from collections.abc import Sequence
from pathlib import Path

from xvfl_lab.bench.outcome import text
from xvfl_lab.bench.run import SECTIONS, bench


def show(header: Sequence[str], rows: Sequence[Sequence[str]]) -> None:
    """Print a table of results."""
    print(text(header, rows), "\n", flush=True)


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
    bench(options.sections, options.quick, options.out, show, options.tasks, options.results)


if __name__ == "__main__":
    main()
