"""The paper's claims P1–P10, judged from the stored runs; their texts are in `claims.toml`.

Method `xvfl` is judged against the paper's own four baselines; LASER, `laser+mask` and
`xvfl+` are shown beside it and do not count. The paper's "independent" prediction of a party has
two readings, `local` (the party alone) and `assisted` (with its peers' embeddings), and is
measured over (row, party) pairs where the party is incomplete, or over all pairs of non-aligned
rows. Baselines have only `local`. Differences are tested with Student's t over seeds, with Holm's
correction over the baselines.
"""

import tomllib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple

from xvfl_lab.experiments.compare import Difference, Way, difference, holm, mean, values
from xvfl_lab.experiments.figure_tables import COMPARED, markdown_table, metric_of, points
from xvfl_lab.experiments.figures import FULL, OURS, four_parties, missing_rates
from xvfl_lab.experiments.runner import WHOLE, Result

Runs = Mapping[tuple[str, str], Sequence[Result]]
"""Results by figure and data set."""
PAPER = "xvfl"
BASELINES = ("standalone", "vanilla", "iavfl", "fedcvt")
"""The paper's own."""
OTHERS = ("laser", "laser+mask", OURS)
"""Shown beside, not judged."""
METHODS = (PAPER, *BASELINES, *OTHERS)
GRADES = ("reproduced", "largely reproduced", "partly reproduced", "not reproduced", "open")
REPRODUCED, LARGELY, PARTLY, NOT, OPEN = GRADES
LAMBDA_RANGES: dict[str, tuple[tuple[float, ...], tuple[float, ...]]] = {
    "cifar10": ((0.01, 0.02, 0.05, 0.1, 0.2, 0.5), (1e-5, 2e-5, 5e-5, 1e-4, 2e-4, 5e-4)),
    "tinyimagenet": ((1, 2, 5, 10, 20), (5e-4, 1e-3, 2e-3, 5e-3)),
    "utkface": ((1, 2, 5, 10, 20), (5e-4, 1e-3, 2e-3, 5e-3)),
    "mimic3": ((5e-4, 1e-3, 2e-3, 5e-3, 1e-2), (0.02, 0.05, 0.1)),
    "bank": ((1e-4, 2e-4, 5e-4, 1e-3), (5e-5, 1e-4, 2e-4, 5e-4)),
    "avazu": ((1e-4, 2e-4, 5e-4, 1e-3), (1e-5, 2e-5, 5e-5, 1e-4, 2e-4)),
}
"""Ranges of λ₁ and λ₂ in the paper, by data set (tab:lambda_values)."""
PAPER_RANGES = {"physionet2012": "mimic3", "tinyimagenet5": "tinyimagenet"}
"""Data sets that the paper's table of λ lists under another name; PhysioNet stands in for MIMIC."""
READINGS = (*COMPARED[:2], *(f"{mode}, all pairs" for mode in COMPARED[:2]), COMPARED[2])
"""Readings of independent prediction, and collaborative prediction."""
LIFT = 0.02
"""A rise of the mean confidence that counts."""


@dataclass(frozen=True)
class Evidence:
    """What the claims are judged from."""

    runs: Runs
    figures: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)
    """Numbers of the figures that are not grids of runs, by name."""

    def of(self, figure: str, dataset: str = "") -> Any:
        """Return the numbers of a figure, or its results: of one data set, or by data set."""
        if dataset:
            return self.runs.get((figure, dataset))
        by_set = {d: results for (name, d), results in self.runs.items() if name == figure}
        return self.figures.get(figure, by_set)


class Judgment(NamedTuple):
    """A verdict, the Markdown tables behind it, and the values that the texts mention."""

    verdict: str
    lines: list[str]
    values: dict[str, Any]


@dataclass(frozen=True)
class Answer:
    """A verdict."""

    verdict: str
    measured: str
    """The one number."""
    note: str = ""
    details: Sequence[str] = ()
    """Markdown tables behind it."""


