"""What the pages of the other figures show: one table and one paragraph, from their numbers."""

from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

from xvfl_lab.experiments import (
    dp,
    label_protection,
    party_worth,
    tuning_tables,
    unlabeled,
)
from xvfl_lab.experiments.claims import (
    PAPER,
    Cases,
    cases,
    faster_page,
    lifted_confidence,
)
from xvfl_lab.experiments.compare import Difference
from xvfl_lab.experiments.figure_tables import COMPARED, markdown_table, metric_of, points
from xvfl_lab.experiments.figures import OURS
from xvfl_lab.experiments.grid_summaries import LEVELS, MODES, Summary, span
from xvfl_lab.experiments.tree_runs import TREES, TREES_POOLED
from xvfl_lab.experiments.upload_runs import GRADIENTS, OLD, ONE_PROCESS, SETS, UPLOAD

Figures = Mapping[str, Any]
NO_NOISE = "ε = ∞"
"""The setting of `dp` that clips and adds no noise."""
DECODER = "decoder, 200 rows"
"""An attack on uploads that learns from known rows."""
UNSUPERVISED = ("ICA", "PCA", "differences, ICA", "differences, clusters")
"""Attacks on uploads that know no row of the party."""


def confidence(figures: Figures) -> Summary:
    """Summarize what XCom changes in the confidence of all test images."""
    lines = lifted_confidence(figures).lines
    seeds = [
        seed
        for of in figures["methods"].values()
        for half in of["absent"].values()
        for seed in half["seeds"]
    ]
    lifted = [100 * seed["share lifted by XCom"] for seed in seeds]
    changes = [
        100 * (seed["cases"]["single-xcom"]["accuracy"] - seed["cases"]["single"]["accuracy"])
        for seed in seeds
    ]
    like = sum(seed["share like the paper's"] * seed["images"] for seed in seeds)
    example, paper = figures["methods"][PAPER]["example"], figures["paper"]
    alone, completed = (example["confidence"][case] for case in ("single", "single-xcom"))
    finding = (
        f"The chosen image ({example['class']}) is the test image nearest to the paper's: XCom "
        f"raises its confidence from {alone:.3f} to {completed:.3f} (paper: {paper['single']} to "
        f"{paper['single-xcom']}). Over all test images the rise does not hold: XCom raises the "
        f"confidence of {span(lifted, 0)} % of the images, depending on seed, method and half, and "
        f"accuracy changes by {span(changes, 1)} points. {like:.0f} images come within 0.05 of all "
        "three of the paper's numbers. A likely reason: the completion is a function of the other "
        "half's embedding and adds no information to it. [Details](../figures.md#confidence)."
    )
    return Summary("Confidence in the true class", lines, finding)


def boundary(figures: Figures) -> Summary:
    """Summarize what DSAlign changes."""
    columns = {
        "accuracy own": "accuracy of own predictions, %",
        "accuracy completed": "from completed features, %",
        "accuracy joint": "of joint predictions, %",
        "agreement": "own equals joint, %",
    }
    weights = figures["weights"]

    def change(weight: str, name: str) -> str:
        gap = weights[weight][name]["difference"]
        return f"{100 * gap['mean']:+.1f} ± {100 * gap['error']:.1f}"

    rows = []
    for weight, of in weights.items():
        percent = [
            f"{100 * of[name]['mean']:.1f}"
            + (f" ({change(weight, name)})" if float(weight) else "")
            for name in columns
        ]
        rows.append([weight, *percent, f"{of['total variation']['mean']:.3f}"])
    none, default, strong = weights
    finding = (
        f"The default weight {default} changes predictions from completed features by "
        f"{change(default, 'accuracy completed')} points, own predictions by "
        f"{change(default, 'accuracy own')}, joint ones by {change(default, 'accuracy joint')}. "
        f"A weight of {strong} is too much: joint predictions change by "
        f"{change(strong, 'accuracy joint')}. The logits come nearer because all of them shrink; "
        "the probabilities are as far apart as before (total variation). The decision regions "
        f"hardly differ: at λ = {none} each party's own prediction is trained, too. "
        "[Details](../figures.md#boundary)."
    )
    header = ["λ1 = λ2", *columns.values(), "total variation own – joint"]
    title = f"Five seeds; in brackets the paired difference from λ = {none}, ± standard error"
    return Summary(title, markdown_table(header, rows), finding)


