"""Compute the arm `0.3.0 federation` of the figure `upload`, by the code of version 0.3.0.

    git archive d233049 src lab | tar -x -C old
    PYTHONPATH=old/src:old/lab python lab/scripts/federation_030.py bank --tasks T --out F.jsonl

Runs have the defaults of a federation in that version: no gradients, one member. The rows, masks
and seeds are those of `xvfl_lab.experiments.upload_runs`, and so is the format of the results.
Torch and numpy alone.
"""

import argparse
import json
import time
from dataclasses import fields, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch

from xvfl.config import LossConfig, PrivacyConfig, TrainConfig
from xvfl.primitives.layout import Feature, Layout, any_image
from xvfl.version import VERSION
from xvfl_lab.experiments.dispatch import hardware, subset
from xvfl_lab.experiments.runner import test as test_stack
from xvfl_lab.experiments.stacked_runs import RunConfig, StackedRuns, isolated, split_rows
from xvfl_lab.task import Task

ARM = "0.3.0 federation"
MODES = ("local", "assisted", "collaborative")
NO_GRADIENTS = PrivacyConfig("no_gradients")
N_ATTACKED_ROWS, N_COPIES = 4000, 8
TABLE = ((0.0, 0.5, 0.9), 0, 0)
SETS: dict[str, tuple[tuple[float, ...], int, int]] = {
    "bank": TABLE,
    "physionet2012": TABLE,
    "avazu": TABLE,
    "digits": TABLE,
    "cifar10-16000": ((0.5,), 16_000, 4_000),
    "cifar10-50000": ((0.5,), 0, 4_000),
    "utkface": ((0.5,), 0, 0),
    "tinyimagenet5": ((0.5,), 0, 0),
}
"""R_miss, training rows and test rows (0 = all) of each set, as in `upload_runs`."""


def load(path: Path) -> Task:
    """Read a prepared data set without options of features that version 0.3.0 does not know."""
    with np.load(path, allow_pickle=False) as file:
        arrays = {name: file[name] for name in file.files}
    about = json.loads(str(arrays["about"]))
    known = {field.name for field in fields(Feature)}
    layouts = {}
    for party, each in about["layouts"].items():
        features = [
            {name: value for name, value in feature.items() if name in known}
            for feature in each["features"]
        ]
        layouts[party] = Layout.from_dict({**each, "features": features})
    parts: dict[str, Any] = {
        part: {party: arrays[f"{part}/{party}"] for party in layouts if f"{part}/{party}" in arrays}
        for part in ("values", "codes", "observed")
    }
    test, share = arrays.get("test"), about["test_share"]
    return Task(about["name"], layouts, y=arrays["y"], test=test, test_share=share, **parts)


def configure(task: Task, rate: float, seed: int, epochs: int) -> RunConfig:
    """Configure a run with the defaults of a federation in version 0.3.0.

    Images have the batch size and learning rate of interactive training in the other figures: with
    the default rate they were not learned at all (10 % of CIFAR-10).
    """
    image = any_image(task.layouts)
    train = TrainConfig(random_state=seed, epochs=epochs)
    if image:
        train = replace(train, batch_size=200, learning_rate=5e-4, precision="bf16")
    run = RunConfig("xvfl+", rate, seed, train=train, weights="calibrated")
    rows = len(split_rows(task, run)["train"])
    train = train.resolve(1, rows, reconstruction_only=True)
    loss = LossConfig().resolve(1, image, len(task.layouts), train.completion_interval)
    return replace(run, train=train, loss=loss)


