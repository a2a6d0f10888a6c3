"""The paper's claims P1–P10, judged from the stored runs.

Method `xvfl` is judged against the paper's own four baselines; LASER, `laser+mask` and
`xvfl+` are shown beside it and do not count. The paper's "independent" prediction of a party has
two readings, `local` (the party alone) and `assisted` (with its peers' embeddings), and is
measured over (row, party) pairs where the party is incomplete, or over all pairs of non-aligned
rows. Baselines have only `local`. Differences are tested with Student's t over seeds, with Holm's
correction over the baselines.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from xvfl.config import LAMBDA_RANGES
from xvfl_lab.experiments.compare import difference, holm, mean, values
from xvfl_lab.experiments.figure_tables import metric_of, points, row, rule
from xvfl_lab.experiments.figures import FULL, OURS, four_parties, missing_rates
from xvfl_lab.experiments.runner import WHOLE, Result

Runs = Mapping[tuple[str, str], Sequence[Result]]
"""Results by figure and data set."""
PAPER = "xvfl"
BASELINES = ("standalone", "vanilla", "iavfl", "fedcvt")
"""The paper's own."""
OTHERS = ("laser", "laser+mask", OURS)
"""Shown beside, not judged."""
REPRODUCED, LARGELY, PARTLY, NOT, OPEN = (
    "reproduced",
    "largely reproduced",
    "partly reproduced",
    "not reproduced",
    "open",
)
PAPER_RANGES = {"physionet2012": "mimic3", "tinyimagenet5": "tinyimagenet"}
"""Data sets that the paper's table of λ lists under another name; PhysioNet stands in for MIMIC."""


@dataclass(frozen=True)
class Evidence:
    """What the claims are judged from."""

    runs: Runs
    figures: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)
    """Numbers of the figures that are not grids of runs, by name."""


@dataclass(frozen=True)
class Answer:
    """A verdict."""

    verdict: str
    measured: str
    """The one number."""
    details: Sequence[str] = ()
    """Markdown lines behind it."""


@dataclass(frozen=True)
class Claim:
    """A claim of the paper."""

    text: str
    paper: str
    """The paper's number."""
    judge: Callable[[Evidence], Answer]


NO_RUNS = Answer(OPEN, "no runs yet")


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
        return f"{self.ahead} ahead, {self.best} best, {self.behind} behind of {self.total}"

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
    theirs = "local" if mode == "assisted" else mode
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


def _ranking(evidence: Evidence, figure: str, note: str) -> Answer:
    """Count the cases of a figure on all its data sets."""
    by_set = {d: r for (name, d), r in evidence.runs.items() if name == figure}
    if not by_set:
        return NO_RUNS
    modes = ("local", "assisted", "collaborative")
    lines = [row([f"{PAPER} on", *modes]), rule(3)]
    totals = {(m, mode): Cases() for m in (PAPER, *OTHERS) for mode in modes}
    for dataset, results in by_set.items():
        for method, mode in totals:
            totals[method, mode] += cases(results, method, mode, metric_of(dataset))
        cells = [str(cases(results, PAPER, mode, metric_of(dataset))) for mode in modes]
        lines.append(row([dataset, *cells]))
    lines.append(row(["all", *(str(totals[PAPER, mode]) for mode in modes)]))
    lines += ["", row(["beside, on all data sets", *modes]), rule(3)]
    for method in OTHERS:
        counted = [totals[method, mode] for mode in modes]
        lines.append(row([method, *(str(each) if each.total else "n/a" for each in counted)]))
    judged = totals[PAPER, "assisted"] + totals[PAPER, "collaborative"]
    text = (
        "A case is a missing rate. *Ahead*: of every baseline. *Best*: the best mean. Judged are "
        "`assisted` and `collaborative` together."
    )
    measured = f"ahead of all baselines in {judged.ahead} of {judged.total} cases"
    if judged.behind == 0:
        measured += ", behind in none"
    return Answer(judged.verdict, measured, [text, "", *lines, "", note])


