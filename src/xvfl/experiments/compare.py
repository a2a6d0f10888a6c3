"""Compare methods over seeds: means, paired differences, and who is ahead."""

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from xvfl.experiments.runner import Result

Way = tuple[str, str]
"""A method and a way to predict with it: ("xvfl+", "local")."""


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

    @property
    def verdict(self) -> str:
        """Say `ahead` or `behind` beyond two standard errors, else `level`."""
        if not math.isfinite(self.error) or abs(self.mean) <= 2 * self.error:
            return "level"
        return "ahead" if self.mean > 0 else "behind"


def values(results: Sequence[Result], way: Way, rate: float, metric: str) -> dict[int, float]:
    """Give a metric by seed."""
    method, name = way
    return {
        each.setting.seed: each.metrics[name][metric]
        for each in results
        if each.setting.method == method and each.setting.rate == rate and name in each.metrics
    }


def mean(results: Sequence[Result], way: Way, rate: float, metric: str = "accuracy") -> Mean:
    """Average a metric over seeds."""
    found = np.array(list(values(results, way, rate, metric).values()))
    return Mean(float(found.mean()), float(found.std(ddof=1)) if len(found) > 1 else 0.0)


def difference(
    results: Sequence[Result], a: Way, b: Way, rate: float, metric: str = "accuracy"
) -> Difference:
    """Compare two ways on the same seeds and masks."""
    first, second = values(results, a, rate, metric), values(results, b, rate, metric)
    gaps = np.array([first[seed] - second[seed] for seed in sorted(first.keys() & second.keys())])
    error = gaps.std(ddof=1) / math.sqrt(len(gaps)) if len(gaps) > 1 else math.nan
    return Difference(float(gaps.mean()), float(error))
