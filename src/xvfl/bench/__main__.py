"""`python -m xvfl.bench`: the bench on machines that have torch and numpy and nothing else."""

import argparse
from pathlib import Path

from xvfl.bench.outcome import CLAIMS, LINES, Outcome, text
from xvfl.bench.run import SECTIONS, bench


def show(section: str, found: Outcome) -> None:
    """Print what a section found."""
    print(text(LINES, [line.cells() for line in found.lines]), "\n", flush=True)


def main() -> None:
    """Time what was asked for, print it, and write it as JSON."""
    parser = argparse.ArgumentParser(description=main.__doc__)
    parser.add_argument(
        "sections", nargs="*", help=f"among {', '.join(SECTIONS)}; none = all but big"
    )
    parser.add_argument("--quick", action="store_true", help="tiny shapes, seconds")
    parser.add_argument("--out", type=Path, default=Path("out/bench.json"))
    given = parser.parse_args()
    found = bench(given.sections, given.quick, show)
    found.write(given.out)
    if found.claims:
        print(text(CLAIMS, [claim.cells() for claim in found.claims]))


if __name__ == "__main__":
    main()
