"""One upload against one process, interactive training, and version 0.3.0: accuracy and recovery.

Runs and attacks are stored in `runs.jsonl` as they finish; this module computes those that are
missing (`upload_runs`), and compares them. The federation of version 0.3.0 is computed by its own
code, `lab/scripts/federation_030.py`. Needs torch and numpy only, for the digits also scikit-learn.

    python -m xvfl_lab.experiments.upload lab/results/upload

writes numbers and tables of the stored runs, and trains nothing.
"""

import argparse
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, replace
from functools import partial
from pathlib import Path
from typing import Any

import torch

from xvfl.errors import InputError
from xvfl.primitives.metrics import METRICS
from xvfl.system.files import read_jsonl
from xvfl_lab.datasets.digits import digits
from xvfl_lab.experiments.compare import Difference
from xvfl_lab.experiments.dispatch import Load
from xvfl_lab.experiments.figure_cache import FigureData, Progress, cached_figure
from xvfl_lab.experiments.figure_tables import markdown_table
from xvfl_lab.experiments.run_store import key_of
from xvfl_lab.experiments.upload_recovery import Recovery, mean_recovery, read_recovery
from xvfl_lab.experiments.upload_runs import (
    GRADIENTS,
    MODES,
    OLD,
    ONE_PROCESS,
    SETS,
    UPLOAD,
    DataSet,
    Record,
    arms_of,
    compute,
    metric_of,
    read_runs,
    run_of,
    score,
)
from xvfl_lab.files import append_lines, write_text
from xvfl_lab.task import Task

NAME = "upload"
RUNS = "runs.jsonl"
TREES = "trees pooled"
"""Gradient-boosted trees on all columns in one place, from the figure `trees`."""
JUDGED = (0.5, 0.9)
"""The rates whose average is compared with one process."""
Plan = list[tuple[str, DataSet, tuple[str, ...]]]
"""Data sets and arms to compute."""
Attacks = Mapping[tuple[str, str], Sequence[Recovery]]
"""Results of attacks on each run, by data set and arm."""


def make(
    out: Path, quick: bool, device: torch.device, load: Load, progress: Progress
) -> dict[str, Any]:
    """Compute the runs that are not stored, and write numbers and tables; images on a GPU only."""
    path = out / RUNS
    for set_name, data, arms in plan(quick, device):
        for arm in arms:
            _complete(path, set_name, arm, data, device, partial(_load, load), progress)
    return write(out)


def plan(quick: bool, device: torch.device) -> Plan:
    """List the data sets and arms that this version computes."""
    if quick:
        return [("digits", replace(SETS["digits"], seeds=1), (ONE_PROCESS, UPLOAD))]
    usable = {name: data for name, data in SETS.items() if device.type == "cuda" or not data.image}
    return [(name, data, arms_of(name)) for name, data in usable.items()]


def _load(load: Load, name: str, parties: int) -> Task:
    return digits() if name == "digits" else load(name, parties)


def _complete(
    path: Path,
    set_name: str,
    arm: str,
    data: DataSet,
    device: torch.device,
    load: Load,
    progress: Progress,
) -> None:
    """Compute the missing runs of an arm; without its data, accept what is stored if complete."""
    stored = read_runs(path)
    wanted = {(set_name, arm, rate, seed) for rate in data.rates for seed in range(data.seeds)}
    complete = wanted <= {run_of(each) for each in stored}
    if not complete:
        progress(f"{set_name}, {arm}")
    try:
        for records in compute(load, set_name, arm, device, data, done=stored):
            append_lines(path, records)
    except InputError:
        if not complete:
            raise


def write(out: Path) -> dict[str, Any]:
    """Write numbers and tables from the stored runs."""
    runs, attacks = read_runs(out / RUNS), read_recovery(out / RUNS)
    runs += [each for name in SETS for each in _trees(out.parent, name)]
    hardware = ", ".join(dict.fromkeys(each["hardware"] for each in runs if each["arm"] != TREES))

    figures = {"runs": summary(runs), "recovery": recovery_summary(attacks)}
    seconds = sum(each["wall"] for each in runs if each["arm"] != TREES)
    data = FigureData(figures, {}, seconds, hardware)
    config = {"figures": key_of(figures)}
    record = cached_figure(out, NAME, config, torch.device("cpu"), lambda: data)
    write_text(out / f"{NAME}.md", "\n".join(tables(record["figures"])) + "\n")
    return record