def best_everywhere(evidence: Evidence) -> Answer:
    """Judge P1."""
    return _ranking(
        evidence,
        "missing-rates",
        "In `local` with few observed features `xvfl` loses its lead: it never trains a party to "
        "predict from its own incomplete rows. CIFAR-10 and UTKFace have "
        "three seeds, with which Student's t requires differences above 4.3 standard errors before "
        "any correction.",
    )


def same_with_four(evidence: Evidence) -> Answer:
    """Judge P8."""
    return _ranking(
        evidence,
        "four-parties",
        "λ1 = λ2 = 0.01 and batch size 100 are the paper's. `fedcvt` is for two parties. CIFAR-10 "
        "has half the rows and epochs of the runs with two parties.",
    )


def _percent(results: Sequence[Result], method: str, mode: str, rate: float, metric: str) -> float:
    return 100 * mean(results, (method, mode), rate, metric).mean


def all_pairs(results: Sequence[Result], method: str, mode: str, rate: float) -> float:
    """Estimate the accuracy over all pairs of non-aligned rows, in percent.

    On average half of the parties are incomplete in a non-aligned row. A full party predicts as
    it does on whole rows, of which the stored metric covers all parties.
    """
    incomplete = _percent(results, method, mode, rate, "accuracy")
    return (incomplete + _percent(results, method, "local" + WHOLE, rate, "accuracy")) / 2


def readings(
    results: Sequence[Result], method: str, rate: float, metric: str
) -> dict[str, float | None]:
    """Return every reading of independent prediction, and collaborative, in percent."""
    has = {way for each in results if each.config.name == method for way in each.metrics}
    by_reading: dict[str, float | None] = {}
    for mode in ("local", "assisted"):
        by_reading[mode] = _percent(results, method, mode, rate, metric) if mode in has else None
    for mode in ("local", "assisted"):
        counted = mode in has and metric == "accuracy"
        by_reading[f"{mode}, all pairs"] = (
            all_pairs(results, method, mode, rate) if counted else None
        )
    both = "collaborative"
    by_reading[both] = _percent(results, method, both, rate, metric) if both in has else None
    return by_reading


def _level_table(results: Sequence[Result], rate: float, metric: str) -> list[str]:
    names = list(readings(results, PAPER, rate, metric))
    lines = [row([f"{metric} in % at R_miss {rate:g}", *names]), rule(len(names))]
    for method in (PAPER, *BASELINES, *OTHERS):
        cells = readings(results, method, rate, metric).values()
        texts = ["n/a" if each is None else f"{each:.1f}" for each in cells]
        lines.append(row([f"**{method}**" if method == PAPER else method, *texts]))
    return lines


ALL_PAIRS = (
    "*All pairs* is an estimate over all (row, party) pairs of non-aligned rows: the mean of the "
    "incomplete pairs and of a party's prediction on whole rows."
)


def steady(evidence: Evidence) -> Answer:
    """Judge P2."""
    results = evidence.runs.get(("missing-rates", "utkface"))
    if not results:
        return NO_RUNS
    levels = {
        method: [readings(results, method, rate, "accuracy") for rate in (0.0, 0.9)]
        for method in (PAPER, *BASELINES, *OTHERS)
    }
    names = list(levels[PAPER][0])
    lines = [row(["points lost from R_miss 0 to 0.9", *names]), rule(len(names))]
    lost: dict[tuple[str, str], float] = {}
    for method, (before, after) in levels.items():
        cells = []
        for name in names:
            a, b = before[name], after[name]
            if a is not None and b is not None:
                lost[method, name] = a - b
            cells.append(f"{lost[method, name]:.1f}" if (method, name) in lost else "n/a")
        lines.append(row([f"**{method}**" if method == PAPER else method, *cells]))
    ours = min(lost[PAPER, name] for name in names if name != "collaborative")
    theirs = min(lost[name, "local"] for name in BASELINES)
    holds = [ours < 0.5, theirs > 20]
    verdict = REPRODUCED if all(holds) else PARTLY if any(holds) else NOT
    note = (
        f"{ALL_PAIRS} At R_miss 0 `assisted` is `local`, since nothing is missing. The baselines "
        f"lose at least {theirs:.1f} points."
    )
    measured = f"{lost[PAPER, 'assisted']:.1f} points (`assisted`); baselines ≥ {theirs:.0f}"
    return Answer(verdict, measured, [*lines, "", note])


