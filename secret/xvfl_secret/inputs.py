"""The inputs of a node: its shares of embeddings and labels, and who holds which row.

    task/task.json       the description of the training
    task/handles.npy     (N, k) int32: the handle of each row at each party, −1 without one
    task/part.npy        (N,) uint8: 0 training, 1 validation, 2 test, 3 without a label
    task/y.npy           (N, 1, 2) share of the labels
    task/p.npy, v, c     shares of the head's first weights
    party-NAME/about.json    session and digest of the upload
    party-NAME/views.npy     (n, 1 + c, d, 2) share of the embeddings: as observed, masked copies
    party-NAME/w.npy         (d, h, 2) share of the head's first weights for this embedding
    party-NAME/observed.npy  (n,) uint8: whether the party observed anything of the row

Shapes: N rows of the label table, k parties, n rows of a party, c masked copies, d numbers of an
embedding, D of all parties', h hidden units, B rows of a batch.
"""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from xvfl_secret.errors import SecretError
from xvfl_secret.head import NAMES
from xvfl_secret.settings import Task, read, read_json
from xvfl_secret.shares import Share

TRAINING = 0
ANY = -1


class Inputs:
    """The shares of a node, read row by row from files."""

    def __init__(self, folder: Path) -> None:
        task = folder / "task"
        if not (task / "task.json").is_file():
            raise SecretError(f"{folder}: the task is missing; give its file to the command")
        self.task = read(Task, task / "task.json")
        k = len(self.task.parties)
        self.handles = load(task / "handles.npy", np.int32, (ANY, k))
        n_rows = len(self.handles)
        self.part = load(task / "part.npy", np.uint8, (n_rows,))
        self.y = load(task / "y.npy", np.uint64, (n_rows, 1, 2))
        self.views: list[Share] = []
        self.observed: list[NDArray[np.uint8]] = []
        weights: list[Share] = []
        self.digests: dict[str, str] = {}
        for i, name in enumerate(self.task.parties):
            self._load_party(
                folder / f"party-{name}", name, self.task.sessions[i], self.handles[:, i]
            )
            weights.append(
                load(folder / f"party-{name}" / "w.npy", np.uint64, (self.widths[i], ANY, 2))
            )
        self.present = np.stack(
            [
                (handles >= 0) & (observed[np.maximum(handles, 0)] > 0)
                for handles, observed in zip(self.handles.T, self.observed, strict=True)
            ],
            1,
        )
        """(N, k) whether each party holds and observed the row."""
        self.state = _first_state(task, weights)

    def _load_party(
        self, folder: Path, name: str, session: str, handles: NDArray[np.int32]
    ) -> None:
        if not (folder / "about.json").is_file():
            raise SecretError(f"{folder}: missing; give the file of {name} to the command")
        about = read_json(folder / "about.json")
        if about.get("session") != session:
            raise SecretError(
                f"{name}: its share belongs to another alignment than the task; make both again"
            )
        views = load(folder / "views.npy", np.uint64, (ANY, ANY, ANY, 2))
        if handles.size and not -1 <= handles.min() <= handles.max() < len(views):
            raise SecretError(f"{name}: expected handles of its {len(views)} rows, or -1")
        self.views.append(views)
        self.observed.append(load(folder / "observed.npy", np.uint8, (len(views),)))
        self.digests[name] = str(about.get("digest"))

    @property
    def widths(self) -> list[int]:
        """Width of each party's embedding."""
        return [each.shape[2] for each in self.views]

    @property
    def fingerprint(self) -> dict[str, str]:
        """What determines the training; the same at all nodes."""
        return {"task": self.task.digest, **self.digests}

    def training_rows(self) -> NDArray[np.int64]:
        """Return the rows that train: with a label, and held by a party."""
        return np.flatnonzero((self.part == TRAINING) & self.present.any(1))

    def embeddings(self, rows: NDArray[np.int64], views: NDArray[np.int64] | None = None) -> Share:
        """Return this node's share of the rows' embeddings, side by side. (B, D, 2)

        `views` (B, k) chooses a copy of each row and party; by default, the row as observed. The
        embedding of a party without the row is zero.
        """
        parts = []
        for i, stored in enumerate(self.views):
            at = np.maximum(self.handles[rows, i], 0)
            chosen = 0 if views is None else views[:, i]
            here = self.present[rows, i].astype(np.uint64)[:, None, None]
            if not len(stored):
                parts.append(np.zeros((len(rows), self.widths[i], 2), np.uint64))
                continue
            parts.append(stored[at, chosen] * here)
        return np.concatenate(parts, 1)

    def presence(self, rows: NDArray[np.int64]) -> NDArray[np.float32]:
        """Return which parties hold each row, and a column of ones. (B, k + 1)"""
        ones = np.ones((len(rows), 1), bool)
        return np.concatenate([self.present[rows], ones], 1).astype(np.float32)

    def shapes(self, n_rows: int) -> Mapping[str, tuple[int, ...]]:
        """Return the shapes of a batch and of the state, by name."""
        batch = {"x": (n_rows, sum(self.widths)), "present": (n_rows, len(self.widths) + 1)}
        return batch | {name: share.shape[:-1] for name, share in self.state.items()}


def _first_state(folder: Path, weights: list[Share]) -> dict[str, Share]:
    """Return the head's first weights; the momentum is zero, which needs no secret."""
    hidden = load(folder / "v.npy", np.uint64, (ANY, 1, 2)).shape[0]
    if any(each.shape[1] != hidden for each in weights):
        raise SecretError(f"expected {hidden} hidden units in the shares of all parties")
    shapes = {"p": (len(weights) + 1, hidden, 2), "v": (hidden, 1, 2), "c": (1, 1, 2)}
    state = {"w": np.concatenate(weights)}
    state |= {
        name: load(folder / f"{name}.npy", np.uint64, shape) for name, shape in shapes.items()
    }
    return state | {f"m{name}": np.zeros_like(state[name]) for name in NAMES}


def load(path: Path, dtype: type[np.generic], shape: tuple[int, ...]) -> NDArray[Any]:
    """Map an array from a file; reject another type or shape (`ANY` fits every size)."""
    try:
        array: NDArray[Any] = np.load(path, mmap_mode="r", allow_pickle=False)
    except (OSError, ValueError) as error:
        raise SecretError(f"{path}: cannot be read ({error})") from error
    fits = len(array.shape) == len(shape) and all(
        want in (ANY, got) for want, got in zip(shape, array.shape, strict=False)
    )
    if array.dtype != dtype or not fits:
        raise SecretError(
            f"{path}: expected {np.dtype(dtype)} of shape {shape} (-1: any), got {array.dtype} of "
            f"shape {array.shape}"
        )
    return array
