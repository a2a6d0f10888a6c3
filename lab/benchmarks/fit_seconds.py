"""Compare CPU seconds of a default fit with those of an earlier version, and with LightGBM's.

    python lab/benchmarks/fit_seconds.py bank large wide
    python lab/benchmarks/fit_seconds.py bank large --share 0.25 --seeds 0
    python lab/benchmarks/fit_seconds.py adult --adult adult.csv --kept fits.jsonl

`bank` are all rows of Bank Marketing, `adult` a CSV file with the label in its last column; `large`
(240,000 x 30) and `wide` (1,100 x 2,000) are generated. Two parties have half of the columns each.
The two versions take turns, each in a process of its own with one thread and the defaults; the
earlier one is installed from its wheels by `scripts/version`. A small fit comes before the timed
one, because the first imports take seconds. A fit ends when the model is saved, because versions
from 0.4.0 on fit the model of cells then. The script prints each fit as it ends, then means over
the seeds: AUROC of held-out rows, collaborative; CPU seconds to predict 300,000 rows
(`--predicted`), which are repeated held-out rows, of at most 20 million cells; the peak memory of
the process after the fit, and at the end, in MiB. With `--kept`, finished fits are kept in a file
and not repeated; delete it after a change of the code.
"""

import argparse
import json
import os
import resource
import shlex
import shutil
import subprocess
import sys
import tempfile
import time
import warnings
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import lightgbm
import numpy as np
import pandas as pd
from sklearn.metrics import roc_auc_score

Split = tuple[dict[str, pd.DataFrame], pd.Series]
"""The two parties' rows, and labels 0 and 1."""
PARTS = ("train", "test")
FIELDS = ("cpu", "predict", "memory of fit", "memory of predict", "auroc")
MAX_CELLS = 20_000_000
ROOT = Path(__file__).resolve().parents[2]


def read_bank(_: argparse.Namespace) -> tuple[pd.DataFrame, pd.Series]:
    """Read all rows of Bank Marketing."""
    from xvfl_lab.datasets import find
    from xvfl_lab.datasets.table_sets import Table

    files = find("bank")
    if files is None:
        raise SystemExit("bank: expected the file in $XVFL_DATA (docs/datasets.md)")
    table = files.format.read(files.paths)
    assert isinstance(table, Table)
    return table.frame, pd.Series(table.y)


def read_adult(options: argparse.Namespace) -> tuple[pd.DataFrame, pd.Series]:
    """Read the CSV file with the label in its last column."""
    if options.adult is None:
        raise SystemExit("adult: expected --adult FILE")
    frame = pd.read_csv(options.adult, skipinitialspace=True, na_values="?")
    return frame.iloc[:, :-1], frame.iloc[:, -1]


def make_large(_: argparse.Namespace) -> tuple[pd.DataFrame, pd.Series]:
    """Generate 300,000 rows with 30 columns: smooth, skewed, zero-inflated, categories."""
    rng = np.random.default_rng(0)
    hidden = rng.normal(size=(300_000, 8))
    columns = {}
    for i in range(30):
        value = hidden @ rng.normal(size=8) / 3 + rng.normal(size=len(hidden))
        if i % 5 == 1:
            value = np.exp(value)
        elif i % 5 == 2:
            value = np.where(value > 0.8, np.round(1000 * value), 0.0)
        elif i % 5 == 3:
            value = np.floor(3 * value)
        columns[f"x{i}"] = (
            np.array(list("abcdef"))[np.digitize(value, range(-2, 3))] if i % 5 == 4 else value
        )
    score = hidden[:, 0] + hidden[:, 1] * hidden[:, 2] + np.abs(hidden[:, 3]) + (hidden[:, 4] > 1)
    return pd.DataFrame(columns), pd.Series(score + rng.normal(size=len(score)) > 1.5)