def small_gap(evidence: Evidence) -> Answer:
    """Judge P3."""
    results = evidence.runs.get(("missing-rates", "utkface"))
    if not results:
        return NO_RUNS
    ours = readings(results, PAPER, 0.9, "accuracy")
    independent, together = ours["assisted"], ours["collaborative"]
    assert independent is not None and together is not None
    gap = together - independent
    gaps = [
        _percent(results, name, "collaborative", 0.9, "accuracy")
        - _percent(results, name, "local", 0.9, "accuracy")
        for name in BASELINES
        if values(results, (name, "collaborative"), 0.9, "accuracy")
    ]
    holds = [abs(gap) < 0.2, min(gaps) > 20]
    verdict = REPRODUCED if all(holds) else PARTLY if any(holds) else NOT
    note = (
        f"{ALL_PAIRS} The gaps of the baselines that have both modes: "
        f"{', '.join(f'{each:.1f}' for each in gaps)} points. With two parties of which one is "
        "incomplete, `assisted` and `collaborative` are nearly the same decision."
    )
    measured = f"{gap:.2f} points (`assisted`); baselines ≥ {min(gaps):.0f}"
    return Answer(verdict, measured, [*_level_table(results, 0.9, "accuracy"), "", note])


def cifar_levels(evidence: Evidence) -> Answer:
    """Judge P4."""
    results = evidence.runs.get(("missing-rates", "cifar10"))
    if not results:
        return NO_RUNS
    ours = readings(results, PAPER, 0.5, "accuracy")
    independent = max(ours[name] or 0.0 for name in ours if name != "collaborative")
    baselines = [readings(results, name, 0.5, "accuracy") for name in BASELINES]
    theirs = max(each["local, all pairs"] or 0.0 for each in baselines)
    together = ours["collaborative"] or 0.0
    holds = [independent > 45 and theirs < 35, together > 65]
    verdict = REPRODUCED if all(holds) else PARTLY if any(holds) else NOT
    note = (
        f"{ALL_PAIRS} 16,000 of the 50,000 training rows, 20 epochs and small nets lower every "
        "method."
    )
    measured = (
        f"{independent:.1f} against {theirs:.1f} (`assisted`, all pairs); collaborative "
        f"{together:.1f}"
    )
    return Answer(verdict, measured, [*_level_table(results, 0.5, "accuracy"), "", note])


def _gains(results: Sequence[Result], mode: str, metric: str) -> dict[float, float]:
    """Return the lead over the best baseline in points, by rate; independent without R_miss 1."""
    theirs = "local" if mode == "assisted" else mode
    names = [name for name in BASELINES if values(results, (name, theirs), 0.5, metric)]
    return {
        rate: _percent(results, PAPER, mode, rate, metric)
        - max(_percent(results, name, theirs, rate, metric) for name in names)
        for rate in sorted({each.config.rate for each in results})
        if theirs != "local" or rate < 1
    }


def _largest_gain(results: Sequence[Result], metric: str) -> tuple[float, float, list[str]]:
    """Return the largest lead of `assisted` and its rate, and a table of all leads."""
    modes = ("local", "assisted", "collaborative")
    gains = {mode: _gains(results, mode, metric) for mode in modes}
    rates = sorted(gains["collaborative"])
    lines = [
        row(["lead over the best baseline, R_miss", *(f"{rate:g}" for rate in rates)]),
        rule(len(rates)),
    ]
    for mode in modes:
        cells = [f"{gains[mode][rate]:+.1f}" if rate in gains[mode] else "–" for rate in rates]
        lines.append(row([mode, *cells]))
    rate = max(gains["assisted"], key=lambda each: gains["assisted"][each])
    return gains["assisted"][rate], rate, lines


def cifar_gain(evidence: Evidence) -> Answer:
    """Judge P5."""
    results = evidence.runs.get(("missing-rates", "cifar10"))
    if not results:
        return NO_RUNS
    gain, rate, lines = _largest_gain(results, "accuracy")
    together = max(_gains(results, "collaborative", "accuracy").values())
    verdict = REPRODUCED if gain >= 15 else PARTLY if gain > 0 else NOT
    note = (
        "`assisted` is compared with the baselines' `local`: they have no such mode. In "
        f"`collaborative` the lead is at most {together:.1f} points."
    )
    measured = f"{gain:+.1f} points (`assisted`, R_miss {rate:g})"
    return Answer(verdict, measured, [*lines, "", note])