def rounds(figures: Figures) -> Summary:
    """Summarize PAGE against SGD."""
    known, digits = figures["known problem"], figures["digits"]
    sgd, page = (f"T^{known['exponent'][each]:.2f}".replace("-", "−") for each in ("sgd", "page"))
    finding = (
        "On a problem with known constants, where the theorem's assumptions hold, the average "
        f"‖∇L‖² falls as {sgd} under SGD and {page} under PAGE (theory: −0.5 and −1), and PAGE "
        "ends lower "
        f"({known['last']['page']:.4f} against {known['last']['sgd']:.4f}). On the digits PAGE is "
        f"behind: its best step size is {digits['page']['step size']:g}, that of SGD "
        f"{digits['sgd']['step size']:g}, at equal gradient evaluations a round, and its final "
        f"loss is {digits['page']['last loss']:.2f} against {digits['sgd']['last loss']:.2f}. "
        "[Details](../figures.md#rounds)."
    )
    return Summary("Fitted exponent and final loss", faster_page(figures).lines, finding)


def protection(figures: Figures) -> Summary:
    """Summarize what gradients reveal about labels, and what protection costs."""
    table = label_protection.summary(dict(figures))

    def row(dataset: str, setting: str) -> dict[str, Any]:
        return table[f"{dataset} {setting}"]

    rows = [
        [
            dataset,
            setting,
            f"{each['collaborative']:.1f}",
            f"{each['cost']['collaborative']:+.2f} ± {each['error']['collaborative']:.2f}",
            f"{max(each['leakage'].values()):.3f}",
        ]
        for dataset, settings in figures.items()
        for setting in settings
        for each in [row(dataset, setting)]
    ]

    def told(setting: str) -> str:
        some = [row(dataset, setting) for dataset in figures]
        leaks = (max(each["leakage"].values()) for each in some)
        costs = (each["cost"]["collaborative"] for each in some)
        return f"{span(leaks, 2)} (cost {span(costs, 1)} points)"

    finding = (
        "Without protection the best attack ranks the labels of training rows with an AUROC of "
        f"{told('off')}. Noise of 1 lowers it to {told('noise 1')}, noise of 2 to "
        f"{told('noise 2')}. `no_gradients`, the default of a federation, sends no gradients: "
        f"{told('no_gradients')}. A negative cost is a gain. The attacks use the norms, directions "
        "and singular vectors of the gradients of all epochs."
    )
    header = [
        "data",
        "setting",
        "`collaborative`",
        "cost in points",
        "best attack, AUROC (guess: 0.5)",
    ]
    title = "Score of `xvfl+` in % (AUROC; digits: accuracy), cost ± standard error, and leakage"
    return Summary(title, markdown_table(header, rows), finding)


def without_labels(figures: Figures) -> Summary:
    """Summarize what unlabeled rows add."""
    table = unlabeled.summary(dict(figures))
    rows = []
    for dataset, settings in figures.items():
        count = settings["all rows"]["rows"]
        gains = (table[f"{dataset} {mode}"] for mode in COMPARED)
        cells = (
            f"{g['with']:.1f} ({g['gain']:+.2f} ± {g['error']:.2f}, {g['verdict']})" for g in gains
        )
        rows.append([f"{dataset}, {count['labeled']} + {count['unlabeled']:,}", *cells])
    verdicts = {
        dataset: [table[f"{dataset} {mode}"]["verdict"] for mode in COMPARED] for dataset in figures
    }
    better = [d for d, of in verdicts.items() if set(of) == {"ahead"}]
    level = [d for d, of in verdicts.items() if "ahead" not in of]
    finding = (
        "`xvfl+` learns from rows without a label by reconstruction and guidance. With few "
        f"labels this is a significant gain in every mode on {_join(better)}, "
        f"and in none on {_join(level)}."
    )
    header = ["data set, labeled + unlabeled rows", *(f"`{mode}`" for mode in COMPARED)]
    title = "Score in % with all rows (gain over the labeled rows alone in points ± standard error)"
    return Summary(title, markdown_table(header, rows), finding)