def make_wide(_: argparse.Namespace) -> tuple[pd.DataFrame, pd.Series]:
    """Generate 3,000 rows with 2,000 columns; 1,100 of them train."""
    rng = np.random.default_rng(0)
    hidden = rng.normal(size=(3_000, 20))
    values = hidden @ rng.normal(size=(20, 2_000)) / 4 + rng.normal(size=(3_000, 2_000))
    score = hidden[:, 0] + hidden[:, 1] * hidden[:, 2] + rng.normal(size=len(hidden)) / 2
    frame = pd.DataFrame(values, columns=[f"x{i}" for i in range(2_000)])
    return frame, pd.Series(score > 0)


CASES = {"bank": read_bank, "adult": read_adult, "large": make_large, "wide": make_wide}
TRAIN_SHARE = {"bank": 0.8, "adult": 0.8, "large": 0.8, "wide": 1_100 / 3_000}


def split(case: str, options: argparse.Namespace, seed: int) -> dict[str, Split]:
    """Draw training and test rows, and halve the columns."""
    frame, label = CASES[case](options)
    y = pd.Series(pd.factorize(label, sort=True)[0])
    order = np.random.default_rng(seed).permutation(len(y))
    count = int(TRAIN_SHARE[case] * len(y))
    half = frame.shape[1] // 2
    rows = {"train": order[: int(options.share * count)], "test": order[count:]}
    parties = {"left": frame.iloc[:, :half], "right": frame.iloc[:, half:]}
    return {
        part: (
            {name: table.iloc[at].reset_index(drop=True) for name, table in parties.items()},
            y.iloc[at].reset_index(drop=True),
        )
        for part, at in rows.items()
    }


def write(folder: Path, splits: Mapping[str, Split]) -> None:
    """Write the rows for the processes; both versions read the same files."""
    for part, (tables, y) in splits.items():
        for name, table in tables.items():
            table.to_parquet(folder / f"{part}-{name}.parquet")
        y.to_frame("y").to_parquet(folder / f"{part}-y.parquet")


def read(folder: Path, part: str) -> Split:
    """Read what `write` wrote."""
    names = ("left", "right")
    tables = {name: pd.read_parquet(folder / f"{part}-{name}.parquet") for name in names}
    return tables, pd.read_parquet(folder / f"{part}-y.parquet")["y"]