@dataclass(frozen=True)
class Claim:
    """A claim of the paper."""

    text: str
    paper: str
    """The paper's number."""
    measured: str
    note: str
    rule: Callable[[Any], Judgment]
    figure: str
    dataset: str = ""
    """"" = all data sets of the figure."""

    def judge(self, evidence: Evidence) -> Answer:
        """Apply the rule to the claim's figure; open without runs."""
        measurements = evidence.of(self.figure, self.dataset)
        if not measurements:
            return Answer(OPEN, "no runs yet")
        verdict, lines, found = self.rule(measurements)
        measured, note = (each.format(**found) for each in (self.measured, self.note))
        return Answer(verdict, measured, note, lines)


def grade(*conditions: bool) -> str:
    """Return the verdict of a claim with several conditions."""
    return REPRODUCED if all(conditions) else PARTLY if any(conditions) else NOT


@dataclass(frozen=True)
class Cases:
    """In how many cases a method is ahead of every baseline, has the best mean, or is behind one.

    A case is a missing rate in a mode.
    """

    ahead: int = 0
    best: int = 0
    behind: int = 0
    total: int = 0

    def __add__(self, other: "Cases") -> "Cases":
        pairs = zip(vars(self).values(), vars(other).values(), strict=True)
        return Cases(*(a + b for a, b in pairs))

    def __str__(self) -> str:
        counts = f"{self.ahead} ahead, {self.best} best, {self.behind} behind of {self.total}"
        return counts if self.total else "n/a"

    @property
    def verdict(self) -> str:
        """Reproduced if always ahead; never behind and mostly ahead is a part."""
        if not self.total or self.behind or self.ahead < self.total / 2:
            return NOT
        if self.ahead == self.total:
            return REPRODUCED
        return LARGELY if self.ahead >= 0.75 * self.total else PARTLY


def cases(results: Sequence[Result], method: str, mode: str, metric: str) -> Cases:
    """Compare a method with every baseline at every rate.

    At R_miss 1 an incomplete party alone observes nothing, so independent prediction is left out.
    """
    theirs = _mode_of_baselines(mode)
    total = Cases()
    for rate in sorted({each.config.rate for each in results}):
        ours = values(results, (method, mode), rate, metric)
        if not ours or (theirs == "local" and rate == 1):
            continue
        gaps = {
            name: difference(results, (method, mode), (name, theirs), rate, metric)
            for name in BASELINES
            if values(results, (name, theirs), rate, metric)
        }
        verdicts = set(holm(gaps).values())
        best = all(gap.mean > 0 for gap in gaps.values())
        total += Cases(verdicts == {"ahead"}, best, "behind" in verdicts, 1)
    return total


def _mode_of_baselines(mode: str) -> str:
    return "local" if mode == "assisted" else mode


def ranking(by_set: Mapping[str, Sequence[Result]]) -> Judgment:
    """Judge P1 and P8: count the cases of a figure on all its data sets."""
    counts = {
        (method, mode): [cases(some, method, mode, metric_of(d)) for d, some in by_set.items()]
        for method in (PAPER, *OTHERS)
        for mode in COMPARED
    }
    totals = {key: sum(of_sets, Cases()) for key, of_sets in counts.items()}
    paper = zip(by_set, *(counts[PAPER, mode] for mode in COMPARED), strict=True)
    total = ["all", *(totals[PAPER, mode] for mode in COMPARED)]
    beside = ([method, *(totals[method, mode] for mode in COMPARED)] for method in OTHERS)
    judged = totals[PAPER, "assisted"] + totals[PAPER, "collaborative"]
    lines = [
        "A case is a missing rate. *Ahead*: of every baseline. *Best*: the best mean. Judged are "
        "`assisted` and `collaborative` together.",
        "",
        *markdown_table([f"{PAPER} on", *COMPARED], [*paper, total]),
        *markdown_table(["beside, on all data sets", *COMPARED], beside),
    ]
    behind = "" if judged.behind else ", behind in none"
    found = {"ahead": judged.ahead, "total": judged.total, "behind": behind}
    return Judgment(judged.verdict, lines, found)


