"""The paper's claims P1–P10, each answered from the runs that are there.

A claim is `reproduced`, `partly`, `not` or `open` (the runs are not made yet), with the figures.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from xvfl.experiments.compare import mean
from xvfl.experiments.jobs import IMAGES, OURS
from xvfl.experiments.runner import Result
from xvfl.experiments.summary import JUDGED, Standing, metric_of, standing

Runs = Mapping[tuple[str, str], Sequence[Result]]
"""Results by figure and data set."""
PAPER = "xvfl"


@dataclass(frozen=True)
class Answer:
    """How a claim fared."""

    verdict: str
    figures: str


OPEN = Answer("open", "the runs are not made yet")


def best_everywhere(runs: Runs) -> Answer:
    """P1: X-VFL best of all methods, every rate, both modes."""
    lines, shares = [], []
    for (figure, dataset), results in runs.items():
        if figure != "missing-rates":
            continue
        for method in (PAPER, OURS):
            wins = [
                _wins(results, method, mode, metric_of(dataset))
                for mode in ("local", "collaborative")
            ]
            lines.append(
                f"{dataset}, {method}: best mean at {wins[0][0]} of {wins[0][1]} rates in local, "
                f"{wins[1][0]} of {wins[1][1]} in collaborative"
            )
            if method == PAPER:
                shares.append(sum(w for w, _ in wins) / sum(of for _, of in wins))
    if not lines:
        return OPEN
    verdict = "reproduced" if min(shares) == 1 else "partly" if max(shares) >= 0.5 else "not"
    return Answer(verdict, "; ".join(lines))


def _wins(results: Sequence[Result], method: str, mode: str, metric: str) -> tuple[int, int]:
    """Count the rates at which a method has the best mean; at 1 nothing is left to see alone."""
    rates = sorted({each.setting.rate for each in results})
    counted = [rate for rate in rates if mode != "local" or rate < 1]
    wins = 0
    for rate in counted:
        there = {each.setting.method for each in results if mode in each.metrics}
        means = {name: mean(results, (name, mode), rate, metric).mean for name in there}
        wins += max(means, key=lambda name: means[name]) == method
    return wins, len(counted)


def steady(runs: Runs) -> Answer:
    """P2: independent accuracy falls < 0.5 points from R_miss 0 to 0.9 on UTKFace."""
    results = runs.get(("missing-rates", "utkface"))
    if not results:
        return OPEN
    falls = {}
    for method in (PAPER, OURS):
        for mode in ("local", "assisted"):
            before, after = (_at(results, method, mode, rate) for rate in (0.0, 0.9))
            falls[f"{method} {mode}"] = 100 * (before - after)
    text = ", ".join(f"{name} {fall:.1f}" for name, fall in falls.items())
    good = falls[f"{PAPER} assisted"] < 0.5
    return Answer("partly" if good else "not", f"points lost from 0 to 0.9: {text}")


def small_gap(runs: Runs) -> Answer:
    """P3: independent 88.15, collaborative 88.32 at R_miss 0.9 on UTKFace; baselines' gap > 20."""
    results = runs.get(("missing-rates", "utkface"))
    if not results:
        return OPEN
    parts = []
    for method in (PAPER, OURS, "laser", "laser+mask"):
        independent = "assisted" if method in (PAPER, OURS) else "local"
        pair = [100 * _at(results, method, mode, 0.9) for mode in (independent, "collaborative")]
        parts.append(f"{method} {pair[0]:.1f} ({independent}) / {pair[1]:.1f}")
    gap = abs(_at(results, PAPER, "assisted", 0.9) - _at(results, PAPER, "collaborative", 0.9))
    return Answer("partly" if gap < 0.01 else "not", "; ".join(parts))


def _at(results: Sequence[Result], method: str, mode: str, rate: float) -> float:
    return mean(results, (method, mode), rate, "accuracy").mean