def clinical_gain(evidence: Evidence) -> Answer:
    """Judge P6: open, since the data are not the paper's."""
    results = evidence.runs.get(("missing-rates", "physionet2012"))
    if not results:
        return NO_RUNS
    gain, rate, lines = _largest_gain(results, "auroc")
    ours = _percent(results, PAPER, "assisted", rate, "auroc")
    note = (
        "MIMIC-III needs credentials; PhysioNet 2012 stands in, with other patients, and AUROC "
        "decides, since the majority class alone has a high accuracy. The largest lead is "
        f"{100 * gain / (ours - gain):.0f} % of the best baseline's AUROC."
    )
    measured = f"{gain:+.1f} AUROC points on PhysioNet 2012 (`assisted`, R_miss {rate:g})"
    return Answer(OPEN, measured, [*lines, "", note])


def fair_parties(evidence: Evidence) -> Answer:
    """Judge P7."""
    by_set = {d: r for (figure, d), r in evidence.runs.items() if figure == "imbalance"}
    if not by_set:
        return NO_RUNS
    lines, closed, measured = [], [], []
    for dataset, results in by_set.items():
        gaps = {}
        metric = metric_of(dataset)
        lines += [row([f"{dataset}, {metric} points", "local", "assisted"]), rule(2)]
        for method in (PAPER, *BASELINES, *OTHERS):
            mine = [each for each in results if each.config.name == method]
            cells = []
            for mode in ("local", "assisted"):
                ways = [way for way in mine[0].metrics if way.startswith(f"{mode}/")][:2]
                if len(ways) == 2:
                    larger, smaller = ((method, way) for way in ways)
                    gaps[method, mode] = difference(results, larger, smaller, 0.5, metric)
                cells.append(points(gaps[method, mode]) if (method, mode) in gaps else "n/a")
            lines.append(row([f"**{method}**" if method == PAPER else method, *cells]))
        lines.append("")
        theirs = [abs(100 * gaps[name, "local"].mean) for name in BASELINES]
        ours = [abs(100 * gaps[PAPER, mode].mean) for mode in ("local", "assisted")]
        closed.append(min(ours) < min(theirs) / 2)
        measured.append(
            f"{max(theirs):.1f} points (baseline), {min(ours):.1f} (`xvfl`) on {dataset}"
        )
    note = (
        "Party with 80 % minus party with 20 % of the full rows, ± standard error over seeds, on "
        "rows where the party is incomplete. The baselines have almost no difference to close "
        "here: with half of its features missing, either party alone does poorly. Judged: the "
        "smaller of `local` and `assisted` against half of the smallest difference of a "
        "baseline. The summary shows the largest one."
    )
    verdict = REPRODUCED if all(closed) else PARTLY if any(closed) else NOT
    return Answer(verdict, "; ".join(measured), [*lines, note])


LIFT = 0.02
"""A rise of the mean confidence that counts."""


def lifted_confidence(evidence: Evidence) -> Answer:
    """Judge P9."""
    figures = evidence.figures.get("confidence")
    if not figures:
        return NO_RUNS
    lines = [row(["confidence", "alone", "with XCom", "both parties"]), rule(3)]
    rises: dict[str, list[float]] = {}
    for method, method_figures in figures["methods"].items():
        example = method_figures["example"]["confidence"]
        cases_of = {f"{method}, chosen image": example}
        for party, measured in method_figures["absent"].items():
            means = {case: each["confidence"]["mean"] for case, each in measured["cases"].items()}
            cases_of[f"{method}, mean of all images, {party} half absent"] = means
            rises.setdefault(method, []).append(means["single-xcom"] - means["single"])
        for name, each in cases_of.items():
            cells = [f"{each[case]:.3f}" for case in ("single", "single-xcom", "both")]
            lines.append(row([name, *cells]))
    example = figures["methods"][PAPER]["example"]["confidence"]
    chosen = example["single-xcom"] - example["single"]
    rise = min(rises[PAPER])
    verdict = REPRODUCED if rise > LIFT else PARTLY if chosen > LIFT else NOT
    note = (
        "The chosen image is the test image whose three confidences are nearest to the paper's. On "
        "average over all test images XCom adds nothing to what the present half shows."
    )
    measured_text = f"{chosen:+.2f} on a chosen image, {rise:+.3f} on average"
    return Answer(verdict, measured_text, [*lines, "", note])