def _percent(results: Sequence[Result], method: str, mode: str, rate: float, metric: str) -> float:
    return 100 * mean(results, (method, mode), rate, metric).mean


def readings(results: Sequence[Result], rate: float) -> dict[str, dict[str, float]]:
    """Return the accuracy in percent by method and reading, where the method has that mode.

    All pairs of non-aligned rows are an estimate: on average half of the parties are incomplete in
    a non-aligned row, and a full party predicts as it does on whole rows, of which the stored
    metric covers all parties.
    """
    by_method = {}
    for method in METHODS:
        has = {way for each in results if each.config.name == method for way in each.metrics}
        of_mode = {
            mode: _percent(results, method, mode, rate, "accuracy")
            for mode in (*COMPARED, "local" + WHOLE)
            if mode in has
        }
        whole = of_mode.pop("local" + WHOLE)
        by_method[method] = of_mode | {
            f"{mode}, all pairs": (of_mode[mode] + whole) / 2
            for mode in COMPARED[:2]
            if mode in of_mode
        }
    return by_method


def _readings_table(title: str, by_method: Mapping[str, Mapping[str, float]]) -> list[str]:
    return markdown_table(
        [title, *READINGS],
        (
            [_bold(method), *(f"{of[name]:.1f}" if name in of else "n/a" for name in READINGS)]
            for method, of in by_method.items()
        ),
    )


def _bold(method: str) -> str:
    return f"**{method}**" if method == PAPER else method


def _independent(by_reading: Mapping[str, float]) -> list[float]:
    return [level for name, level in by_reading.items() if name != "collaborative"]


def steady(results: Sequence[Result]) -> Judgment:
    """Judge P2."""
    before, after = readings(results, 0.0), readings(results, 0.9)
    lost = {m: {name: before[m][name] - after[m][name] for name in before[m]} for m in before}
    theirs = min(lost[name]["local"] for name in BASELINES)
    verdict = grade(min(_independent(lost[PAPER])) < 0.5, theirs > 20)
    lines = _readings_table("points lost from R_miss 0 to 0.9", lost)
    return Judgment(verdict, lines, {"assisted": lost[PAPER]["assisted"], "theirs": theirs})


def small_gap(results: Sequence[Result]) -> Judgment:
    """Judge P3."""
    levels = readings(results, 0.9)
    gap = levels[PAPER]["collaborative"] - levels[PAPER]["assisted"]
    baselines = [levels[name] for name in BASELINES if "collaborative" in levels[name]]
    gaps = [each["collaborative"] - each["local"] for each in baselines]
    lines = _readings_table("accuracy in % at R_miss 0.9", levels)
    found = {"gap": gap, "least": min(gaps), "gaps": ", ".join(f"{each:.1f}" for each in gaps)}
    return Judgment(grade(abs(gap) < 0.2, min(gaps) > 20), lines, found)


def cifar_levels(results: Sequence[Result]) -> Judgment:
    """Judge P4."""
    levels = readings(results, 0.5)
    independent = max(_independent(levels[PAPER]))
    theirs = max(levels[name]["local, all pairs"] for name in BASELINES)
    together = levels[PAPER]["collaborative"]
    verdict = grade(independent > 45 and theirs < 35, together > 65)
    found = {"independent": independent, "theirs": theirs, "together": together}
    return Judgment(verdict, _readings_table("accuracy in % at R_miss 0.5", levels), found)