def _trees(out: Path, set_name: str) -> Iterator[Record]:
    """Read the stored runs of trees on the same rows, masks and seeds."""
    data = SETS[set_name]
    for each in read_jsonl(out / "runs" / "trees" / f"{set_name}.jsonl"):
        if each.get("name") == TREES and each["seed"] < data.seeds and each["rate"] in data.rates:
            values = each["metrics"]["collaborative"]
            metrics = {"collaborative": dict(zip(METRICS, values, strict=True))}
            where = {"set": set_name, "arm": TREES, "rate": each["rate"], "seed": each["seed"]}
            yield {**where, "metrics": metrics, "seconds": each["seconds"], "wall": 0.0}


def summary(runs: Sequence[Record]) -> dict[str, Any]:
    """Summarize runs by data set, arm and mode: means at each rate, and paired differences."""
    sets = {name: [each for each in runs if each["set"] == name] for name in SETS}
    return {name: _of_set(some) for name, some in sets.items() if some}


def _of_set(runs: Sequence[Record]) -> dict[str, Any]:
    order = [*arms_of(runs[0]["set"]), OLD, TREES]
    arms = sorted({each["arm"] for each in runs}, key=order.index)
    return {
        arm: {
            "seconds": _mean(each["seconds"] for each in runs if each["arm"] == arm),
            "modes": {
                mode: _of_mode(runs, arm, mode)
                for mode in MODES
                if any(mode in each["metrics"] for each in runs if each["arm"] == arm)
            },
        }
        for arm in arms
    }


def _of_mode(runs: Sequence[Record], arm: str, mode: str) -> dict[str, Any]:
    rates = sorted({each["rate"] for each in runs if each["arm"] == arm})
    judged = [rate for rate in rates if rate in JUDGED]
    means = {f"{rate:g}": _mean(_by_seed(runs, arm, mode, [rate]).values()) for rate in rates}
    rivals = {ONE_PROCESS: judged, GRADIENTS: judged, OLD: rates, UPLOAD: rates}
    minus = {
        rival: asdict(gap)
        for rival, over in rivals.items()
        if rival != arm and over and (gap := _gap(runs, arm, rival, mode, over)) is not None
    }
    return {"means": means, "minus": minus}


def _by_seed(
    runs: Sequence[Record], arm: str, mode: str, rates: Sequence[float]
) -> dict[int, float]:
    """Return the mean over rates of each seed that has all of them."""
    found: dict[int, list[float]] = {}
    for each in runs:
        if each["arm"] == arm and each["rate"] in rates and mode in each["metrics"]:
            found.setdefault(each["seed"], []).append(score(each, mode))
    return {seed: _mean(some) for seed, some in found.items() if len(some) == len(rates)}


def _gap(
    runs: Sequence[Record], arm: str, rival: str, mode: str, rates: Sequence[float]
) -> Difference | None:
    """Compare two arms on the seeds that both have; None with fewer than two."""
    ours, theirs = (_by_seed(runs, each, mode, rates) for each in (arm, rival))
    shared = sorted(ours.keys() & theirs)
    return Difference.of([ours[s] - theirs[s] for s in shared]) if len(shared) > 1 else None


def recovery_summary(attacks: Attacks) -> dict[str, Any]:
    """Summarize attacks by data set, arm, metric and attack: value, control, excess by run."""
    found: dict[str, Any] = {}
    for (set_name, arm), some in attacks.items():
        of_arm = found.setdefault(set_name, {}).setdefault(arm, {})
        for (attack, metric), pairs in mean_recovery(some).items():
            of_arm.setdefault(metric, {})[attack] = {
                "value": _mean(value for value, _ in pairs),
                "control": _mean(control for _, control in pairs),
                "excess": [value - control for value, control in pairs],
            }
    return found


def tables(figures: Mapping[str, Any]) -> list[str]:
    """Lay out accuracy and recovery in Markdown."""
    lines = [
        "Differences in points, mean over seeds with the 95 % interval of paired differences. "
        f"Against `{ONE_PROCESS}` and `{GRADIENTS}`: mean of R_miss 0.5 and 0.9; against "
        f"`{OLD}`: mean of all rates; variants: mean of those rates at which they were run.",
        "",
    ]
    for set_name, arms in figures["runs"].items():
        lines += [f"## {set_name}", ""]
        lines += _image_table(set_name, arms) if SETS[set_name].image else _tables(set_name, arms)
        lines += _recovery_tables(figures["recovery"].get(set_name, {}))
    return lines