def fit_once(folder: Path, seed: int, predicted: int) -> dict[str, float]:
    """Fit and predict with the installed version, in this process."""
    from xvfl import XVFLClassifier

    warnings.simplefilter("ignore")
    (tables, y), (tests, truth) = (read(folder, part) for part in PARTS)
    few = {name: table.head(300) for name, table in tables.items()}
    XVFLClassifier(device="cpu", epochs=1).fit(few, y.head(300))
    model = XVFLClassifier(device="cpu", random_state=seed)
    started = time.process_time()
    model.fit(tables, y)
    model.save(folder / "model")
    cpu, memory = time.process_time() - started, peak_memory()
    shutil.rmtree(folder / "model")
    proba = np.asarray(model.predict_proba(tests))[:, -1].astype(float)
    columns = sum(table.shape[1] for table in tests.values())
    at = np.arange(min(predicted, MAX_CELLS // columns)) % len(truth)
    many = {name: table.iloc[at].reset_index(drop=True) for name, table in tests.items()}
    started = time.process_time()
    model.predict_proba(many)
    predict = time.process_time() - started
    auroc = 100 * roc_auc_score(truth, proba)
    return dict(zip(FIELDS, (cpu, predict, memory, peak_memory(), auroc), strict=True))


def peak_memory() -> float:
    """Return the largest resident memory of this process so far, in MiB."""
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024


def fit_trees(splits: Mapping[str, Split], seed: int) -> dict[str, float]:
    """Fit LightGBM on the pooled columns."""
    (train, y), (test, truth) = (
        (pd.concat(splits[part][0].values(), axis=1), splits[part][1]) for part in PARTS
    )
    texts = train.select_dtypes(exclude="number").columns
    for name in texts:
        values = pd.CategoricalDtype(sorted(train[name].dropna().unique()))
        train[name], test[name] = train[name].astype(values), test[name].astype(values)
    trees = lightgbm.LGBMClassifier(n_jobs=1, random_state=seed, verbose=-1)
    started = time.process_time()
    trees.fit(train, y)
    cpu = time.process_time() - started
    return {"cpu": cpu, "auroc": 100 * roc_auc_score(truth, trees.predict_proba(test)[:, 1])}


def in_process(python: Sequence[str], folder: Path, seed: int, options: argparse.Namespace) -> Any:
    """Fit in a new process of a version."""
    arguments = ["--worker", folder, "--seeds", seed, "--predicted", options.predicted]
    command = [*python, __file__, *map(str, arguments)]
    one_thread = {**os.environ, "OMP_NUM_THREADS": "1"}
    done = subprocess.run(command, env=one_thread, check=True, stdout=subprocess.PIPE, text=True)
    return json.loads(done.stdout.splitlines()[-1])


class Kept:
    """Results of finished fits by name, kept in a file of JSON lines if there is a path."""

    def __init__(self, path: Path | None) -> None:
        self.path = path
        lines = path.read_text().splitlines() if path is not None and path.exists() else []
        self.found: dict[str, dict[str, float]] = dict(map(json.loads, lines))

    def get(self, name: str, fit: Callable[[], dict[str, float]]) -> dict[str, float]:
        """Return the kept result, or fit, keep the result and print it."""
        if name not in self.found:
            self.found[name] = fit()
            if self.path is not None:
                with self.path.open("a") as file:
                    file.write(json.dumps([name, self.found[name]]) + "\n")
        show(name, self.found[name])
        return self.found[name]


def compare(case: str, options: argparse.Namespace) -> None:
    """Let the versions take turns over the seeds, and print each fit and the means."""
    results: dict[str, list[dict[str, float]]] = {"old": [], "new": [], "trees": []}
    pythons = {"old": shlex.split(options.old), "new": [sys.executable]}
    kept = Kept(options.kept)
    for seed in options.seeds:
        splits = split(case, options, seed)
        with tempfile.TemporaryDirectory() as folder:
            write(Path(folder), splits)
            fits = {"trees": partial(fit_trees, splits, seed)} | {
                name: partial(in_process, python, Path(folder), seed, options)
                for name, python in pythons.items()
            }
            for name, fit in fits.items():
                key = f"{case}, {len(splits['train'][1])} rows, seed {seed}, {name}"
                results[name].append(kept.get(key, fit))
    means = {name: dict(pd.DataFrame(found).mean()) for name, found in results.items()}
    for name, mean in means.items():
        show(f"{case}, mean of {len(options.seeds)} seeds, {name}", mean)
    old, new, trees = (means[name] for name in ("old", "new", "trees"))
    ratios = {field: new[field] / old[field] for field in FIELDS if field != "auroc"}
    gained = {"auroc": new["auroc"] - old["auroc"], "cpu of trees": new["cpu"] / trees["cpu"]}
    show(f"{case}, new / old", {**ratios, **gained})


def show(name: str, values: Mapping[str, float]) -> None:
    """Print one line of figures."""
    print(f"{name}:", ", ".join(f"{field} {value:.3f}" for field, value in values.items()))
    sys.stdout.flush()


def main() -> None:
    """Read the arguments."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("cases", nargs="*", help=f"of {', '.join(CASES)}")
    parser.add_argument("--seeds", nargs="+", type=int, default=[0, 1, 2])
    parser.add_argument("--share", type=float, default=1.0, help="share of the training rows")
    parser.add_argument("--adult", type=Path, help="CSV file, label last")
    parser.add_argument("--kept", type=Path, help="file of finished fits, to resume from")
    parser.add_argument("--predicted", type=int, default=300_000, help="rows to predict")
    parser.add_argument(
        "--old",
        default=f"{ROOT / 'scripts' / 'version'} d233049",
        help="Python with the earlier version; by default the wheels of 0.3.0",
    )
    parser.add_argument("--worker", type=Path, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.worker is not None:
        print(json.dumps(fit_once(options.worker, options.seeds[0], options.predicted)))
        return
    unknown = set(options.cases) - set(CASES)
    if unknown or not options.cases:
        parser.error(f"expected cases of {', '.join(CASES)}, got {sorted(unknown)}")
    for case in options.cases:
        compare(case, options)


if __name__ == "__main__":
    main()
