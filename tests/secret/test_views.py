"""What the shares of one node tell, and those of two."""

from pathlib import Path

import numpy as np
import pytest
import torch
from numpy.typing import NDArray
from torch import Tensor

from tests.secret.three_nodes import needs_spu, split
from xvfl.audit.recovery import Columns, Measured
from xvfl.audit.upload_attacks import AttackOptions, attack_upload

pytestmark = needs_spu
ROWS, COLUMNS, COPIES = 2000, 4, 1
OPTIONS = AttackOptions(known_rows=(50, 200))
LARGEST_EXCESS = 0.05
"""Of a mean correlation above the shuffled control, for 2,000 rows."""
N_LABELS = 20_000


@pytest.fixture(scope="module")
def columns() -> Columns:
    rng = np.random.default_rng(0)
    values = torch.from_numpy(rng.exponential(size=(ROWS, COLUMNS)))
    known = torch.ones(ROWS, COLUMNS, dtype=torch.bool)
    return Columns(values, known, torch.ones(COLUMNS, dtype=torch.bool))


@pytest.fixture(scope="module")
def shares(columns: Columns, tmp_path_factory: pytest.TempPathFactory) -> list[NDArray[np.uint64]]:
    """The nodes' shares of embeddings from which the columns can be read, (n, 1 + c, d, 2)."""
    rng = np.random.default_rng(1)
    values = columns.values.numpy()
    masked = values * (rng.random(values.shape) < 0.7)
    views = np.tanh(np.stack([values, masked], 1) @ rng.normal(size=(COLUMNS, 8)) / 3)
    folders = split(tmp_path_factory.mktemp("views"), {"views": views})
    return [np.load(folder / "views.npy") for folder in folders]


def seen(*addends: NDArray[np.uint64]) -> Tensor:
    """Return addends of shares as numbers an attacker computes with, side by side. (n, 1 + c, d)"""
    numbers = [each.view(np.int64).astype(np.float64) for each in addends]
    scaled = np.concatenate([each / np.abs(each).max() for each in numbers], -1)
    return torch.from_numpy(scaled)


def excess(measured: list[Measured]) -> dict[str, float]:
    return {f"{each.attack}, {each.metric}": each.excess for each in measured}


@pytest.mark.parametrize("rank", range(3))
def test_one_node_reads_no_column(
    columns: Columns, shares: list[NDArray[np.uint64]], rank: int
) -> None:
    first, second = shares[rank][..., 0], shares[rank][..., 1]
    for view in (seen(first, second), seen(first + second), seen(first - second)):
        found = excess(attack_upload(view, columns, OPTIONS))
        assert len(found) >= 6
        assert max(found.values()) < LARGEST_EXCESS, found


@pytest.mark.parametrize("pair", [(0, 1), (1, 2), (2, 0)])
def test_two_nodes_read_the_columns(
    columns: Columns, shares: list[NDArray[np.uint64]], pair: tuple[int, int]
) -> None:
    one, other = (shares[rank] for rank in pair)
    together = one[..., 0] + one[..., 1] + other[..., 1]
    found = excess(attack_upload(seen(together), columns, OPTIONS))
    assert found["decoder, 200 rows, numbers"] > 0.8
    assert found["ICA, numbers"] > 0.5 and found["PCA, numbers"] > 0.3


def auc(score: NDArray[np.float64], y: NDArray[np.int64]) -> float:
    ranks = score.argsort().argsort() + 1.0
    positive = int(y.sum())
    total = float(ranks[y == 1].sum()) - positive * (positive + 1) / 2
    return total / (positive * (len(y) - positive))


def test_labels_are_seen_by_two_nodes_and_not_by_one(tmp_path: Path) -> None:
    y = (np.random.default_rng(2).random(N_LABELS) < 0.3).astype(np.int64)
    folders = split(tmp_path, {"y": y.reshape(-1, 1)})
    shares = [np.load(folder / "y.npy")[:, 0] for folder in folders]
    for share in shares:
        first, second = share[:, 0], share[:, 1]
        for score in (first, second, first + second, first - second, first ^ second):
            assert abs(auc(score.view(np.int64).astype(np.float64), y) - 0.5) < 0.03
            low = (score & np.uint64(2**23 - 1)).astype(np.float64)
            assert abs(auc(low, y) - 0.5) < 0.03
    together = shares[0][:, 0] + shares[0][:, 1] + shares[1][:, 1]
    assert auc(together.view(np.int64).astype(np.float64), y) > 0.999
