"""Runs of the figure `upload`: one upload beside one process and interactive training.

Every arm has the same rows, masks and seeds; the encoders of uploads learn from training rows only.
The command `python -m xvfl_lab.experiments.upload_runs` is for machines that have only torch and
numpy: it reads prepared data sets and appends results to one file, which several processes may
share. `lab/scripts/federation_030.py` adds the federation of version 0.3.0, by its own code.
"""

import argparse
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch

from xvfl.config import NO_PROTECTION, EncoderConfig, NetConfig, PrivacyConfig, TrainConfig
from xvfl.errors import ConfigError, unknown
from xvfl.system.files import read_jsonl
from xvfl.version import VERSION
from xvfl_lab.experiments.dispatch import Load, hardware, sampled_rows
from xvfl_lab.experiments.execute import load_from
from xvfl_lab.experiments.figures import SEVERAL_MEMBERS
from xvfl_lab.experiments.runner import test
from xvfl_lab.experiments.stacked_runs import RunConfig, StackedRuns, isolated
from xvfl_lab.experiments.upload_recovery import attack_run, recovery_record
from xvfl_lab.files import append_lines
from xvfl_lab.task import Task

MODES = ("local", "assisted", "collaborative")
NO_GRADIENTS = PrivacyConfig("no_gradients")
ONE_PROCESS, GRADIENTS, UPLOAD, OLD = "one process", "gradients", "upload", "0.3.0 federation"
UNLABELED = "upload, unlabeled images"
Record = dict[str, Any]
"""Result of a run: set, arm, digest of the data, rate, seed, metrics by mode, seconds of training,
seconds with everything else, hardware, version; or of attacks (`upload_recovery`)."""


@dataclass(frozen=True)
class Arm:
    """One way to train."""

    privacy: PrivacyConfig = NO_GRADIENTS
    net: NetConfig = NetConfig()
    encoder: EncoderConfig = EncoderConfig()
    """Of uploads; for images, `DataSet` sets epochs, learning rate and precision."""
    unlabeled: bool = False
    """Encoders also learn from the training rows beyond those with labels."""


@dataclass(frozen=True)
class DataSet:
    """Rows, scenarios and budget of a data set."""

    name: str
    labels: int = 0
    """Number of training rows with a label, a fixed random sample; 0 = all."""
    test_rows: int = 0
    rates: tuple[float, ...] = (0.0, 0.5, 0.9)
    seeds: int = 5
    image: bool = False
    epochs: int = 0
    """Of interactive training of images; 0 = the default, and always so for tables and heads."""
    encoder_epochs: int = 0
    """Of the encoders of images, chosen for as many GPU seconds as interactive training takes."""


def _upload(**settings: Any) -> Arm:
    return Arm(encoder=EncoderConfig(**settings))


ARMS: dict[str, Arm] = {
    ONE_PROCESS: Arm(NO_PROTECTION, SEVERAL_MEMBERS),
    UPLOAD: Arm(),
    GRADIENTS: Arm(NO_PROTECTION),
    **{f"upload, whitening {share:g}": _upload(whitening=share) for share in (0.0, 0.7, 0.9, 0.99)},
    **{
        f"upload, whitening 0, {name}": _upload(whitening=0.0, **changes)
        for name, changes in {
            "skip 64": {"skip_rank": 64},
            "0 copies": {"masked_copies": 0},
            "2 copies": {"masked_copies": 2},
            "0 copies, skip 64": {"masked_copies": 0, "skip_rank": 64},
            "8 copies, skip 64": {"masked_copies": 8, "skip_rank": 64},
            "width 64, skip 64": {"embedding_dim": 64, "skip_rank": 64},
        }.items()
    },
    UNLABELED: Arm(unlabeled=True),
}
"""`one process`: four members, with gradients, the default of tables in one process. `gradients`:
interactive training of a federation, one member. `upload`: the default of a federation, and its
variants."""
TABLE_ARMS = tuple(name for name in ARMS if name != UNLABELED)
IMAGE_ARMS = (GRADIENTS, UPLOAD)
SETS: dict[str, DataSet] = {
    **{name: DataSet(name) for name in ("bank", "physionet2012", "avazu", "digits")},
    "cifar10-16000": DataSet("cifar10", 16_000, 4_000, (0.5,), 3, True, 15, 45),
    "cifar10-50000": DataSet("cifar10", 0, 4_000, (0.5,), 3, True, 8, 24),
    "utkface": DataSet("utkface", 0, 0, (0.5,), 3, True, 16, 48),
    "tinyimagenet5": DataSet("tinyimagenet5", 0, 0, (0.5,), 3, True, 60, 180),
}
TWO_CLASSES = ("bank", "physionet2012", "avazu")
IMAGE_TRAINING = TrainConfig(
    batch_size=200, optimizer="adamw", learning_rate=5e-4, precision="bf16"
)
"""Interactive training of images, as in the other figures."""


