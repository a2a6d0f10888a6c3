"""Compare methods over seeds: means, paired differences, and who is ahead."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from statistics import NormalDist

import numpy as np

from xvfl_lab.experiments.runner import Result

Way = tuple[str, str]
"""A method and a way to predict with it: ("xvfl+", "local")."""
TWO_ERRORS = 2 * (1 - NormalDist().cdf(2))
"""How often chance alone is more than two standard errors away."""


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
        return self.beyond(TWO_ERRORS)

    @property
    def chance(self) -> float:
        """How often chance alone gives a difference this large, in either direction."""
        if not math.isfinite(self.error):
            return 1.0
        if self.error == 0:
            return float(self.mean == 0)
        return 2 * (1 - NormalDist().cdf(abs(self.mean) / self.error))

    def beyond(self, chance: float) -> str:
        """Say `ahead` or `behind` where chance alone gives this less often than `chance`."""
        if self.chance >= chance:
            return "level"
        return "ahead" if self.mean > 0 else "behind"


def values(
    results: Sequence[Result], way: Way, rates: float | Sequence[float], metric: str
) -> dict[int, float]:
    """Give a metric by seed, averaged over the rates; seeds without all of them are left out."""
    method, name = way
    wanted = (rates,) if isinstance(rates, float) else tuple(rates)
    found: dict[int, dict[float, float]] = {}
    for each in results:
        setting = each.setting
        if setting.method == method and setting.rate in wanted and name in each.metrics:
            found.setdefault(setting.seed, {})[setting.rate] = each.metrics[name][metric]
    return {
        seed: float(np.mean(list(by_rate.values())))
        for seed, by_rate in found.items()
        if len(by_rate) == len(wanted)
    }


def mean(
    results: Sequence[Result],
    way: Way,
    rates: float | Sequence[float],
    metric: str = "accuracy",
) -> Mean:
    """Average a metric over seeds."""
    found = np.array(list(values(results, way, rates, metric).values()))
    return Mean(float(found.mean()), float(found.std(ddof=1)) if len(found) > 1 else 0.0)


def difference(
    results: Sequence[Result],
    a: Way,
    b: Way,
    rates: float | Sequence[float],
    metric: str = "accuracy",
) -> Difference:
    """Compare two ways on the same seeds and masks."""
    return paired(values(results, a, rates, metric), values(results, b, rates, metric))


def paired(first: Mapping[int, float], second: Mapping[int, float]) -> Difference:
    """Take one metric from another, seed by seed."""
    gaps = np.array([first[seed] - second[seed] for seed in sorted(first.keys() & second.keys())])
    error = gaps.std(ddof=1) / math.sqrt(len(gaps)) if len(gaps) > 1 else math.nan
    return Difference(float(gaps.mean()), float(error))


def standings(differences: Mapping[str, Difference]) -> dict[str, str]:
    """Say against whom we are ahead or behind beyond two standard errors, by Holm's correction.

    S. Holm. A simple sequentially rejective multiple test procedure. 1979. The clearest difference
    must pass the bar of all of them together, the next one that of those left, and so on; after the
    first that does not, all are level.
    """
    verdicts = dict.fromkeys(differences, "level")
    ordered = sorted(differences, key=lambda name: differences[name].chance)
    for place, name in enumerate(ordered):
        verdict = differences[name].beyond(TWO_ERRORS / (len(ordered) - place))
        if verdict == "level":
            break
        verdicts[name] = verdict
    return verdicts
