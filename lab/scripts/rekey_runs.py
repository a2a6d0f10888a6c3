"""Give stored runs and cached figures the keys of today's option names.

    python lab/scripts/rekey_runs.py [lab/results]

Version 0.1.0 stored a run under a hash of its configuration with default values left out and with
option names that have since changed. This script knows those names, defaults, budgets and figures
by itself (nothing is taken from today's code), so it rebuilds the old keys, and stores each result
with its explicit configuration (`xvfl_lab.experiments.run_store`). Results stored that way are
given new keys from their own configuration, so after the next rename extend `RENAMED`, after a new
option `ADDED`. A record that matches no configuration stops the script before anything is written.
Running it again changes nothing.
"""

import argparse
import json
import sys
import zlib
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import asdict
from hashlib import blake2b
from pathlib import Path
from typing import Any

import numpy as np

sys.path[:0] = [str(Path(__file__).resolve().parents[1])]
from xvfl.errors import RunError  # noqa: E402
from xvfl.system.files import atomic_write, read_jsonl  # noqa: E402
from xvfl_lab.experiments.figure_plot import MARK  # noqa: E402
from xvfl_lab.experiments.figures import Job  # noqa: E402
from xvfl_lab.experiments.run_store import RunStore, join_config, key_of  # noqa: E402
from xvfl_lab.experiments.stacked_runs import RunConfig  # noqa: E402

Config = dict[str, Any]

# Version 0.1.0: defaults, methods, budgets and figures as they were.
OLD_PROTOCOL = 2
OLD_NET = {"embedding": 0, "hidden": 0, "blocks": 4, "channels": 32}
OLD_LOSS = {
    "method": "xvfl+", "lambda1": 0.1, "lambda2": 0.1, "self_completion": 1.0, "masks": 2,
    "guidance": 0.5, "reconstruction": 0.3, "stop_gradient": False, "detach_cue": False,
    "cross_completion": True, "aggregation": "mean", "distillation": 0.5,
    "distillation_temperature": 2.0, "full_at": None,
}  # fmt: skip
OLD_TRAIN = {
    "epochs": 60, "batch": 0, "optimiser": "adamw", "learning_rate": 2e-3, "schedule": "cosine",
    "momentum": 0.9, "weight_decay": 1e-2, "page_batch": None, "page_probability": None,
    "validation": 0.15, "patience": 15, "class_weight": "none", "seed": 0, "device": "auto",
    "precision": "float32",
}  # fmt: skip
OLD_SETTING = {
    "overlap": 0.4, "net": OLD_NET, "loss": OLD_LOSS, "train": OLD_TRAIN, "keep": "best",
    "kind": "uniform", "imbalance": None,
}  # fmt: skip
OLD_JOB = {"setting": OLD_SETTING, "halved": False}
OLD_METHODS = (
    "xvfl+", "xvfl", "standalone", "vanilla", "iavfl", "fedcvt", "laser", "laser+mask"
)  # fmt: skip
OLD_RATES, OLD_SOME_RATES = (0.0, 0.1, 0.3, 0.5, 0.7, 0.9, 1.0), (0.0, 0.5, 0.9, 1.0)
OLD_TABLES = ("bank", "avazu", "physionet2012", "mimic3")
_IMAGES = {"batch": 200, "learning_rate": 5e-4, "precision": "bf16"}
OLD_BUDGETS: dict[str, Config] = {
    **{
        name: {"rows": (0, 0), "epochs": 20, "seeds": 5, "more": 5, "rates": OLD_RATES}
        for name in OLD_TABLES
    },
    "cifar10": {"rows": (16_000, 4_000), "epochs": 20, "seeds": 3, "train": _IMAGES},
    "utkface": {"rows": (0, 0), "epochs": 16, "seeds": 3, "train": _IMAGES},
    "tinyimagenet5": {"rows": (0, 0), "epochs": 60, "seeds": 5, "train": _IMAGES},
}
OLD_ABLATIONS: dict[str, Config] = {
    "xvfl+": {},
    "without cross completion": {"cross_completion": False},
    "without DSAlign1": {"lambda1": 0.0},
    "without DSAlign2": {"lambda2": 0.0},
    "without self completion": {"self_completion": 0.0},
    "without guidance": {"guidance": 0.0},
    "without reconstruction": {"reconstruction": 0.0},
    "one masked copy": {"masks": 1},
    "concatenation": {"aggregation": "concat"},
}