def arms_of(name: str) -> tuple[str, ...]:
    """List the arms of a set."""
    if not SETS[name].image:
        return TABLE_ARMS
    return (*IMAGE_ARMS, UNLABELED) if SETS[name].labels else IMAGE_ARMS


def choose_arm(name: str, data: DataSet) -> Arm:
    """Return an arm, with the epochs and precision of encoders that suit the data set."""
    if name not in ARMS:
        raise ConfigError(unknown("arm", name, list(ARMS)))
    arm = ARMS[name]
    if not data.image:
        return arm
    encoder = replace(arm.encoder, precision="bf16")
    # With about three times the images, half the epochs.
    epochs = data.encoder_epochs // 2 if arm.unlabeled else data.encoder_epochs
    return replace(arm, encoder=replace(encoder, epochs=epochs))


def run_configs(data: DataSet, arm: Arm, seeds: Iterable[int]) -> list[RunConfig]:
    """Configure the runs of an arm; automatic options stay automatic."""
    train = TrainConfig(optimizer="adamw")
    if data.image and not arm.privacy.trains_encoders:
        train = replace(IMAGE_TRAINING, epochs=data.epochs)
    shared = RunConfig("xvfl+", 0.0, 0, net=arm.net, train=train, weights="calibrated")
    of_seeds = [
        replace(shared, seed=seed, train=replace(train, random_state=seed)) for seed in seeds
    ]
    return [replace(each, rate=rate) for each in of_seeds for rate in data.rates]


def task_of(load: Load, data: DataSet, unlabeled: bool = False) -> Task:
    """Load the rows of a data set; with `unlabeled`, rows beyond the labels have class −1."""
    task = load(data.name, 2)
    if task.test is None:  # each seed samples its own test rows
        return task
    chosen = sampled_rows(task, data.labels, data.test_rows)
    if not unlabeled:
        return task.take(chosen)
    y = np.where(task.test, task.y, -1)
    y[chosen] = task.y[chosen]
    kept = ~task.test
    kept[chosen] = True
    return replace(task, y=y).take(kept.nonzero()[0])


def compute(
    load: Load,
    set_name: str,
    arm_name: str,
    device: torch.device,
    data: DataSet | None = None,
    seeds: Iterable[int] | None = None,
    done: Iterable[Record] = (),
) -> Iterator[list[Record]]:
    """Train and test the runs of an arm that are not `done`; yield results as they are known.

    Runs of tables are trained at once, those of images one by one. Uploads of tables at R_miss 0
    are also attacked.
    """
    data = data or SETS[set_name]
    arm = choose_arm(arm_name, data)
    task = task_of(load, data, arm.unlabeled)
    digest = task.digest()
    finished = {run_of(each) for each in done if each.get("data", digest) == digest}
    configs = [
        each
        for each in run_configs(data, arm, range(data.seeds) if seeds is None else seeds)
        if (set_name, arm_name, each.rate, each.seed) not in finished
    ]
    stacks = [[each] for each in configs] if data.image else [configs] if configs else []
    about = {"set": set_name, "arm": arm_name, "data": digest}
    for some in stacks:
        began, ends = time.perf_counter(), list[float]()
        with isolated(task, device):
            stack = StackedRuns(task, some, device, arm.privacy, encoder=arm.encoder)
            stack.train(lambda ends=ends: ends.append(time.perf_counter()))  # type: ignore[misc]
            scores = test(stack)
        wall = (time.perf_counter() - began) / len(some)
        # Without the first epoch, in which nets are compiled.
        of_epoch = (ends[-1] - ends[0]) / max(len(ends) - 1, 1)
        encoders = stack.encoder_seconds * arm.encoder.epochs
        seconds = (of_epoch * len(ends) + encoders) / len(some)
        yield [
            {**about, **describe(config, metrics, seconds, wall, device)}
            for config, metrics in zip(some, scores, strict=True)
        ]
        if arm.privacy.trains_encoders and not data.image:
            attacked = [run for run, config in enumerate(some) if config.rate == 0]
            with isolated(task, device):
                recovery = [(some[run].seed, attack_run(stack, run)) for run in attacked]
            yield [recovery_record(set_name, arm_name, *each) for each in recovery]


