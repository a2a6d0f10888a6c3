"""Where `xvfl+` stands against every rival."""

from collections.abc import Mapping, Sequence

from xvfl_lab.experiments.claims import Runs
from xvfl_lab.experiments.figure_tables import (
    COMPARED,
    JUDGED,
    PEERS,
    Standing,
    axis_of,
    by_position,
    markdown_table,
    metric_of,
    points,
    position_text,
    standing,
)

UNINFORMATIVE = {"local": 1.0, "assisted": 0.0}
"""Rates at which a mode is left out: a party alone observes nothing, or no peer is needed."""

Standings = Mapping[str, Sequence[Standing]]
"""By data set."""


def standings(runs: Runs) -> dict[str, list[Standing]]:
    """Compare `xvfl+` with every rival on each data set of the figure over missing rates."""
    return {
        dataset: standing(results, metric_of(dataset), JUDGED)
        for (figure, dataset), results in runs.items()
        if figure == "missing-rates"
    }


def overall(rivals: Sequence[Standing]) -> str:
    """Combine the verdicts against all rivals in one mode."""
    verdicts = {each.verdict for each in rivals}
    if "behind" in verdicts:
        return "behind"
    return "ahead" if verdicts == {"ahead"} else "level"


def nearest_rival(compared: Sequence[Standing], mode: str) -> Standing:
    """Return the rival with the smallest distance in a mode."""
    rivals = (each for each in compared if each.mode == mode)
    return min(rivals, key=lambda each: each.gap.mean)


def against_rivals(standings: Standings) -> list[tuple[str, str, str, Standing]]:
    """Return data set, mode, overall verdict and the nearest rival, without `assisted`."""
    return [
        (dataset, mode, overall([one for one in of if one.mode == mode]), nearest_rival(of, mode))
        for dataset, of in standings.items()
        for mode in ("local", "collaborative")
    ]


def verdict_table(standings: Standings) -> list[str]:
    """Lay out verdict, difference and nearest rival: a row a data set, a column a mode."""
    cells = {
        (dataset, mode): f"{verdict}: {points(nearest.gap)} `{nearest.rival}`"
        for dataset, mode, verdict, nearest in against_rivals(standings)
    }
    for dataset, of in standings.items():
        peers = next(each for each in of if each.rival == PEERS)
        cells[dataset, peers.mode] = f"{peers.verdict}: {points(peers.gap)} {PEERS}"
    return markdown_table(
        ["data set", *(f"`{mode}`" for mode in COMPARED)],
        ([dataset, *(cells[dataset, mode] for mode in COMPARED)] for dataset in standings),
    )


def behind(runs: Runs) -> list[str]:
    """List where `xvfl+` is behind a rival at a single position of a figure."""
    lines = []
    for (figure, dataset), results in runs.items():
        if figure in ("mode-gap", "ablations"):
            continue
        axis = axis_of(figure)
        for at, some in by_position(results, axis).items():
            rate = some[0].config.rate
            rivals = [
                f"{each.rival} by {-100 * each.gap.mean:.1f} in `{each.mode}`"
                for each in standing(some, metric_of(dataset), (rate,))
                if each.verdict == "behind" and rate != UNINFORMATIVE.get(each.mode)
            ]
            if rivals:
                where = f"{figure}, {dataset}, {axis.label} {position_text(at)}"
                lines.append(f"{where}: {', '.join(rivals)}")
    return lines