def faster_page(evidence: Evidence) -> Answer:
    """Judge P10."""
    figures = evidence.figures.get("rounds")
    if not figures:
        return NO_RUNS
    fitted, real = figures["known problem"]["exponent"], figures["digits"]
    known = fitted["sgd"] <= -0.45 and fitted["page"] <= -0.9
    faster = real["page"]["last loss"] < real["sgd"]["last loss"]
    verdict = REPRODUCED if known and faster else PARTLY if known else NOT
    lines = [
        row(["", "SGD", "PAGE"]),
        rule(2),
        row(["problem with known constants: exponent of T", *_cells(fitted)]),
        row(["digits: loss at the last round", *_cells(real, "last loss")]),
    ]
    note = (
        "On digits, with equal gradient evaluations a round, PAGE needs smaller steps than SGD, "
        "and 400 rounds are too few for its better exponent. At a fixed batch size O(1/T) holds "
        "down to a floor of σ²/b."
    )
    measured = f"T^{fitted['sgd']:.2f} and T^{fitted['page']:.2f}; on digits SGD is faster"
    return Answer(verdict, measured.replace("-", "−"), [*lines, "", note])


def _cells(by_name: Mapping[str, Any], key: str = "") -> list[str]:
    return [f"{by_name[name][key] if key else by_name[name]:.2f}" for name in ("sgd", "page")]


CLAIMS: dict[str, Claim] = {
    "P1": Claim(
        "X-VFL is the best method at every missing rate, in both modes (six data sets)",
        "always",
        best_everywhere,
    ),
    "P2": Claim(
        "UTKFace: independent accuracy hardly falls from R_miss 0 to 0.9",
        "< 0.5 points; baselines ~30",
        steady,
    ),
    "P3": Claim(
        "UTKFace at R_miss 0.9: independent is as good as collaborative",
        "< 0.2 points; baselines > 20",
        small_gap,
    ),
    "P4": Claim(
        "CIFAR-10 at R_miss 0.5: levels of accuracy",
        "> 45 against < 35; collaborative > 65",
        cifar_levels,
    ),
    "P5": Claim("CIFAR-10: lead over the baselines", "+15 points", cifar_gain),
    "P6": Claim("MIMIC-III: lead over the baselines", "+43 points", clinical_gain),
    "P7": Claim(
        "Imbalance 80 : 20: difference between the parties",
        "36 points (baseline), 8.4 (X-VFL)",
        fair_parties,
    ),
    "P8": Claim("Four parties: the same trends", "always best", same_with_four),
    "P9": Claim("XCom raises the confidence on an image with an absent half", "+0.25",
                lifted_confidence),
    "P10": Claim("‖∇L‖² falls with the rounds T under SGD and PAGE", "T^−0.5 and T^−1",
                 faster_page),
}  # fmt: skip


def lambda_table() -> list[str]:
    """Lay out the λ of the runs beside the paper's ranges."""
    lines = [row(["data set", "λ1", "paper's range", "λ2", "paper's range"]), rule(4)]
    for dataset, budget in FULL.items():
        ranges = LAMBDA_RANGES.get(PAPER_RANGES.get(dataset, dataset))
        if ranges is None or dataset == "mimic3":
            continue
        loss = missing_rates(dataset, budget)[0].config.loss
        cells = []
        for used, each in zip((loss.lambda1, loss.lambda2), ranges, strict=True):
            cells += [f"{used:g}", f"{min(each):g} to {max(each):g}"]
        lines.append(row([dataset, *cells]))
    four = four_parties("cifar10", FULL["cifar10"])[0].config.loss
    cells = [f"{four.lambda1:g}", "0.01", f"{four.lambda2:g}", "0.01"]
    return [*lines, row(["four parties", *cells])]