def measure(
    name: str, task: Task, configs: list[RunConfig], device: torch.device, folder: Path | None
) -> list[dict[str, Any]]:
    """Train and test runs at once; describe their results."""
    began, ends = time.perf_counter(), list[float]()
    with isolated(task, device):
        stack = StackedRuns(task, configs, device, NO_GRADIENTS)
        stack.train(lambda: ends.append(time.perf_counter()))
        scores = test_stack(stack)
        if folder is not None:
            store_views(stack, name, folder)
    wall = time.perf_counter() - began
    training = (ends[-1] - ends[0]) / max(len(ends) - 1, 1) * len(ends)
    return [
        {
            "rate": config.rate,
            "seed": config.seed,
            "metrics": {
                mode: {name: round(value, 6) for name, value in metrics[mode].items()}
                for mode in MODES
            },
            "seconds": round(training / len(configs), 2),
            "wall": round(wall / len(configs), 2),
            "hardware": hardware(device.type),
            "version": VERSION,
        }
        for config, metrics in zip(configs, scores, strict=True)
    ]


def store_views(stack: StackedRuns, name: str, folder: Path) -> None:
    """Store what the coordinator receives of some rows without simulated missing features.

    The embedding of a row as observed, and of masked copies, by the trained nets; in training,
    every step has other copies. `xvfl_lab.experiments.upload_recovery` attacks them.
    """
    folder.mkdir(parents=True, exist_ok=True)
    of_run = [
        torch.cat([stack.places(part)[run] for part in ("train", "validation", "test")])
        for run in range(len(stack.seeds))
    ]
    rng = torch.Generator().manual_seed(0)
    chosen = torch.randperm(len(of_run[0]), generator=rng)[:N_ATTACKED_ROWS]
    handles = torch.stack([each[chosen] for each in of_run])
    views: dict[str, Any] = {}
    stack.federation.train(True)
    for worker in stack.federation.workers:
        with torch.no_grad():
            asked = ["plain", *["masked"] * N_COPIES]
            found = worker.embed(handles.flatten().to(stack.device), asked, 0)
        views[worker.name] = found.view(*handles.shape, *found.shape[1:]).half().cpu().numpy()
    for run, config in enumerate(stack.configs):
        if config.rate == 0:
            rows = stack.run_rows[run].base[handles[run] - run * len(stack.run_rows[run].base)]
            arrays = {party: each[run] for party, each in views.items()}
            path = folder / f"{name}-{config.seed}.npz"
            np.savez(path, rows=rows.numpy(), seed=config.seed, **arrays)


def main() -> None:
    """Compute the runs of data sets and append them to a file."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("sets", help=f"names, separated by commas: {', '.join(SETS)}")
    parser.add_argument("--tasks", type=Path, required=True, help="folder of NAME-2.npz")
    parser.add_argument("--out", type=Path, required=True, help="file of the results")
    parser.add_argument("--device", default="cuda")
    parser.add_argument("--seeds", default="0,1,2,3,4")
    parser.add_argument("--rates", default="", help="R_miss, separated by commas; default: all")
    parser.add_argument("--epochs", type=int, default=0, help="0 = the default, 60")
    parser.add_argument("--views", type=Path, help="folder for embeddings to attack")
    options = parser.parse_args()
    seeds = [int(each) for each in options.seeds.split(",")]
    for name in options.sets.split(","):
        rates, train_rows, test_rows = SETS[name]
        rates = tuple(float(each) for each in options.rates.split(",") if each) or rates
        task = load(options.tasks / f"{name.partition('-')[0]}-2.npz")
        task = subset(task, train_rows, test_rows)
        digest = task.digest()
        configs = [configure(task, rate, seed, options.epochs) for seed in seeds for rate in rates]
        # The nets of images fill a GPU: one run at a time.
        stacks = [[each] for each in configs] if any_image(task.layouts) else [configs]
        for stack in stacks:
            records = measure(name, task, stack, torch.device(options.device), options.views)
            lines = [
                json.dumps({"set": name, "arm": ARM, "data": digest, **each}) + "\n"
                for each in records
            ]
            with options.out.open("a", buffering=1 << 20) as file:
                file.write("".join(lines))
            means = {
                mode: np.mean([each["metrics"][mode]["accuracy"] for each in records])
                for mode in MODES
            }
            wall = sum(each["wall"] for each in records)
            print(f"{name} {ARM}: {len(records)} runs, {wall:.1f} s; accuracy {means}", flush=True)


if __name__ == "__main__":
    main()