RENAMED = {
    "setting": "config", "halved": "half_resolution", "setting.method": "name",
    "setting.keep": "weights", "net.embedding": "embedding_dim", "net.hidden": "hidden_dim",
    "net.blocks": "n_blocks", "net.channels": "base_channels", "loss.masks": "n_masks",
    "loss.distillation": "distillation_alpha", "loss.full_at": "full_threshold",
    "train.batch": "batch_size", "train.optimiser": "optimizer",
    "train.page_batch": "page_batch_size", "train.validation": "validation_fraction",
    "train.seed": "random_state",
}  # fmt: skip
"""New names of options, by group and old name."""
ADDED: dict[str, Any] = {
    "net.seeing_completers": False,
    "net.number_embedding_dim": 0,
    "net.members": 1,
    "net.skip_rank": None,
    "net.heads": None,
    "loss.joint_masks": False,
    "loss.unmasked_copies": 0.0,
    "train.completion_interval": 1,
    "train.image_shift": 0.0,
}
"""Options that were added later, by group and name (`loss.name`): the value that these runs had."""
REMOVED = ("loss.distillation_alpha", "loss.distillation_temperature")
"""Options that are constants now, equal to the value that all runs had."""
AUTOMATIC = (
    *("net.embedding_dim", "net.hidden_dim", "net.members", "net.heads", "loss.n_masks"),
    *("train.epochs", "train.batch_size", "train.learning_rate", "train.completion_interval"),
    "train.device",
)
"""Options whose automatic value is None; it was 0 or "auto"."""


def old_jobs(dataset: str) -> Iterator[Config]:
    """Yield every job of version 0.1.0's figures on a data set, explicit, with the old names."""
    budget = OLD_BUDGETS[dataset]
    seeds, rates = budget["seeds"], budget.get("rates", OLD_SOME_RATES)
    two = OLD_METHODS
    four = [method for method in OLD_METHODS if method != "fedcvt"]
    yield from _grid(dataset, budget, two, seeds + budget.get("more", 0), {*rates, 0.9})
    for overlap in (0.2, 0.4, 0.8):
        yield from _grid(dataset, budget, two, seeds, {0.5}, {"overlap": overlap})
    yield from _grid(dataset, budget, two, seeds, {0.5}, {"overlap": 0.2, "imbalance": 0.8})
    for kind in ("above", "blocks"):
        yield from _grid(dataset, budget, two, seeds, {0.5}, {"kind": kind})
    less = budget if dataset in OLD_TABLES else _half(budget)
    less = {**less, "train": {**less.get("train", {}), "batch": 100}}
    weights = {"lambda1": 0.01, "lambda2": 0.01}
    yield from _grid(dataset, less, four, seeds, {0.0, 0.3, 0.5, 0.7, 1.0}, loss=weights, parties=4)
    for name, loss in OLD_ABLATIONS.items():
        yield from _grid(dataset, budget, ["xvfl+"], seeds, {0.5, 0.9}, loss=loss, name=name)


