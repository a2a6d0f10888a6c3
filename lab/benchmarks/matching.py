"""Time private id matching against a bare loop of its curve multiplications, on the same cores.

    python lab/benchmarks/matching.py --ids 100000 --json matching.json

Both sides run in turn in one process, so the time is that of all their work. Matching is timed
between two bare loops and compared with their mean, as other work on the machine comes and goes;
`cpu_ratio` compares processor time, which such work disturbs less.
"""

import argparse
import json
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import rbcl
from numpy.typing import NDArray

from xvfl.matching import CoordinatorSession, PartySession
from xvfl.matching.group import usable_cores

RULE = "folded"
SAMPLE = 1000


def clocks() -> NDArray[np.float64]:
    """Return wall time and processor time."""
    return np.array([time.perf_counter(), time.process_time()])


def bare_loop(count: int, workers: int) -> NDArray[np.float64]:
    """Multiply points, an equal share on each core; return the seconds."""
    scalar = rbcl.crypto_core_ristretto255_scalar_random()
    points = [rbcl.crypto_core_ristretto255_random() for _ in range(SAMPLE)]

    def share(_: int) -> None:
        for i in range(count // workers):
            rbcl.crypto_scalarmult_ristretto255(scalar, points[i % SAMPLE])

    started = clocks()
    with ThreadPoolExecutor(workers) as pool:
        list(pool.map(share, range(workers)))
    return clocks() - started


def matching(ids: int, workers: int) -> tuple[NDArray[np.float64], int]:
    """Match two lists that share half of their ids; return seconds and bytes."""
    labeled = [f"Customer {i:08d}" for i in range(ids)]
    held = [f"customer  {i:08d}" for i in range(ids // 2, ids // 2 + ids)]
    moved = 0

    def exchange(request: bytes) -> bytes:
        nonlocal moved
        reply = party.answer(request)
        moved += len(request) + len(reply)
        return reply

    started = clocks()
    party = PartySession(held, RULE, workers)
    found = CoordinatorSession(labeled, RULE, workers).match(exchange)
    took = clocks() - started
    assert (found.handles >= 0).sum() == ids - ids // 2
    return took, moved


def main() -> None:
    """Print a table and write it as JSON."""
    options = argparse.ArgumentParser(description=__doc__)
    options.add_argument("--ids", type=int, default=100_000, help="ids on each side")
    options.add_argument("--workers", type=int, default=usable_cores())
    options.add_argument("--json", type=Path, help="where to write the figures")
    chosen = options.parse_args()
    products = 8 * chosen.ids  # Four in each half of a session.
    loops = [bare_loop(products, chosen.workers)]
    took, moved = matching(chosen.ids, chosen.workers)
    loops.append(bare_loop(products, chosen.workers))
    bare = (loops[0] + loops[1]) / 2
    ratio = took / bare
    figures = {
        "ids": chosen.ids,
        "workers": chosen.workers,
        "multiplications": products,
        "bare_seconds": [round(float(loop[0]), 2) for loop in loops],
        "matching_seconds": round(took[0], 2),
        "ratio": round(ratio[0], 3),
        "cpu_ratio": round(ratio[1], 3),
        "bytes_per_id": round(moved / (2 * chosen.ids), 1),
    }
    for name, value in figures.items():
        print(f"{name:16}  {value}")
    if chosen.json:
        chosen.json.write_text(json.dumps(figures, indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
