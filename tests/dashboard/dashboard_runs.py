"""Run folders for the tests of the dashboard."""

from pathlib import Path

import numpy as np

from tests.small_tables import CONFIG, train, write_run_inputs
from xvfl.model.run_dir import RunDir
from xvfl.model.workflow import evaluate_run

IMAGES = """
[labels]
table = "labels.csv"
id_column = "id"
column = "digit"

[parties.left]
table = "left.npz"

[parties.right]
table = "right.npz"

[net]
embedding_dim = 8
hidden_dim = 16
n_blocks = 1

[train]
epochs = 2
device = "cpu"
"""


def write_images(folder: Path, rows: int = 200) -> Path:
    """Write the left and right halves of scanned digits as images, and a configuration."""
    from sklearn.datasets import load_digits

    folder.mkdir(parents=True, exist_ok=True)
    data = load_digits()
    pixels, y = data.images[:rows].astype(np.float32) / 16, data.target[:rows]
    ids = np.array([f"d{i}" for i in range(rows)])
    rng = np.random.default_rng(0)
    for name, half in (("left", pixels[:, :, :4]), ("right", pixels[:, :, 4:])):
        observed = (
            rng.random(half.shape) < np.where(rng.random(rows) < 0.5, 1.0, 0.6)[:, None, None]
        )
        np.savez(folder / f"{name}.npz", images=half, ids=ids, observed=observed)
    lines = "\n".join(f"{i},{label}" for i, label in zip(ids, y, strict=True))
    (folder / "labels.csv").write_text(f"id,digit\n{lines}\n")
    (folder / "run.toml").write_text(IMAGES)
    return folder / "run.toml"


def make_runs(folder: Path) -> Path:
    """Train and evaluate a run of tables and one of images; return the folder of the runs."""
    (folder / "inputs").mkdir(parents=True)
    tables = write_run_inputs(folder / "inputs", CONFIG, 300)
    images = write_images(folder / "images")
    for config, name in ((tables, "tables"), (images, "images")):
        train(config, folder / "runs" / name)
        evaluate_run(RunDir(folder / "runs" / name))
    return folder / "runs"


def make_regression_run(folder: Path) -> Path:
    """Train and evaluate a run with a numeric label; return the folder of the runs."""
    (folder / "inputs").mkdir(parents=True)
    text = CONFIG.replace('column = "churned"', 'column = "balance"\ntask = "regression"')
    config = write_run_inputs(folder / "inputs", text, 300)
    train(config, folder / "runs" / "numbers")
    evaluate_run(RunDir(folder / "runs" / "numbers"))
    return folder / "runs"