def upload(figures: Figures) -> Summary:
    """Summarize one upload against its rivals, and what attacks recover from it."""
    rows: list[list[str]] = []
    decoded: list[float] = []
    verdicts: dict[str, list[str]] = {ONE_PROCESS: [], GRADIENTS: [], OLD: []}
    for set_name, arms in figures["runs"].items():
        if UPLOAD not in arms:
            continue
        modes = arms[UPLOAD]["modes"]
        for rival, found in verdicts.items():
            found += [
                Difference(**of["minus"][rival]).verdict
                for of in modes.values()
                if rival in of["minus"]
            ]
        joint = modes["collaborative"]
        rival = GRADIENTS if SETS[set_name].image else ONE_PROCESS
        gaps = (joint["minus"].get(each) for each in (rival, OLD))
        score = _mean(joint["means"].values())
        ours, theirs = (figures["recovery"].get(set_name, {}).get(arm, {}) for arm in (UPLOAD, OLD))
        recovery = (_recovered(each) for each in (ours, theirs))
        rows.append([set_name, f"{score:.1f}", *map(_interval, gaps), *recovery])
        decoded += [_mean(of[DECODER]["excess"]) for of in ours.values() if DECODER in of]
    known = f"; a decoder of 200 known rows reaches {span(decoded, 2)}" if decoded else ""
    finding = (
        f"Over data sets and modes, one upload is {_count(verdicts[ONE_PROCESS])} against training "
        f"in one process, {_count(verdicts[GRADIENTS])} against interactive training with "
        f"gradients, and {_count(verdicts[OLD])} against the federation of version 0.3.0 (5 %, "
        "paired). An upload does not hide the columns: the best attack without a known row "
        "recovers numbers as in the last two columns (mean |ρ| above chance; of categories alone "
        f"|2·AUC − 1|; 1 is exact){known}. Variants (whitening, copies, width, skip) are in the "
        "complete tables."
    )
    header = ["", "score", "minus one process (images: gradients)", f"minus {OLD}"]
    header += [f"recovered, {UPLOAD}", f"recovered, {OLD}"]
    title = "`collaborative` by one upload in %, mean of all R_miss; differences in points [95 %]"
    return Summary(title, markdown_table(header, rows), finding)


def _recovered(by_metric: Mapping[str, Mapping[str, Any]]) -> str:
    # Numbers, because runs of version 0.3.0 have no score of categories; categories if alone.
    of = by_metric.get("numbers") or by_metric.get("categories", {})
    best = [_mean(of[attack]["excess"]) for attack in UNSUPERVISED if attack in of]
    return f"{max(best):.2f}" if best else "–"


def _interval(gap: Mapping[str, Any] | None) -> str:
    if gap is None:
        return "–"
    of = Difference(**gap)
    return f"{of.mean:+.2f} [{of.mean - of.half_width:+.2f}, {of.mean + of.half_width:+.2f}]"


def tuning(figures: Figures) -> Summary:
    """Summarize the standing of `xvfl` after tuning."""
    compared = tuning_tables.with_baselines(figures)

    def total(method: str, mode: str) -> Cases:
        of = (cases(some, method, mode, metric_of(d)) for d, some in compared.items())
        return sum(of, Cases())

    names = {PAPER: "`xvfl`, λ chosen", tuning_tables.UNTUNED: "`xvfl`, λ1 = λ2 = 0.1"}
    names[OURS] = f"`{OURS}`, default settings"
    rows = [[name, *(total(m, mode) for mode in COMPARED)] for m, name in names.items()]
    cells = [cell for _, _, *of in tuning_tables.changes(figures) for cell in of]
    finding = (
        "Validation rows chose λ of `xvfl` from the paper's ranges, and learning rate and weight "
        "decay of the baselines, with seven or eight trials each. Against λ1 = λ2 = 0.1, the "
        f"chosen λ is {_count(cell.rsplit(', ')[-1] for cell in cells)} (data sets, rates, modes; "
        "not corrected for their number). The search of λ does not improve the standing of `xvfl`. "
        "Its learning rate was not tuned."
    )
    title = (
        "Cases (a missing rate on a table) against the tuned baselines: ahead of all, best mean, "
        "behind one"
    )
    return Summary(title, markdown_table(["", *COMPARED], rows), finding)


def worth(figures: Figures) -> Summary:
    """Summarize how well the Shapley values of one model agree with retrained models."""
    compared = party_worth.summary(dict(figures))
    kinds = ("default_noise", "noise")

    def inside(datasets: Iterable[str], kind: str) -> str:
        found = [each for dataset in datasets for each in figures[dataset][kind]]
        return f"{sum(each['low'] <= 0 <= each['high'] for each in found)} of {len(found)}"

    rows = [
        [
            dataset,
            f"{of['agreed']} of {of['decided']}",
            f"{of['share_error']:.3f}",
            f"{100 * of['cost']:.1f} %",
            *(inside([dataset], kind) for kind in kinds),
        ]
        for dataset, of in compared.items()
    ]
    agreed, decided = (sum(of[name] for of in compared.values()) for name in ("agreed", "decided"))
    errors = [of["share_error"] for of in compared.values()]
    default, single = (inside(figures, kind) for kind in kinds)
    finding = (
        f"One model orders the parties as retrained models do in {agreed} of {decided} pairs whose "
        "retrained values differ by two standard errors; the shares differ by "
        f"{span(errors, 3)} on average. The explanation takes "
        f"{span((100 * of['cost'] for of in compared.values()), 1)} % of the training time. The "
        f"joint 95 % interval of a party of noise contains 0 in {default} models with the default "
        f"settings and in {single} single nets."
    )
    header = ["", "pairs in the same order", "mean error of the shares", "cost of training time"]
    header += ["noise: interval contains 0, default models", "single nets"]
    return Summary(
        "Agreement of one model with retrained models", markdown_table(header, rows), finding
    )


