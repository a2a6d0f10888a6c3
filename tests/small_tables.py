"""Two small tables, a configuration for them, and training as the command does."""

from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pandas as pd
import torch

from xvfl.model.fitting import FitResult, ProgressCallback, ProgressUpdate
from xvfl.model.run_dir import CHECKPOINT, MODEL, RunDir
from xvfl.model.workflow import train_run

ROWS = 120
CONFIG = """
[labels]
party = "bank"
column = "churned"

[parties.bank]
table = "bank.csv"
id_column = "customer"

[parties.shop]
table = "shop.parquet"
id_column = "customer"

[net]
embedding_dim = 8
hidden_dim = 16

[train]
epochs = 3
batch_size = 32
device = "cpu"
"""
SOURCE = Path(__file__).resolve().parents[1] / "src"


def make_tables(rows: int = ROWS, seed: int = 0) -> tuple[pd.DataFrame, pd.DataFrame, pd.Series]:
    """Sample a bank's and a shop's table with missing values, indexed by id, and related labels."""
    rng = np.random.default_rng(seed)
    hidden = rng.normal(size=rows)
    ids = pd.Index([f"c{i:03d}" for i in range(rows)], name="customer")
    bank = pd.DataFrame(
        {
            "age": np.round(45 + 10 * hidden + rng.normal(size=rows)),
            "balance": np.round(100 * hidden + 20 * rng.normal(size=rows), 2),
            "job": rng.choice(["cook", "nurse", "pilot"], rows),
        },
        index=ids,
    )
    shop = pd.DataFrame(
        {
            "visits": (10 + 3 * hidden + rng.normal(size=rows)).round().clip(0).astype(np.int64),
            "basket": np.round(50 - 9 * hidden + rng.normal(size=rows), 1),
            "club": rng.choice([True, False], rows),
        },
        index=ids,
    ).iloc[rows // 6 :]
    bank.loc[rng.random(rows) < 0.2, "age"] = np.nan
    bank.loc[rng.random(rows) < 0.2, "job"] = None
    shop.loc[rng.random(len(shop)) < 0.2, "basket"] = np.nan
    return bank, shop, pd.Series(np.where(hidden > 0, "yes", "no"), index=ids, name="churned")


def write_run_inputs(folder: Path, config: str = CONFIG, rows: int = ROWS) -> Path:
    """Write both tables and the configuration; the bank's table holds the labels."""
    bank, shop, y = make_tables(rows)
    bank.assign(churned=y).reset_index().to_csv(folder / "bank.csv", index=False)
    shop.reset_index().to_parquet(folder / "shop.parquet", index=False)
    (folder / "run.toml").write_text(config)
    return folder / "run.toml"


def train(
    config: Path, out: Path, resume: bool = False, show: ProgressCallback | None = None
) -> FitResult:
    """Train as `xvfl train` does; `show` is called with every step."""
    shown = show or (lambda update: None)
    fitted = train_run(config, config.read_text(), RunDir(out), resume, shown)
    assert fitted is not None
    return fitted


def interrupt_at(step: int) -> ProgressCallback:
    """Return a callback that raises SIGINT after a step."""
    import signal

    def show(update: ProgressUpdate) -> None:
        if update.record.kind == "step" and update.record.progress.step == step:
            signal.raise_signal(signal.SIGINT)

    return show


def assert_same_run(first: Path, second: Path) -> None:
    """Compare models and records of two runs bit for bit, except for durations."""
    a, b = (RunDir(path).load_tensors(MODEL)[0] for path in (first, second))
    assert a.keys() == b.keys()
    assert all(torch.equal(a[name], b[name]) for name in a)
    assert list(_records(first)) == list(_records(second))
    manifests = [RunDir(path).manifest() for path in (first, second)]
    assert manifests[0] == manifests[1]


def _records(run: Path) -> Iterator[dict[str, object]]:
    for record in RunDir(run).records():
        yield {name: value for name, value in record.items() if name != "seconds"}


def has_no_temporary_files(folder: Path) -> bool:
    """Return whether a folder holds no temporary files."""
    return not [path for path in folder.rglob("*") if path.name.endswith(".tmp")]


def is_png(path: Path) -> bool:
    """Return whether a file is a PNG image."""
    return path.read_bytes().startswith(b"\x89PNG")


def checkpoint_bytes(run: Path) -> bytes:
    """Return the bytes of a run's checkpoint."""
    return (run / CHECKPOINT).read_bytes()
