"""Tables larger than memory: resident memory and rates by rows.

`python lab/benchmarks/big_tables.py --folder DIR` writes Parquet files of one and of four million
rows with 40 columns for each of two parties, trains 500 steps on each in a process of its own,
compares rates on the smaller ones, prints a table and JSON, and removes the files.
"""

import argparse
import json
import tempfile
from pathlib import Path

from xvfl_lab.big_tables import measure, rates


def main() -> None:
    """Measure, print, clean up."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--folder", type=Path, help="where to write; by default temporary")
    parser.add_argument("--rows", default="1000000,4000000")
    parser.add_argument("--steps", type=int, default=500)
    options = parser.parse_args()
    found: dict[str, dict[str, float]] = {}
    for number, rows in enumerate(map(int, options.rows.split(","))):
        with tempfile.TemporaryDirectory(dir=options.folder) as folder:
            found[str(rows)] = measure(rows, Path(folder), options.steps)
            if number == 0:
                found[str(rows)] |= rates(Path(folder))
        for name, value in found[str(rows)].items():
            print(f"{rows:>9} rows  {name:<18} {value:10.2f}", flush=True)
    memory = [each["steps_mb"] for each in found.values()]
    found["ratio"] = {"steps_mb": memory[-1] / memory[0]}
    print(f"resident memory over the steps, last / first: {found['ratio']['steps_mb']:.3f}")
    print(json.dumps(found))


if __name__ == "__main__":
    main()
