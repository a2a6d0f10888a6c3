"""Print the tables on suspicious values in docs/security.md.

python -m tests.federation.poisoning_report leave-out --data digits --epochs 60
python -m tests.federation.poisoning_report false-alarms --data bank --epochs 3
"""

import argparse
from collections import Counter

import numpy as np
import torch

from tests.federation.poisoned_parties import LEAVE, TABLES, make_run
from tests.federation.poisoned_values import ATTACKS
from xvfl.config import NetConfig

METHODS = ("xvfl+", "xvfl", "laser", "laser+mask", "vanilla", "standalone")
SHARES = (0.25, 0.5, 0.75)
"""Shares of the epochs after which the attack starts."""


def report_leave_out(data: str, epochs: int, rate: float, attack: str, seeds: range) -> None:
    """Compare runs that leave a party out with runs without it, in percentage points."""
    differences = np.zeros((len(seeds), len(SHARES), 2))
    for at, seed in enumerate(seeds):
        without = make_run(data, epochs, "leave_out", seed=seed, learning_rate=rate)
        without.train(LEAVE, 0)
        for place, share in enumerate(SHARES):
            run = make_run(data, epochs, "leave_out", seed=seed, learning_rate=rate)
            run.train(attack, int(share * epochs) * run.trainer.batches_per_epoch + 3)
            assert run.federation.present == (0,)
            accuracy = run.accuracy() - without.accuracy()
            differences[at, place] = 100 * accuracy, 100 * (run.auroc() - without.auroc())
        print(f"seed {seed}: {differences[at].round(2).tolist()}", flush=True)
    print(f"{data}, {epochs} epochs, {attack}: with leave_out less without the party, in points")
    for place, share in enumerate(SHARES):
        for name, values in zip(("accuracy", "AUROC"), differences[:, place].T, strict=True):
            error = values.std(ddof=1) / np.sqrt(len(values)) if len(values) > 1 else np.nan
            each = f"{values.min():+.1f} to {values.max():+.1f}"
            print(f"after {share:.0%}: {name} {values.mean():+.2f} ± {error:.2f} ({each})")


def report_false_alarms(data: str, epochs: int, rate: float, seeds: range) -> None:
    """Count the anomalies of honest runs with the default settings of a federation."""
    for method in METHODS:
        found: Counter[str] = Counter()
        for seed in seeds:
            run = make_run(
                data,
                epochs,
                "warn",
                method,
                seed=seed,
                net=NetConfig(),
                learning_rate=rate,
            )
            found.update(event["kind"] for event in run.train().anomalies())
        kinds = dict(found) or "none"
        print(
            f"{data} {method}: {len(seeds)} runs of {epochs} epochs, warnings: {kinds}", flush=True
        )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("table", choices=["leave-out", "false-alarms"])
    parser.add_argument("--data", choices=list(TABLES), default="digits")
    parser.add_argument("--epochs", type=int, default=3)
    parser.add_argument("--learning-rate", type=float, default=5e-3)
    parser.add_argument("--attack", choices=list(ATTACKS), default="noise")
    parser.add_argument("--first-seed", type=int, default=200)
    parser.add_argument("--seeds", type=int, default=5)
    given = parser.parse_args()
    seeds = range(given.first_seed, given.first_seed + given.seeds)
    torch.set_num_threads(1)
    if given.table == "leave-out":
        report_leave_out(given.data, given.epochs, given.learning_rate, given.attack, seeds)
    else:
        report_false_alarms(given.data, given.epochs, given.learning_rate, seeds)


if __name__ == "__main__":
    main()
