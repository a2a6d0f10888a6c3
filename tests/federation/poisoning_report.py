"""Print the tables on suspicious values in docs/security.md and docs/operate.md.

python -m tests.federation.poisoning_report leave-out --data digits --epochs 60
python -m tests.federation.poisoning_report false-alarms --data bank --epochs 3
python -m tests.federation.poisoning_report extremes --data bank --epochs 15
"""

import argparse
import math
from collections import Counter
from collections.abc import Sequence

import numpy as np
import torch
from torch import Tensor

from tests.federation.poisoned_parties import LEAVE, SENDS_GRADIENTS, TABLES, make_run
from tests.federation.poisoned_values import ATTACKS
from xvfl.config import NetConfig
from xvfl.federation.party_monitor import (
    DRIFT_ANSWERS,
    GRADIENT_STEPS,
    MIN_ROWS,
    Anomaly,
    AnswerKind,
    PartyMonitor,
    _others,
)
from xvfl.federation.party_statistics import AnswerStatistics, History, inconsistency
from xvfl.methods import METHODS

FEDERATED_METHODS = ("xvfl+", "xvfl", "laser", "laser+mask", "vanilla", "standalone")
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
    for method in FEDERATED_METHODS:
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


class ExtremeValues(PartyMonitor):
    """Record the most extreme values that the monitor compares with its limits.

    Of `constant` that is the smallest one, of all others the largest.
    """

    def __init__(self) -> None:
        super().__init__("warn")
        self.found: dict[str, float] = {}

    def record(self, kind: str, value: float) -> None:
        self.found[kind] = max(self.found.get(kind, -math.inf), value)

    def _check_one(
        self, name: str, kind: AnswerKind, statistics: AnswerStatistics, i: int, history: History
    ) -> list[Anomaly]:
        rms = float(statistics.rms[i])
        if history.count:
            self.record("scale", max(rms / history.rms, history.rms / rms))
        else:
            self.record("scale, first", rms / max(1.0, _others(statistics.rms, i)))
        if kind == "embeddings":
            smallest = self.found.get("constant", math.inf)
            self.found["constant"] = min(smallest, float(statistics.spread[i]))
        if history.count >= DRIFT_ANSWERS and int(statistics.rows[i]) >= 2 * MIN_ROWS:
            self.record("drift", history.drift(statistics.moment[i]))
        return super()._check_one(name, kind, statistics, i, history)

    def _check_repeat(
        self, name: str, kind: AnswerKind, correlation: float, step: int
    ) -> list[Anomaly]:
        self.record("repeat", correlation)
        return super()._check_repeat(name, kind, correlation, step)

    def _check_consistency(self, name: str, values: Tensor, handles: Tensor) -> list[Anomaly]:
        order = handles.argsort()
        earlier, answers = self._evaluated.get(name, (torch.empty(0), torch.empty(0)))
        if torch.equal(earlier, handles[order]):
            self.record("inconsistent", inconsistency(answers, values[order]))
        return super()._check_consistency(name, values, handles)

    def check_gradients(self, kind: AnswerKind, names: Sequence[str], gradients: Tensor) -> None:
        before = dict(self._gradients)
        super().check_gradients(kind, names, gradients)
        for name in names:
            steps, largest = before.get((name, kind), (0, 0.0))
            if steps >= GRADIENT_STEPS and largest > 0:
                self.record("gradient", self._gradients[name, kind][1] / largest)

    def check_validation(self, party: str, with_party: Tensor, without: Tensor) -> str | None:
        difference = with_party - without
        mean, error = float(difference.mean()), float(difference.std()) / len(difference) ** 0.5
        self.record("validation, nats", mean)
        self.record("validation, relative", mean / float(without.mean()))
        self.record("validation, standard errors", mean / error if error else 0.0)
        return super().check_validation(party, with_party, without)


def report_extremes(data: str, epochs: int, rate: float, seed: int) -> None:
    """Print the most extreme values of one honest run of each method, with gradients."""
    for method in METHODS:
        run = make_run(data, epochs, "warn", method, SENDS_GRADIENTS, seed, learning_rate=rate)
        run.federation.monitor = monitor = ExtremeValues()
        run.train()
        found = {kind: float(f"{value:.3g}") for kind, value in sorted(monitor.found.items())}
        print(f"{data} {method}: {found}, anomalies: {monitor.counts or 'none'}", flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("table", choices=["leave-out", "false-alarms", "extremes"])
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
    elif given.table == "extremes":
        report_extremes(given.data, given.epochs, given.learning_rate, given.first_seed)
    else:
        report_false_alarms(given.data, given.epochs, given.learning_rate, seeds)


if __name__ == "__main__":
    main()