def _tables(set_name: str, arms: Mapping[str, Any]) -> list[str]:
    lines = []
    for mode in MODES:
        rows = {arm: of["modes"][mode] for arm, of in arms.items() if mode in of["modes"]}
        rates = list(dict.fromkeys(rate for each in rows.values() for rate in each["means"]))
        rivals = [rival for rival in (ONE_PROCESS, OLD) if rival in rows]
        lines += [
            f"**{mode}**, {metric_of(set_name)} in %:",
            "",
            *markdown_table(
                ["", *(f"R_miss {rate}" for rate in rates), *(f"minus {r}" for r in rivals)],
                (
                    [
                        arm,
                        *(_number(each["means"].get(rate)) for rate in rates),
                        *(_interval(each["minus"].get(rival)) for rival in rivals),
                    ]
                    for arm, each in rows.items()
                ),
            ),
        ]
    return lines


def _image_table(set_name: str, arms: Mapping[str, Any]) -> list[str]:
    rivals = [rival for rival in (GRADIENTS, OLD, UPLOAD) if rival in arms]

    def row(arm: str, of: Mapping[str, Any]) -> list[str]:
        modes = of["modes"]
        means = (_mean(modes[mode]["means"].values()) for mode in MODES)
        joint = modes["collaborative"]["minus"]
        gaps = (_interval(joint.get(rival)) for rival in rivals)
        return [arm, *map(_number, means), f"{of['seconds']:.0f}", *gaps]

    rates = ", ".join(f"{rate:g}" for rate in SETS[set_name].rates)
    return [
        f"{metric_of(set_name)} in %, R_miss {rates}; differences in `collaborative`:",
        "",
        *markdown_table(
            ["", *MODES, "GPU seconds", *(f"minus {rival}" for rival in rivals)],
            (row(arm, of) for arm, of in arms.items()),
        ),
    ]


def _recovery_tables(arms: Mapping[str, Any]) -> list[str]:
    """Lay out what attacks reach above chance, an arm a column."""
    lines = []
    titles = {"numbers": "numbers, mean |ρ|", "categories": "categories, mean |2·AUC − 1|"}
    for metric, title in titles.items():
        some = {arm: of[metric] for arm, of in arms.items() if metric in of}
        if not some:
            continue
        attacks = dict.fromkeys(attack for of in some.values() for attack in of)
        lines += [
            f"Recovered columns ({title} above the control with shuffled columns, mean over "
            "parties and seeds):",
            "",
            *markdown_table(
                ["", *some],
                (
                    [attack, *(_excess(of.get(attack)) for of in some.values())]
                    for attack in attacks
                ),
            ),
            *_compare_recovery(some),
        ]
    return lines


def _compare_recovery(arms: Mapping[str, Any]) -> list[str]:
    """Name the attacks that reach more or less on the upload than on version 0.3.0."""
    if UPLOAD not in arms or OLD not in arms:
        return []
    found: dict[str, list[str]] = {"ahead": [], "behind": [], "level": []}
    for attack, ours in arms[UPLOAD].items():
        theirs = arms[OLD].get(attack, {"excess": []})["excess"]
        if len(theirs) == len(ours["excess"]) > 1:
            pairs = zip(ours["excess"], theirs, strict=True)
            found[Difference.of([a - b for a, b in pairs]).verdict].append(f"`{attack}`")
    words = {"ahead": "more", "behind": "less", "level": "as much"}
    told = "; ".join(f"{words[name]}: {', '.join(some)}" for name, some in found.items() if some)
    return [f"Attacks recover from `{UPLOAD}`, compared with `{OLD}` (paired, 5 %): {told}.", ""]


def _excess(measured: Mapping[str, Any] | None) -> str:
    return "none" if measured is None else f"{_mean(measured['excess']):.2f}"


def _number(value: float | None) -> str:
    return "n/a" if value is None else f"{value:.2f}"


def _interval(gap: Mapping[str, Any] | None) -> str:
    if gap is None:
        return ""
    of = Difference(**gap)
    low, high = of.mean - of.half_width, of.mean + of.half_width
    return f"{of.mean:+.2f} [{low:+.2f}, {high:+.2f}]"


def _mean(values: Iterable[float]) -> float:
    listed = list(values)
    return sum(listed) / len(listed)


def main() -> None:
    """Write numbers and tables of the figure from its stored runs."""
    parser = argparse.ArgumentParser(description=main.__doc__)
    parser.add_argument("folder", type=Path, help=f"folder with {RUNS}")
    folder = parser.parse_args().folder
    write(folder)
    print(f"wrote {folder / NAME}.md")


if __name__ == "__main__":
    main()
