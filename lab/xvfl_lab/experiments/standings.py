"""Where `xvfl+` stands: against every rival, and by its aim on UTKFace."""

from collections.abc import Mapping, Sequence

from xvfl_lab.experiments.claims import Runs
from xvfl_lab.experiments.compare import Difference, mean, paired, values
from xvfl_lab.experiments.jobs import OURS
from xvfl_lab.experiments.summary import (
    AXES,
    JUDGED,
    Standing,
    by_place,
    methods_of,
    metric_of,
    place_text,
    standing,
)

AIM = 0.005
"""Accuracy that `xvfl+` may lose on UTKFace, assisted, from R_miss 0 to 0.9."""
SAYS_NOTHING = {"local": 1.0, "assisted": 0.0}
"""Rates at which a mode says nothing of its own."""


def standings(runs: Runs) -> dict[str, list[Standing]]:
    """Compare `xvfl+` with every rival, by data set, where the runs over missing rates are made."""
    return {
        dataset: standing(results, metric_of(dataset), JUDGED)
        for (figure, dataset), results in runs.items()
        if figure == "missing-rates"
    }


def verdicts(stands: Mapping[str, Sequence[Standing]]) -> list[str]:
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
    return f"| {dataset} | {mode} | {verdict} | {nearest.rival} | {_points(nearest.gap)} |"


def _points(gap: Difference) -> str:
    return f"{100 * gap.mean:+.2f} ± {100 * gap.error:.2f}"


def on_utkface(runs: Runs) -> list[str]:
    """Say what `xvfl+` loses on UTKFace with help, and where it begins."""
    results = runs.get(("missing-rates", "utkface"))
    if not results:
        return []
    lost, together = (
        paired(*(values(results, (OURS, mode), rate, "accuracy") for rate in (0.9, 0.0)))
        for mode in ("assisted", "collaborative")
    )
    begins = []
    for mode in ("local", "collaborative"):
        there = [m for m in methods_of(results) if values(results, (m, mode), 0.0, "accuracy")]
        means = {m: 100 * mean(results, (m, mode), 0.0, "accuracy").mean for m in there}
        best = max(means, key=lambda each: means[each])
        begins.append(f"{means[OURS]:.1f} in `{mode}` (best of all: {best}, {means[best]:.1f})")
    return [
        f"UTKFace, `assisted`, from R_miss 0 to 0.9: {_points(lost)} points (the aim, less than "
        f"{100 * AIM:g} lost: {_aim(lost)}). At 0 `assisted` asks nobody and is `local`; "
        f"`collaborative`, like with like, changes by {_points(together)}. At R_miss 0 `xvfl+` has "
        + " and ".join(begins)
        + ".",
        "",
    ]


def _aim(lost: Difference) -> str:
    """Say whether no more is lost than may be, and whether the seeds leave a doubt."""
    if lost.mean <= -AIM:
        return "**missed**"
    return "met" if lost.mean - 2 * lost.error > -AIM else "met in the mean, not beyond two errors"


def behind(runs: Runs) -> list[str]:
    """List where `xvfl+` is behind a rival, at any single place of any figure."""
    lines = []
    for (figure, dataset), results in runs.items():
        if figure in ("mode-gap", "ablations"):
            continue
        axis = AXES[figure]
        for place, some in by_place(results, axis).items():
            rate = some[0].setting.rate
            found = [
                f"{each.rival} by {-100 * each.gap.mean:.1f} in `{each.mode}`"
                for each in standing(some, metric_of(dataset), (rate,))
                if each.verdict == "behind" and rate != SAYS_NOTHING.get(each.mode)
            ]
            if found:
                where = f"{figure}, {dataset}, {axis.label} {place_text(place)}"
                lines.append(f"- {where}: {', '.join(found)}")
    if not lines:
        return []
    return [
        "Behind a rival at a single place of a figure, in points (Holm over the rivals there). "
        "Left out: `local` at R_miss 1, where a party sees nothing, and `assisted` at 0, where it "
        "asks nobody.",
        "",
        *lines,
        "",
    ]