def cifar_levels(runs: Runs) -> Answer:
    """P4: independent > 45 against < 35, collaborative > 65 against ~55 (CIFAR-10, R_miss 0.5)."""
    results = runs.get(("missing-rates", "cifar10"))
    if not results:
        return OPEN
    parts = [
        f"{method} {mode} {100 * _at(results, method, mode, 0.5):.1f}"
        for method in (PAPER, OURS, "laser", "laser+mask")
        for mode in ("local", "assisted", "collaborative")
        if any(mode in each.metrics for each in results if each.setting.method == method)
    ]
    good = (
        _at(results, PAPER, "assisted", 0.5) > 0.45
        and _at(results, PAPER, "collaborative", 0.5) > 0.65
    )
    return Answer("reproduced" if good else "not", ", ".join(parts))


def cifar_gain(runs: Runs) -> Answer:
    """P5: + 15 points on CIFAR-10."""
    return _gain(runs, "cifar10", 15)


def clinical_gain(runs: Runs) -> Answer:
    """P6: + 43 points on MIMIC-III; here PhysioNet 2012 stands in."""
    return _gain(runs, "physionet2012", 43)


def _gain(runs: Runs, dataset: str, claimed: float) -> Answer:
    results = runs.get(("missing-rates", dataset))
    if not results:
        return OPEN
    metric = metric_of(dataset)
    parts, best = [], -np.inf
    for mode in ("local", "collaborative"):
        for method in (PAPER, OURS):
            gains = _gains(results, method, mode, metric)
            rate = max(gains, key=lambda each: gains[each])
            best = max(best, gains[rate])
            parts.append(f"{method} {mode} at most {gains[rate]:+.1f} (R_miss {rate:g})")
    return Answer(
        "reproduced" if best >= claimed else "not",
        f"over the best of standalone, vanilla, iavfl, fedcvt and laser, in {metric} points: "
        + "; ".join(parts),
    )


def _gains(results: Sequence[Result], ours: str, mode: str, metric: str) -> dict[float, float]:
    rivals = ("standalone", "vanilla", "iavfl", "fedcvt", "laser")
    there = {each.setting.method for each in results if mode in each.metrics} & set(rivals)
    return {
        rate: 100
        * (
            mean(results, (ours, mode), rate, metric).mean
            - max(mean(results, (name, mode), rate, metric).mean for name in there)
        )
        for rate in sorted({each.setting.rate for each in results})
    }


def fair_parties(runs: Runs) -> Answer:
    """P7: gap between rich and poor party ~36 → 8.4 points under 80 : 20 imbalance."""
    found = {d: r for (figure, d), r in runs.items() if figure == "imbalance"}
    if not found:
        return OPEN
    parts, closer = [], []
    for dataset, results in found.items():
        gaps = {}
        for method in dict.fromkeys(each.setting.method for each in results):
            one = next(each for each in results if each.setting.method == method)
            rich, poor = [way for way in one.metrics if way.startswith("local/")][:2]
            metric, rate = metric_of(dataset), one.setting.rate
            gaps[method] = 100 * (
                mean(results, (method, rich), rate, metric).mean
                - mean(results, (method, poor), rate, metric).mean
            )
        text = ", ".join(f"{method} {gap:+.1f}" for method, gap in gaps.items())
        parts.append(f"{dataset} (rich − poor party in local, points): {text}")
        baselines = [abs(g) for m, g in gaps.items() if m in ("standalone", "vanilla", "iavfl")]
        closer.append(abs(gaps[PAPER]) < min(baselines) / 2)
    return Answer("reproduced" if all(closer) else "not", "; ".join(parts))


def four_parties(runs: Runs) -> Answer:
    """P8: same trends with k = 4."""
    found = {d: r for (figure, d), r in runs.items() if figure == "four-parties"}
    if not found:
        return OPEN
    parts, won = [], []
    for dataset, results in found.items():
        for method in (PAPER, OURS):
            metric = metric_of(dataset)
            alone, all_ = (
                _wins(results, method, mode, metric) for mode in ("local", "collaborative")
            )
            counts = f"local {alone[0]} of {alone[1]}, collaborative {all_[0]} of {all_[1]}"
            parts.append(f"{dataset}, {method}: best mean in {counts}")
            won.append((alone[0] + all_[0]) / (alone[1] + all_[1]))
    complete = found.keys() >= {"cifar10", "physionet2012"}
    if complete and min(won[::2]) == 1:
        return Answer("reproduced", "; ".join(parts))
    return Answer("partly" if max(won) > 0.5 else "not", "; ".join(parts))


