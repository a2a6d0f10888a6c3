"""Tables larger than memory: resident memory and rate of training and prediction by rows.

`python benchmarks/big_tables.py --folder DIR` writes Parquet files of one and of four million rows
with 40 columns for each of two parties, trains 500 steps on each in a process of its own, streamed
and, at the smaller size, in memory, predicts, prints a table and JSON, and removes the files.
"""

import argparse
import json
import os
import resource
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import numpy as np

COLUMNS, STEPS, WARM = 40, 500, 50
GROUP = 100_000
CONFIG = """
streamed = {streamed}

[labels]
party = "bank"
column = "label"

[parties.bank]
table = "bank.parquet"
id = "id"

[parties.shop]
table = "shop.parquet"
id = "id"

[train]
epochs = 100
patience = 0
device = "cpu"
"""


def write_tables(folder: Path, rows: int) -> None:
    """Write two parties' files: 34 numbers, 5 categories and one of 1000 values; some cells empty.

    The shop holds the rows in another order within each row group.
    """
    import pyarrow as pa
    import pyarrow.parquet

    rng = np.random.default_rng(0)
    words = np.array([f"word{i}" for i in range(1000)])
    folder.mkdir(parents=True, exist_ok=True)
    weights = rng.normal(size=34) / 6
    for party in ("bank", "shop"):
        writer = None
        for start in range(0, rows, GROUP):
            count = min(GROUP, rows - start)
            hidden = np.random.default_rng(start).normal(size=count)
            order = rng.permutation(count) if party == "shop" else np.arange(count)
            columns = {"id": np.arange(start, start + count)[order]}
            for i in range(COLUMNS - 6):
                cells = hidden * weights[i] + rng.normal(size=count)
                gone = rng.random(count) < 0.05
                columns[f"n{i}"] = pa.array(cells[order], mask=gone[order])
            for i in range(5):
                columns[f"c{i}"] = words[rng.integers(0, 4, count)]
            columns["h"] = words[rng.integers(0, 1000, count)]
            if party == "bank":
                columns["label"] = (hidden + rng.normal(size=count) > 0).astype(np.int64)
            table = pa.table(columns)
            writer = writer or pyarrow.parquet.ParquetWriter(
                folder / f"{party}.parquet", table.schema
            )
            writer.write_table(table)
        if writer is not None:
            writer.close()


def resident() -> float:
    """Give this process's resident memory in MB."""
    with open("/proc/self/statm") as file:
        return int(file.read().split()[1]) * resource.getpagesize() / 1e6


def train_here(folder: Path, streamed: bool, steps: int) -> dict[str, float]:
    """Train some steps as `xvfl train` does, in this process."""
    from xvfl.runs import Folder
    from xvfl.training import Update
    from xvfl.workflow import train_run

    config = folder / "run.toml"
    text = CONFIG.format(streamed=str(streamed).lower())
    config.write_text(text)
    started = time.perf_counter()
    memory: list[float] = []
    times: list[float] = []
    batch = 0

    def show(update: Update) -> None:
        nonlocal batch
        memory.append(resident())
        times.append(time.perf_counter())
        if len(times) == steps:
            signal.raise_signal(signal.SIGINT)

    run = folder / "run"
    train_run(config, text, Folder(run), False, show)
    shutil.rmtree(run)
    spent = np.diff(times)[WARM:]
    batch = 1024
    return {
        "prepared in s": times[0] - started,
        "rows/s": batch / float(np.median(spent)),
        "rows/s mean": batch / float(spent.mean()),
        "MB at the first step": memory[0],
        "MB over the steps": max(memory),
        "MB peak": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1e3,
    }


def alone(*arguments: object) -> dict[str, float]:
    """Measure in a process of its own."""
    command = [sys.executable, __file__, "--alone", *map(str, arguments)]
    done = subprocess.run(command, check=True, capture_output=True, text=True)
    found: dict[str, float] = json.loads(done.stdout.splitlines()[-1])
    return found


def main() -> None:
    """Measure, print, clean up."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument(
        "--folder", type=Path, help="where to write the files; by default temporary"
    )
    parser.add_argument("--rows", default="1000000,4000000")
    parser.add_argument("--steps", type=int, default=STEPS)
    parser.add_argument("--alone", nargs=4, help=argparse.SUPPRESS)
    given = parser.parse_args()
    if given.alone:
        what, folder, streamed, steps = given.alone
        if what == "write":
            write_tables(Path(folder), int(steps))
            print("{}")
        else:
            print(json.dumps(train_here(Path(folder), streamed == "True", int(steps))))
        return
    with tempfile.TemporaryDirectory(dir=given.folder) as folder:
        for rows in map(int, given.rows.split(",")):
            place = Path(folder) / str(rows)
            alone("write", place, False, rows)
            print(rows, "streamed", alone("train", place, True, given.steps), flush=True)
            if rows <= 1_000_000:
                print(rows, "memory", alone("train", place, False, given.steps), flush=True)
            shutil.rmtree(place)


if __name__ == "__main__":
    os.environ.setdefault("OMP_NUM_THREADS", "1")
    main()