def privacy(figures: Figures) -> Summary:
    """Summarize accuracy under differential privacy, and what an attack finds."""
    columns = list(dp.settings())
    rows = [
        [f"{dataset}, `{mode}`", *(dp.spread(scores[name], mode) for name in columns)]
        for dataset, scores in figures["scores"].items()
        for mode in reversed(MODES)
    ]
    found = [each for of in figures["attack"].values() for each in of.values()]
    stated = sorted({each["stated"] for each in found}, reverse=True)
    bounds = "; ".join(
        f"{max(e['found'] for e in found if e['stated'] == at):.2f} at ε = {at:g}" for at in stated
    )
    clipping = [
        _mean(each[mode] for each in scores["off"]) - _mean(each[mode] for each in scores[NO_NOISE])
        for scores in figures["scores"].values()
        for mode in MODES
    ]
    exceeded = sum(each["found"] > each["stated"] for each in found)
    finding = (
        "With the noise of these ε, predictions are hardly better than a guess (50). The clipped "
        f"encoder without noise ({NO_NOISE}) costs {span(clipping, 1)} points. The largest lower "
        "bound on ε that an attack on the releases of one row finds with 95 % confidence is "
        f"{bounds}; without the noise it finds {max(e['found without noise'] for e in found):.1f}. "
        f"The stated ε is exceeded in {exceeded} of {len(found)} attacks. See "
        "[differential privacy](../differential-privacy.md)."
    )
    title = "AUROC in %, mean ± standard deviation over seeds"
    return Summary(title, markdown_table(["", *columns], rows), finding)


def trees(figures: Figures) -> Summary:
    """Summarize `xvfl+` against gradient-boosted trees."""
    rivals = [("local", TREES), ("collaborative", TREES), ("collaborative", TREES_POOLED)]
    rows, verdicts = [], []
    for dataset, of in figures.items():
        found = {(e["mode"], e["rival"]): e for e in of["standings"]}
        some = [found[each] for each in rivals]
        verdicts += [each["verdict"] for each in some]
        gaps = (f"{points(Difference(**e['gap']))}, {e['verdict']}" for e in some)
        seconds = of["cpu_seconds"]
        rows.append([dataset, *gaps, f"{seconds[TREES]:.1f}", f"{seconds[TREES_POOLED]:.1f}"])
    finding = (
        f"Against LightGBM with default settings, `{OURS}` is {_count(verdicts)} on the three "
        "tables. Trees take a tenth of the time or less and need no GPU. The mean of the parties' "
        "trees needs the labels at every party, and pooled columns need all data in one place; "
        "each tree is fitted with and without random masks, and validation rows choose. "
        "[Baselines](../baselines.md#gradient-boosted-trees) has 17 more tables."
    )
    header = ["xvfl+ minus", "trees, `local`", "mean of the parties' trees, `collaborative`"]
    header += ["trees on pooled columns", "CPU s of trees", "CPU s pooled"]
    title = "AUROC points, mean of R_miss 0.5 and 0.9, ten seeds, ± standard error"
    return Summary(title, markdown_table(header, rows), finding)


def _count(verdicts: Iterable[str]) -> str:
    counts = Counter(verdicts)
    told = ", ".join(f"{level} in {counts[level]}" for level in LEVELS)
    return f"{told} of {counts.total()} comparisons"


def _join(names: Sequence[str]) -> str:
    return " and ".join(names) or "no data set"


def _mean(values: Iterable[float]) -> float:
    listed = list(values)
    return sum(listed) / len(listed)


SUMMARIES: dict[str, Callable[[Figures], Summary]] = {
    "confidence": confidence,
    "boundary": boundary,
    "rounds": rounds,
    "label-protection": protection,
    "unlabeled": without_labels,
    "upload": upload,
    "tuning": tuning,
    "party-worth": worth,
    "dp": privacy,
    "trees": trees,
}
"""Summaries by figure."""