def _gains(results: Sequence[Result], mode: str, metric: str) -> dict[float, float]:
    """Return the lead over the best baseline in points, by rate; independent without R_miss 1."""
    theirs = _mode_of_baselines(mode)
    names = [name for name in BASELINES if values(results, (name, theirs), 0.5, metric)]
    return {
        rate: _percent(results, PAPER, mode, rate, metric)
        - max(_percent(results, name, theirs, rate, metric) for name in names)
        for rate in sorted({each.config.rate for each in results})
        if theirs != "local" or rate < 1
    }


def _largest_gain(results: Sequence[Result], metric: str) -> tuple[list[str], dict[str, float]]:
    """Return a table of all leads; the largest of `assisted`, its rate, that of collaborative."""
    gains = {mode: _gains(results, mode, metric) for mode in COMPARED}
    rates = list(gains["collaborative"])
    lines = markdown_table(
        ["lead over the best baseline, R_miss", *(f"{rate:g}" for rate in rates)],
        (
            [mode, *(f"{of[rate]:+.1f}" if rate in of else "–" for rate in rates)]
            for mode, of in gains.items()
        ),
    )
    assisted, together = gains["assisted"], max(gains["collaborative"].values())
    rate = max(assisted, key=assisted.__getitem__)
    return lines, {"gain": assisted[rate], "rate": rate, "together": together}


def cifar_gain(results: Sequence[Result]) -> Judgment:
    """Judge P5."""
    lines, found = _largest_gain(results, "accuracy")
    return Judgment(grade(found["gain"] >= 15, found["gain"] > 0), lines, found)


def clinical_gain(results: Sequence[Result]) -> Judgment:
    """Judge P6: open, since the data are not the paper's."""
    lines, found = _largest_gain(results, "auroc")
    ours = _percent(results, PAPER, "assisted", found["rate"], "auroc")
    relative = 100 * found["gain"] / (ours - found["gain"])
    return Judgment(OPEN, lines, found | {"relative": relative})


def party_gaps(results: Sequence[Result], metric: str) -> dict[Way, Difference]:
    """Return the first party's lead over the second at R_miss 0.5, by method and mode."""
    gaps = {}
    for method in METHODS:
        mine = next(each for each in results if each.config.name == method)
        for mode in COMPARED[:2]:
            ways = [(method, way) for way in mine.metrics if way.startswith(f"{mode}/")]
            if len(ways) >= 2:
                gaps[method, mode] = difference(results, ways[0], ways[1], 0.5, metric)
    return gaps


def fair_parties(by_set: Mapping[str, Sequence[Result]]) -> Judgment:
    """Judge P7."""
    lines, closed, measured = [], [], []
    for dataset, results in by_set.items():
        metric = metric_of(dataset)
        gaps = party_gaps(results, metric)
        cells = {key: points(gap) for key, gap in gaps.items()}
        lines += markdown_table(
            [f"{dataset}, {metric} points", *COMPARED[:2]],
            (
                [_bold(method), *(cells.get((method, mode), "n/a") for mode in COMPARED[:2])]
                for method in METHODS
            ),
        )
        theirs = [abs(100 * gaps[name, "local"].mean) for name in BASELINES]
        ours = min(abs(100 * gaps[PAPER, mode].mean) for mode in COMPARED[:2])
        closed.append(ours < min(theirs) / 2)
        measured.append(f"{max(theirs):.1f} points (baseline), {ours:.1f} (`xvfl`) on {dataset}")
    return Judgment(grade(*closed), lines, {"by_set": "; ".join(measured)})


def lifted_confidence(figures: Mapping[str, Any]) -> Judgment:
    """Judge P9."""
    rows: dict[str, dict[str, float]] = {}
    rises = []
    for method, of_method in figures["methods"].items():
        rows[f"{method}, chosen image"] = of_method["example"]["confidence"]
        for party, of_party in of_method["absent"].items():
            means = {case: each["confidence"]["mean"] for case, each in of_party["cases"].items()}
            rows[f"{method}, mean of all images, {party} half absent"] = means
            if method == PAPER:
                rises.append(means["single-xcom"] - means["single"])
    lines = markdown_table(
        ["confidence", "alone", "with XCom", "both parties"],
        (
            [name, *(f"{of[case]:.3f}" for case in ("single", "single-xcom", "both"))]
            for name, of in rows.items()
        ),
    )
    example = rows[f"{PAPER}, chosen image"]
    chosen, rise = example["single-xcom"] - example["single"], min(rises)
    verdict = REPRODUCED if rise > LIFT else PARTLY if chosen > LIFT else NOT
    return Judgment(verdict, lines, {"chosen": chosen, "rise": rise})


