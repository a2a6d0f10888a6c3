"""The checkpoints of a party, in its state folder."""

from collections.abc import Mapping
from pathlib import Path

from torch import Tensor

from xvfl.errors import RunError
from xvfl.model.run_dir import RunDir

MAX_CHECKPOINTS = 3
"""Checkpoints to keep: the coordinator may need one before the last."""
PREFIX = "checkpoint-"


class Checkpoints:
    """Saves and loads checkpoints; keeps the newest few."""

    def __init__(self, folder: RunDir) -> None:
        self._folder = folder

    def save(self, run: str, step: int, tensors: Mapping[str, Tensor], last_update: int) -> None:
        """Write a checkpoint atomically and delete the oldest."""
        about = {"run": run, "step": step, "last_update": last_update}
        self._folder.save_tensors(_name(step), tensors, about)
        # Sort by age, not by step: checkpoints of another run may have higher steps.
        paths = sorted(self._paths(), key=lambda path: path.stat().st_mtime_ns)
        for path in paths[:-MAX_CHECKPOINTS]:
            path.unlink(missing_ok=True)

    def newest(self, run: str, step: int) -> tuple[int, dict[str, Tensor], int] | None:
        """Return the newest checkpoint of a run at or before a step; skip damaged ones.

        Returns
        -------
        tuple or None
            Its step, tensors, and the number of the last update last_update.

        """
        steps = [int(path.stem.removeprefix(PREFIX)) for path in self._paths()]
        for saved_step in sorted((each for each in steps if each <= step), reverse=True):
            try:
                tensors, about = self._folder.load_tensors(_name(saved_step))
            except RunError:
                continue
            if about.get("run") == run:
                return saved_step, tensors, int(about["last_update"])
        return None

    def _paths(self) -> list[Path]:
        return list(self._folder.path.glob(f"{PREFIX}*.safetensors"))


def _name(step: int) -> str:
    return f"{PREFIX}{step:09}.safetensors"