def run_of(each: Record) -> tuple[str, str, float, int]:
    """Identify a run: set, arm, rate and seed."""
    return each["set"], each["arm"], each["rate"], each["seed"]


def describe(
    config: RunConfig,
    metrics: Mapping[str, Mapping[str, float]],
    training: float,
    wall: float,
    device: torch.device,
) -> Record:
    """Describe the result of a run."""
    return {
        "rate": config.rate,
        "seed": config.seed,
        "metrics": {
            way: {name: round(value, 6) for name, value in of.items()}
            for way, of in metrics.items()
            if way in MODES or way.startswith("local/")
        },
        "seconds": round(training, 2),
        "wall": round(wall, 2),
        "hardware": hardware(device.type),
        "version": VERSION,
    }


def read_runs(path: Path) -> list[Record]:
    """Read the stored runs of all data sets; of equal runs, the last one counts."""
    return list({run_of(each): each for each in read_jsonl(path) if "arm" in each}.values())


def main() -> None:
    """Compute runs of the figure `upload` from prepared data sets; torch and numpy alone."""
    parser = argparse.ArgumentParser(description=main.__doc__)
    parser.add_argument("sets", help=f"names, separated by commas: {', '.join(SETS)}")
    parser.add_argument("arms", help=f"names, separated by semicolons: {'; '.join(ARMS)}")
    parser.add_argument("--tasks", type=Path, required=True, help="folder of NAME-PARTIES.npz")
    parser.add_argument("--out", type=Path, required=True, help="file of the results")
    parser.add_argument("--device", default="cuda")
    parser.add_argument("--seeds", default="", help="numbers, separated by commas; default: all")
    parser.add_argument("--rates", default="", help="R_miss, separated by commas; default: all")
    parser.add_argument("--epochs", type=int, help="of interactive training of images")
    parser.add_argument("--encoder-epochs", type=int, help="of the encoders of images")
    options = parser.parse_args()
    load = partial(load_from, options.tasks)
    seeds = [int(each) for each in options.seeds.split(",")] if options.seeds else None
    for set_name in options.sets.split(","):
        data = SETS[set_name]
        rates = tuple(float(each) for each in options.rates.split(",") if each)
        given = {"epochs": options.epochs, "encoder_epochs": options.encoder_epochs, "rates": rates}
        data = replace(data, **{name: value for name, value in given.items() if value})
        for arm in options.arms.split(";"):
            device, began = torch.device(options.device), time.monotonic()
            for done in compute(load, set_name, arm, device, data, seeds):
                append_lines(options.out, done)
                took = time.monotonic() - began
                print(f"{set_name} {arm}: {len(done)} runs, {took:.1f} s{_means(done)}", flush=True)


def _means(some: Sequence[Record]) -> str:
    if not some or "metrics" not in some[0]:
        return ", attacked"
    means = {mode: np.mean([score(each, mode) for each in some]) for mode in MODES}
    return "; " + ", ".join(f"{mode} {mean:.2f}" for mode, mean in means.items())


def metric_of(set_name: str) -> str:
    """Return the metric of a set: AUROC with two classes, else accuracy."""
    return "auroc" if set_name in TWO_CLASSES else "accuracy"


def score(each: Record, mode: str) -> float:
    """Return the metric of a run in a mode, in percent."""
    return 100 * float(each["metrics"][mode][metric_of(each["set"])])


if __name__ == "__main__":
    main()