def faster_page(figures: Mapping[str, Any]) -> Judgment:
    """Judge P10."""
    fitted, real = figures["known problem"]["exponent"], figures["digits"]
    known = fitted["sgd"] <= -0.45 and fitted["page"] <= -0.9
    faster = real["page"]["last loss"] < real["sgd"]["last loss"]
    exponents = {name: f"{fitted[name]:.2f}" for name in ("sgd", "page")}
    losses = [f"{real[name]['last loss']:.2f}" for name in ("sgd", "page")]
    lines = markdown_table(
        ["", "SGD", "PAGE"],
        [
            ["problem with known constants: exponent of T", *exponents.values()],
            ["digits: loss at the last round", *losses],
        ],
    )
    found = {name: text.replace("-", "−") for name, text in exponents.items()}
    return Judgment(grade(known, known and faster), lines, found)


RULES: dict[str, tuple[Callable[[Any], Judgment], str, str]] = {
    "P1": (ranking, "missing-rates", ""),
    "P2": (steady, "missing-rates", "utkface"),
    "P3": (small_gap, "missing-rates", "utkface"),
    "P4": (cifar_levels, "missing-rates", "cifar10"),
    "P5": (cifar_gain, "missing-rates", "cifar10"),
    "P6": (clinical_gain, "missing-rates", "physionet2012"),
    "P7": (fair_parties, "imbalance", ""),
    "P8": (ranking, "four-parties", ""),
    "P9": (lifted_confidence, "confidence", ""),
    "P10": (faster_page, "rounds", ""),
}
"""How each claim is judged: the rule, its figure, and its data set."""
TEXTS = tomllib.loads(Path(__file__).with_suffix(".toml").read_text(encoding="utf-8"))
CLAIMS = {
    name: Claim(**TEXTS[name], rule=rule, figure=figure, dataset=dataset)
    for name, (rule, figure, dataset) in RULES.items()
}


def lambda_table() -> list[str]:
    """Lay out the λ of the runs beside the paper's ranges."""
    rows = []
    for dataset, budget in FULL.items():
        ranges = LAMBDA_RANGES.get(PAPER_RANGES.get(dataset, dataset))
        if ranges is None or dataset == "mimic3":
            continue
        loss = missing_rates(dataset, budget)[0].config.loss
        cells = []
        for used, each in zip((loss.lambda1, loss.lambda2), ranges, strict=True):
            cells += [f"{used:g}", f"{min(each):g} to {max(each):g}"]
        rows.append([dataset, *cells])
    four = four_parties("cifar10", FULL["cifar10"])[0].config.loss
    rows.append(["four parties", f"{four.lambda1:g}", "0.01", f"{four.lambda2:g}", "0.01"])
    return markdown_table(["data set", "λ1", "paper's range", "λ2", "paper's range"], rows)


def lambda_text() -> str:
    """Say which λ the runs have."""
    sets = (d for d in FULL if d != "mimic3")
    losses = [missing_rates(dataset, FULL[dataset])[0].config.loss for dataset in sets]
    losses.append(four_parties("cifar10", FULL["cifar10"])[0].config.loss)
    told = dict.fromkeys(f"λ1 = {each.lambda1:g}, λ2 = {each.lambda2:g}" for each in losses)
    *most, four = told
    return f"These runs have {'; '.join(most)} (four parties: {four})."