def _half(budget: Config) -> Config:
    rows = (budget["rows"][0] // 2, budget["rows"][1])
    return {**budget, "rows": rows, "epochs": budget["epochs"] // 2}


def _grid(
    dataset: str,
    budget: Config,
    methods: Any,
    seeds: int,
    rates: set[float],
    setting: Mapping[str, Any] | None = None,
    loss: Mapping[str, Any] | None = None,
    parties: int = 2,
    name: str | None = None,
) -> Iterator[Config]:
    train = {"epochs": budget["epochs"], "patience": 0, **budget.get("train", {})}
    for method in methods:
        for seed in range(seeds):
            for rate in sorted(rates):
                run = {
                    "method": name or method,
                    "rate": rate,
                    "seed": seed,
                    "loss": {"method": method, **(loss or {})},
                    "train": {**train, "seed": seed},
                    **(setting or {}),
                }
                yield explicit(
                    {
                        "dataset": dataset,
                        "parties": parties,
                        "train_rows": budget["rows"][0],
                        "test_rows": budget["rows"][1],
                        "setting": run,
                    },
                    OLD_JOB,
                )


def explicit(config: Mapping[str, Any], defaults: Mapping[str, Any]) -> Config:
    """Fill in the defaults that a stored configuration of version 0.1.0 leaves out."""
    filled = dict(config)
    for name, default in defaults.items():
        if isinstance(default, dict):
            filled[name] = explicit(config.get(name, {}), default)
        else:
            filled.setdefault(name, default)
    return filled


def old_key(job: Mapping[str, Any]) -> str:
    """Hash a job as version 0.1.0 did: fields at their defaults left out."""
    text = json.dumps([OLD_PROTOCOL, _without_defaults(job, OLD_JOB)], sort_keys=True)
    return blake2b(text.encode(), digest_size=10).hexdigest()


def _without_defaults(config: Mapping[str, Any], defaults: Mapping[str, Any]) -> Config:
    short: Config = {}
    for name, value in config.items():
        default = defaults.get(name)
        if isinstance(default, dict):
            inner = _without_defaults(value, default)
            if inner:
                short[name] = inner
        elif name not in defaults or value != default:
            short[name] = value
    return short


def renamed(config: Mapping[str, Any], group: str = "") -> Config:
    """Give options their new names and add the new ones."""
    out: Config = {}
    for name, value in config.items():
        new = RENAMED.get(f"{group}.{name}" if group else name, name)
        path = f"{group}.{new}"
        if path in REMOVED:
            continue
        automatic = path in AUTOMATIC and value in (0, "auto")
        out[new] = renamed(value, name) if isinstance(value, dict) else value
        if automatic:
            out[new] = None
    for path, value in ADDED.items():
        at, _, name = path.rpartition(".")
        if at in (group, RENAMED.get(group, group)):
            out.setdefault(name, value)
    return out


def migrated(job: Mapping[str, Any]) -> Config:
    """Bring a job to today's names; raise if its options are not exactly today's."""
    config = renamed(job)
    today = asdict(Job("", 0, 0, 0, RunConfig("", 0.0, 0)))
    different = sorted(set(_paths(config)) ^ set(_paths(today)))
    if different:
        raise RunError(
            f"options {', '.join(different)} are not the same in stored runs and today's code; "
            "extend RENAMED or ADDED in this script"
        )
    return config


def _paths(config: Mapping[str, Any], prefix: str = "") -> Iterator[str]:
    for name, value in config.items():
        if isinstance(value, dict):
            yield from _paths(value, f"{prefix}{name}.")
        else:
            yield prefix + name


def migrated_runs(path: Path) -> list[tuple[Config, Config]]:
    """Read a file of runs; return each run's configuration with today's names, and its record."""
    records = read_jsonl(path)
    shared = {each["config_id"]: each["config"] for each in records if "config_id" in each}
    results = {each["key"]: each for each in records if "key" in each}
    old: dict[str, Config] = {}
    if any("config" not in each for each in results.values()):
        old = {old_key(job): job for job in old_jobs(path.stem)}
    runs, unknown = [], []
    for key, record in results.items():
        if "config" in record:
            job = join_config(shared[record["config"]], record["rate"], record["seed"])
            runs.append((migrated(job), record))
        elif key in old:
            runs.append((migrated(old[key]), record))
        else:
            unknown.append(f"{key} ({record.get('name')}, R_miss {record.get('rate')})")
    if unknown:
        raise RunError(
            f"{path}: {len(unknown)} of {len(results)} results match no configuration: "
            f"{', '.join(unknown[:5])}; no file was changed"
        )
    return runs


def write_runs(path: Path, runs: Iterable[tuple[Config, Config]]) -> None:
    """Replace a file of runs."""
    with atomic_write(path) as temporary:
        temporary.touch()
        store = RunStore(temporary)
        for job, record in runs:
            about = ("seconds", "hardware", "data", "majority", "metrics")
            store.append(job, {name: record[name] for name in about})


FIGURES: dict[str, Callable[[Config], Config]] = {
    "boundary": lambda old: {
        "data": old["data"],
        "grid": old["grid"],
        "runs": [_run(each) for each in old.get("runs", old.get("settings", []))],
    },
    "confidence": lambda old: {
        "jobs": [migrated(explicit(job, OLD_JOB) if _old(job) else job) for job in old["jobs"]],
        "half_resolution": old.get("half_resolution", old.get("halved")),
        "like": old["like"],
    },
    "rounds": lambda old: {
        "known": old["known"],
        "digits": [_run(each) for each in old["digits"]],
        "rounds": old["rounds"],
    },
    "unlabeled": lambda old: _runs_inside(old),
    "tuning": lambda old: _runs_inside(old),
}
"""The cached figures: from the old configuration to today's."""


def _runs_inside(value: Any) -> Any:
    """Bring the configurations of runs at any depth to today's names."""
    if isinstance(value, list):
        return [_runs_inside(each) for each in value]
    if not isinstance(value, dict):
        return value
    if {"net", "loss", "train", "seed"} <= value.keys():
        return _run(value)
    return {name: _runs_inside(each) for name, each in value.items()}


def _old(config: Mapping[str, Any]) -> bool:
    return "config" not in config and "weights" not in config


def _run(run: Config) -> Config:
    """Bring the configuration of a single run to today's names."""
    full = explicit(run, OLD_SETTING) if _old(run) else run
    job = {"dataset": "", "parties": 0, "train_rows": 0, "test_rows": 0}
    half = "halved" if _old(run) else "half_resolution"
    config: Config = migrated({**job, "setting" if _old(run) else "config": full, half: False})
    return dict(config["config"])


def rekey_figure(folder: Path, pictures: Path) -> None:
    """Rewrite the key of a cached figure: in its record, its arrays and its picture."""
    name = folder.name
    path = folder / f"{name}.json"
    record = json.loads(path.read_text(encoding="utf-8"))
    config = FIGURES[name](record["config"])
    old, key = record["key"], key_of(config)
    if old == key:
        return
    record = {**record, "key": key, "config": config}
    with atomic_write(path) as temporary:
        text = json.dumps(record, indent=1, ensure_ascii=False) + "\n"
        temporary.write_text(text, encoding="utf-8")
    arrays = folder / f"{name}.npz"
    if arrays.exists():
        with np.load(arrays, allow_pickle=False) as loaded:
            content = {**{each: loaded[each] for each in loaded.files}, "key": np.array(key)}
        with atomic_write(arrays) as temporary, temporary.open("wb") as file:
            np.savez_compressed(file, allow_pickle=False, **content)
    picture = pictures / f"{name}.png"
    if picture.exists():
        with atomic_write(picture) as temporary:
            temporary.write_bytes(_marked(picture.read_bytes(), old, key))


def _marked(png: bytes, old: str, key: str) -> bytes:
    """Replace the figure's key in the text chunk of a PNG file; the pixels stay as they are."""
    text = b"tEXt" + MARK.encode() + b"\0"
    before, after = text + old.encode(), text + key.encode()
    crc_before, crc_after = (zlib.crc32(each).to_bytes(4, "big") for each in (before, after))
    return png.replace(before + crc_before, after + crc_after)


def main() -> None:
    """Rewrite the runs and figures of a folder of results."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("results", type=Path, nargs="?", default=Path("lab/results"))
    parser.add_argument("--pictures", type=Path, help="folder of NAME/NAME.png, if another one")
    options = parser.parse_args()
    paths = sorted((options.results / "runs").glob("*.jsonl"))
    for path, runs in {path: migrated_runs(path) for path in paths}.items():
        write_runs(path, runs)
        print(f"{path}: {len(runs)} runs")
    for name in FIGURES:
        if (options.results / name / f"{name}.json").exists():
            rekey_figure(options.results / name, (options.pictures or options.results) / name)
            print(f"{options.results / name}: done")


if __name__ == "__main__":
    main()
