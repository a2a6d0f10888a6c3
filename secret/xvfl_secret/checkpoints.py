"""Checkpoints of a node: its shares of the weights and the momentum after a number of steps."""

import json
import os
import shutil
from collections.abc import Iterable, Mapping
from hashlib import sha256
from pathlib import Path

import numpy as np

from xvfl_secret.head import STATE
from xvfl_secret.inputs import load
from xvfl_secret.shares import Share

KEPT = 2
"""Checkpoints that are kept: nodes that end at once differ by at most one."""


class Checkpoints:
    """The checkpoints of one training, in a folder of its own."""

    def __init__(self, folder: Path, fingerprint: Mapping[str, str]) -> None:
        text = json.dumps(fingerprint, sort_keys=True)
        self.name = sha256(text.encode()).hexdigest()
        """Identifies the training."""
        self._folder = folder / self.name[:16]
        self._folder.mkdir(parents=True, exist_ok=True)

    def steps(self) -> list[int]:
        """Return the steps with a complete checkpoint."""
        return sorted(int(each.name) for each in self._folder.iterdir() if each.name.isdecimal())

    def save(self, step: int, state: Mapping[str, Share]) -> None:
        """Write a checkpoint; delete all but the newest ones."""
        temporary, target = self._folder / "new", self._folder / str(step)
        shutil.rmtree(temporary, ignore_errors=True)
        temporary.mkdir()
        for name, share in state.items():
            with (temporary / f"{name}.npy").open("wb") as file:
                np.save(file, share, allow_pickle=False)
                file.flush()
                os.fsync(file.fileno())
        shutil.rmtree(target, ignore_errors=True)
        temporary.rename(target)
        for old in self.steps()[:-KEPT]:
            shutil.rmtree(self._folder / str(old))

    def load(self, step: int, like: Mapping[str, Share]) -> dict[str, Share]:
        """Read a checkpoint; its shapes are those of `like`."""
        folder = self._folder / str(step)
        return {name: load(folder / f"{name}.npy", np.uint64, like[name].shape) for name in STATE}


def common_step(steps: Iterable[Iterable[int]]) -> int:
    """Return the newest step of which all nodes have a checkpoint; 0 if there is none."""
    first, *others = (set(each) for each in steps)
    return max(first.intersection(*others), default=0)
