"""Recovery of a party's columns from its upload by attacks, for the figure `upload`.

Attacks are those of `xvfl audit`, on rows without simulated missing features. The command
`python -m xvfl_lab.experiments.upload_recovery` attacks the embeddings that
`lab/scripts/federation_030.py --views` stored. Needs torch and numpy only.
"""

import argparse
import time
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import Any, cast

import numpy as np
import torch
from torch import Tensor

from xvfl.audit.recovery import scored_columns, true_columns
from xvfl.audit.upload_attacks import AttackOptions, attack_upload
from xvfl.federation.upload.stored_party import StoredParty
from xvfl.primitives.rows import PartyTable
from xvfl.system.files import read_jsonl
from xvfl_lab.experiments.execute import load_from
from xvfl_lab.experiments.stacked_runs import Part, StackedRuns
from xvfl_lab.files import append_lines
from xvfl_lab.task import Task

ATTACKED: tuple[Part, ...] = ("train", "validation", "test")
Recovery = dict[str, list[dict[str, Any]]]
"""By party: attack, metric, value, and control with shuffled columns."""


def attack(views: Tensor, table: PartyTable, seed: int) -> list[dict[str, Any]]:
    """Attack the views (n, 1 + c, d) of a party's rows."""
    columns = true_columns(table, scored_columns(table))
    return [vars(each) for each in attack_upload(views, columns, AttackOptions(random_state=seed))]


def attack_run(stack: StackedRuns, run: int) -> Recovery:
    """Attack the upload of every party in one run of a stack."""
    places = torch.cat([stack.places(part)[run] for part in ATTACKED]).to(stack.device)
    uploads, seed = cast(Sequence[StoredParty], stack.federation.workers), stack.seeds[run]
    return {
        each.name: attack(each.views[places], stack.tables[each.name].take(places), seed)
        for each in uploads
    }


def attack_stored(path: Path, task: Task, device: torch.device) -> Recovery:
    """Attack embeddings that were stored with the numbers of their rows."""
    with np.load(path, allow_pickle=False) as file:
        arrays = {name: file[name] for name in file.files}
    rows, seed = arrays["rows"], int(arrays["seed"])
    some = task.take(rows)
    found = {}
    for name, layout in task.layouts.items():
        parts = (some.values[name], some.buckets(name), some.observed_at(name))
        table = PartyTable(layout, *(torch.from_numpy(each).to(device) for each in parts))
        views = torch.from_numpy(arrays[name]).to(device)
        found[name] = attack(views, table, seed)
    return found


def main() -> None:
    """Attack the embeddings of version 0.3.0's federation."""
    parser = argparse.ArgumentParser(description=main.__doc__)
    parser.add_argument("sets", help="names of data sets, separated by commas")
    parser.add_argument("--views", type=Path, required=True, help="folder of SET-SEED.npz")
    parser.add_argument("--tasks", type=Path, required=True, help="folder of NAME-PARTIES.npz")
    parser.add_argument("--out", type=Path, required=True, help="file of the results")
    parser.add_argument("--arm", default="0.3.0 federation")
    parser.add_argument("--device", default="cuda")
    options = parser.parse_args()
    device, load = torch.device(options.device), partial(load_from, options.tasks)
    for name in options.sets.split(","):
        began, paths = time.monotonic(), sorted(options.views.glob(f"{name}-*.npz"))
        task = load(name, 2)
        append_lines(options.out, [_record(options.arm, path, task, device) for path in paths])
        print(f"{name}: {len(paths)} uploads, {time.monotonic() - began:.1f} s", flush=True)


def _record(arm: str, path: Path, task: Task, device: torch.device) -> dict[str, Any]:
    set_name, _, seed = path.stem.rpartition("-")
    return recovery_record(set_name, arm, int(seed), attack_stored(path, task, device))


def recovery_record(set_name: str, arm: str, seed: int, found: Recovery) -> dict[str, Any]:
    """Describe what attacks reach in one run."""
    return {"set": set_name, "recovery_of": arm, "seed": seed, "recovery": found}


def read_recovery(path: Path) -> dict[tuple[str, str], list[Recovery]]:
    """Read the results of attacks by data set and arm, ordered by seed; the last one counts."""
    latest = {
        (each["set"], each["recovery_of"], each["seed"]): each["recovery"]
        for each in read_jsonl(path)
        if "recovery_of" in each
    }
    found: dict[tuple[str, str], list[Recovery]] = {}
    for set_name, arm, seed in sorted(latest):
        found.setdefault((set_name, arm), []).append(latest[set_name, arm, seed])
    return found


def mean_recovery(some: Sequence[Recovery]) -> dict[tuple[str, str], list[tuple[float, float]]]:
    """Return value and control of each attack and metric: the mean over parties, by run."""
    found: dict[tuple[str, str], list[tuple[float, float]]] = {}
    for recovery in some:
        of_run: dict[tuple[str, str], list[tuple[float, float]]] = {}
        for measured in recovery.values():
            for each in measured:
                key = each["attack"], each["metric"]
                of_run.setdefault(key, []).append((each["value"], each["control"]))
        for key, pairs in of_run.items():
            value, control = np.mean(pairs, 0)
            found.setdefault(key, []).append((float(value), float(control)))
    return found


if __name__ == "__main__":
    main()
