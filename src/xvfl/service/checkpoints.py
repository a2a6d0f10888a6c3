"""A party's checkpoints, in its own folder."""

from collections.abc import Mapping
from pathlib import Path

from torch import Tensor

from xvfl.errors import RunError
from xvfl.model.run_dir import RunDir

KEPT = 3
"""Checkpoints kept: the coordinator may need one before the last."""
PREFIX = "checkpoint-"


class Checkpoints:
    """Keeps the newest few of a run."""

    def __init__(self, folder: RunDir) -> None:
        """Keep them in a folder."""
        self._folder = folder

    def save(self, run: str, step: int, tensors: Mapping[str, Tensor], applied: int) -> None:
        """Keep a checkpoint, whole or not at all, and forget the oldest."""
        about = {"run": run, "step": step, "applied": applied}
        self._folder.save_tensors(_name(step), tensors, about)
        # By age, not by step: another run's checkpoints may bear higher steps.
        for old in sorted(self._paths(), key=lambda path: path.stat().st_mtime_ns)[:-KEPT]:
            old.unlink(missing_ok=True)

    def newest(self, run: str, step: int) -> tuple[int, dict[str, Tensor], int] | None:
        """Give the newest one of a run at or before a step; a damaged one is passed over."""
        for at in reversed([each for each in self._steps() if each <= step]):
            try:
                tensors, about = self._folder.load_tensors(_name(at))
            except RunError:
                continue
            if about.get("run") == run:
                return at, tensors, int(about["applied"])
        return None

    def _steps(self) -> list[int]:
        return sorted(int(path.stem.removeprefix(PREFIX)) for path in self._paths())

    def _paths(self) -> list[Path]:
        return list(self._folder.path.glob(f"{PREFIX}*.safetensors"))


def _name(step: int) -> str:
    return f"{PREFIX}{step:09}.safetensors"
