"""Compare methods over seeds: means, paired differences, and who is ahead."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike

from xvfl_lab.experiments.runner import Result

Way = tuple[str, str]
"""A method and a way to predict with it: ("xvfl+", "local")."""
Rates = float | Sequence[float]
"""A missing rate, or several whose average counts."""
SIGNIFICANCE = 0.05
"""Probability of a wrong verdict, over all rivals of a comparison."""


@dataclass(frozen=True)
class Mean:
    """Mean and standard deviation of a metric over seeds."""

    mean: float
    deviation: float


@dataclass(frozen=True)
class Difference:
    """Paired mean difference over seeds and its standard error."""

    mean: float
    error: float
    seeds: int

    @classmethod
    def of(cls, differences: ArrayLike) -> "Difference":
        """Average differences, one for each seed."""
        each = np.asarray(differences, dtype=np.float64)
        error = each.std(ddof=1) / math.sqrt(len(each)) if len(each) > 1 else math.nan
        return cls(float(each.mean()), float(error), len(each))

    @property
    def p_value(self) -> float:
        """Two-sided p-value by Student's t."""
        if not math.isfinite(self.error):
            return 1.0
        if self.error == 0:
            return float(self.mean == 0)
        return p_value(self.mean / self.error, self.seeds - 1)

    @property
    def half_width(self) -> float:
        """Half the width of the 95 % confidence interval."""
        return critical_value(self.seeds - 1) * self.error

    @property
    def verdict(self) -> str:
        """`ahead` or `behind` where the difference is significant, else `level`."""
        return self.verdict_at(SIGNIFICANCE)

    def verdict_at(self, level: float) -> str:
        """Return the verdict at another level of significance."""
        if self.p_value >= level:
            return "level"
        return "ahead" if self.mean > 0 else "behind"


def p_value(t: float, freedom: int) -> float:
    """Return P(|T| ≥ |t|) of Student's distribution with a whole number of degrees of freedom.

    M. Abramowitz, I. Stegun. Handbook of Mathematical Functions. 1964. Eq. 26.7.3 and 26.7.4.
    """
    angle = math.atan(abs(t) / math.sqrt(freedom))
    odd = freedom % 2
    term = math.sin(angle) * (math.cos(angle) if odd else 1.0)
    total = term if freedom > 1 else 0.0
    for power in range(2 + odd, freedom - 1, 2):
        term *= math.cos(angle) ** 2 * (power - 1) / power
        total += term
    inside = 2 / math.pi * (angle + total) if odd else total
    return max(0.0, 1 - inside)


def critical_value(freedom: int) -> float:
    """Return the t at which the two-sided p-value is 5 %, by bisection."""
    low, high = 0.0, 1000.0
    while high - low > 1e-9:
        middle = (low + high) / 2
        low, high = (middle, high) if p_value(middle, freedom) > SIGNIFICANCE else (low, middle)
    return high


def values(results: Sequence[Result], way: Way, rates: Rates, metric: str) -> dict[int, float]:
    """Return a metric by seed, averaged over the rates; seeds without all rates are left out."""
    method, name = way
    wanted = (rates,) if isinstance(rates, float) else tuple(rates)
    by_seed: dict[int, dict[float, float]] = {}
    for each in results:
        config = each.config
        if config.name == method and config.rate in wanted and name in each.metrics:
            by_seed.setdefault(config.seed, {})[config.rate] = each.metrics[name][metric]
    return {
        seed: sum(by_rate.values()) / len(by_rate)
        for seed, by_rate in by_seed.items()
        if len(by_rate) == len(wanted)
    }


def mean(results: Sequence[Result], way: Way, rates: Rates, metric: str = "accuracy") -> Mean:
    """Average a metric over seeds."""
    each = np.array(list(values(results, way, rates, metric).values()))
    return Mean(float(each.mean()), float(each.std(ddof=1)) if len(each) > 1 else 0.0)


def difference(
    results: Sequence[Result], a: Way, b: Way, rates: Rates, metric: str = "accuracy"
) -> Difference:
    """Compare two ways on the same seeds and masks."""
    first, second = (values(results, way, rates, metric) for way in (a, b))
    return Difference.of([first[seed] - second[seed] for seed in sorted(first.keys() & second)])


def holm(differences: Mapping[str, Difference]) -> dict[str, str]:
    """Return the verdict against each rival, with Holm's correction for several comparisons.

    S. Holm. A simple sequentially rejective multiple test procedure. 1979. The smallest p-value
    must be below the level divided by the number of rivals, the next below the level divided by
    the number of rivals left, and so on; from the first that is not, all are level.
    """
    verdicts = dict.fromkeys(differences, "level")
    ordered = sorted(differences, key=lambda name: differences[name].p_value)
    for place, name in enumerate(ordered):
        verdict = differences[name].verdict_at(SIGNIFICANCE / (len(ordered) - place))
        if verdict == "level":
            break
        verdicts[name] = verdict
    return verdicts
