"""Compare private id matching with an earlier version: CPU seconds, bytes and memory.

    scripts/version d233049 --version
    old=.versions/d233049/bin/python
    python lab/benchmarks/matching.py --ids 100000 --repeats 3 --earlier $old
    python lab/benchmarks/matching.py --ids 1000000

Two lists share half of their ids. Both sides run in one process, so figures are of all their work;
versions take turns, each in a process of its own. `bare` is a loop of the same number of curve
multiplications as this version needs. The script prints each run as it ends, then medians, and
compares every result with the plain intersection.
"""

import argparse
import json
import resource
import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from statistics import median

RULE = "folded"
SAMPLE = 1000
PRODUCTS = 4
"""Curve multiplications for an id of each side."""
FIELDS = ("cpu s", "wall s", "bytes per id", "peak MiB")


def bare_loop(count: int, workers: int) -> int:
    """Multiply points, an equal share on each core; return the bytes sent."""
    import rbcl

    scalar = rbcl.crypto_core_ristretto255_scalar_random()
    points = [rbcl.crypto_core_ristretto255_random() for _ in range(SAMPLE)]

    def share(_: int) -> None:
        for i in range(PRODUCTS * count // workers):
            rbcl.crypto_scalarmult_ristretto255(scalar, points[i % SAMPLE])

    with ThreadPoolExecutor(workers) as pool:
        list(pool.map(share, range(workers)))
    return 0


def match(count: int, workers: int) -> int:
    """Match two lists, compare with the plain intersection and return the bytes sent."""
    from xvfl.matching import CoordinatorSession, PartySession

    labeled = [f"Customer {i:09d}" for i in range(count)]
    held = [f"customer  {i:09d}" for i in range(count // 2, count // 2 + count)]
    moved = 0

    def exchange(request: bytes) -> bytes:
        nonlocal moved
        reply = party.answer(request)
        moved += len(request) + len(reply)
        return reply

    party = PartySession(held, RULE, workers)
    found = CoordinatorSession(labeled, RULE, workers).match(exchange)
    assert party.match is not None
    pairs = {
        (row, int(party.match.rows[handle]))
        for row, handle in enumerate(found.handles.tolist())
        if handle >= 0
    }
    if pairs != {(row, row - count // 2) for row in range(count // 2, count)}:
        raise SystemExit("the result is not the plain intersection")
    return moved


def work(kind: str, count: int, workers: int) -> None:
    """Run once in this process, and print its figures."""
    run = bare_loop if kind == "bare" else match
    run(200, workers)  # Imports and threads.
    cpu, wall = time.process_time(), time.perf_counter()
    moved = run(count, workers)
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
    figures = (time.process_time() - cpu, time.perf_counter() - wall, moved / (2 * count), peak)
    print(json.dumps(figures))


def start(python: str, kind: str, count: int, workers: int) -> list[float]:
    """Run once in a process of its own, and return its figures."""
    command = [python, __file__, "--worker", kind, "--ids", str(count), "--workers", str(workers)]
    done = subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True)
    figures: list[float] = json.loads(done.stdout)
    return figures


def main() -> None:
    """Print the figures of each kind of run."""
    options = argparse.ArgumentParser(description=__doc__)
    options.add_argument("--ids", type=int, nargs="+", default=[100_000], help="ids on each side")
    options.add_argument("--workers", type=int, default=2, help="threads")
    options.add_argument("--repeats", type=int, default=1, help="turns")
    options.add_argument("--earlier", type=Path, help="python of an earlier version")
    options.add_argument("--worker", choices=("now", "earlier", "bare"), help=argparse.SUPPRESS)
    chosen = options.parse_args()
    if chosen.worker:
        work(chosen.worker, chosen.ids[0], chosen.workers)
        return
    pythons = {"now": sys.executable, "bare": sys.executable}
    if chosen.earlier:
        pythons["earlier"] = str(chosen.earlier)
    print(f"{'ids':>10} {'run':8}" + "".join(f"{name:>14}" for name in FIELDS))
    for count in chosen.ids:
        figures: dict[str, list[list[float]]] = {kind: [] for kind in pythons}
        for _ in range(chosen.repeats):
            for kind, python in pythons.items():
                figures[kind].append(start(python, kind, count, chosen.workers))
                show(count, kind, figures[kind][-1])
        medians = {
            kind: [median(column) for column in zip(*runs, strict=True)]
            for kind, runs in figures.items()
        }
        for kind, values in medians.items():
            show(count, kind, values, "median")
            print(f"{kind} / now, cpu: {values[0] / medians['now'][0]:.2f}")


def show(count: int, kind: str, values: list[float], note: str = "") -> None:
    """Print one line."""
    print(
        f"{count:>10} {kind:8}" + "".join(f"{value:>14.1f}" for value in values), note, flush=True
    )


if __name__ == "__main__":
    main()