CLAIMS: dict[str, Callable[[Runs], Answer]] = {
    "P1": best_everywhere,
    "P2": steady,
    "P3": small_gap,
    "P4": cifar_levels,
    "P5": cifar_gain,
    "P6": clinical_gain,
    "P7": fair_parties,
    "P8": four_parties,
}


def lifted_confidence(figures: Mapping[str, Any]) -> Answer:
    """P9: XCom lifts one image's confidence 0.728 → 0.977 (both parties: 0.962)."""
    parts, rises = [], []
    for method, found in figures["methods"].items():
        one = found["example"]["confidence"]
        parts.append(
            f"{method}, chosen image: {one['single']:.3f} → {one['single-xcom']:.3f} "
            f"(both {one['both']:.3f})"
        )
        for party, measured in found["absent"].items():
            cases = measured["cases"]
            before, after = (cases[c]["confidence"]["mean"] for c in ("single", "single-xcom"))
            rises.append(after - before)
            parts.append(f"all images, {party} absent: {before:.3f} → {after:.3f}")
    return Answer("reproduced" if min(rises) > 0.02 else "partly", "; ".join(parts))


def faster_page(figures: Mapping[str, Any]) -> Answer:
    """P10: ‖∇L‖² falls as O(1/√T) with SGD-type, O(1/T) with PAGE-type."""
    fitted = figures["known problem"]["exponent"]
    text = f"known problem, exponents of T: SGD {fitted['sgd']:.2f}, PAGE {fitted['page']:.2f}"
    real = figures["digits"]
    text += "; digits, loss at the last round: " + ", ".join(
        f"{name} {found['last loss']:.2f}" for name, found in real.items() if "last loss" in found
    )
    good = fitted["sgd"] <= -0.45 and fitted["page"] <= -0.9
    return Answer("reproduced" if good else "partly", text)


OF_THEIR_OWN: dict[str, Callable[[Mapping[str, Any]], Answer]] = {
    "confidence": lifted_confidence,
    "rounds": faster_page,
}
"""Claims answered by the figures that are not grids of runs."""


def standings(runs: Runs) -> dict[str, list[Standing]]:
    """Compare `xvfl+` with every rival, by data set, where the runs over missing rates are made."""
    return {
        dataset: standing(results, metric_of(dataset), JUDGED)
        for (figure, dataset), results in runs.items()
        if figure == "missing-rates"
    }


def verdict_of_demand(stands: Mapping[str, Sequence[Standing]]) -> list[str]:
    """Say how `xvfl+` stands in each data set and mode: over all rivals, and the nearest one."""
    lines = []
    for dataset, found in stands.items():
        for mode in ("local", "collaborative"):
            rivals = [each for each in found if each.mode == mode]
            nearest = min(rivals, key=lambda each: each.gap.mean)
            lines.append(_stands(dataset, mode, _all(rivals), nearest))
        peers = next(each for each in found if each.rival == "peers alone")
        lines.append(_stands(dataset, "assisted", peers.verdict, peers))
    return lines


def _all(rivals: Sequence[Standing]) -> str:
    verdicts = {each.verdict for each in rivals}
    if "behind" in verdicts:
        return "behind"
    return "ahead" if verdicts == {"ahead"} else "level"


def _stands(dataset: str, mode: str, verdict: str, nearest: Standing) -> str:
    gap = f"{100 * nearest.gap.mean:+.2f} ± {100 * nearest.gap.error:.2f}"
    return f"| {dataset} | {mode} | {verdict} | {nearest.rival} | {gap} |"


def images_open(runs: Runs) -> list[str]:
    """List the image sets without runs."""
    return [name for name in IMAGES if ("missing-rates", name) not in runs]
