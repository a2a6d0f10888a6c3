"""Records and checkpoints of a run in its folder."""

import math
import time
from collections.abc import Mapping
from typing import Any

from xvfl.errors import RunError
from xvfl.model.run_dir import CHECKPOINT, RunDir
from xvfl.training.loop import Record, Trainer

CHECKPOINT_SECONDS = 15.0
"""Minimum time between two checkpoints; they are written at the end of an epoch."""


def epoch_line(record: Record, losses: Mapping[str, float], started: float) -> dict[str, Any]:
    """Describe an epoch for the records; `started` is by `time.monotonic`."""
    progress = record.progress
    return {
        "kind": "epoch",
        "epoch": progress.epoch,
        "step": progress.step,
        "best_epoch": progress.best_epoch + 1 if math.isfinite(progress.best_score) else 0,
        **record.values,
        "modes": dict(losses),
        "seconds": round(time.monotonic() - started, 3),
    }


class RunRecorder:
    """Write the records and checkpoints of a run, and resume from them; without a folder, none."""

    def __init__(self, folder: RunDir | None, trainer: Trainer, fingerprint: str) -> None:
        self.folder, self.trainer, self.fingerprint = folder, trainer, fingerprint
        self.started = self.saved = time.monotonic()

    def add(self, record: Record, losses: Mapping[str, float]) -> dict[str, Any]:
        """Append the record of an epoch with its validation loss by mode.

        Write a checkpoint if one is due.
        """
        line = epoch_line(record, losses, self.started)
        if self.folder is not None:
            self.folder.append_record(line)
            if time.monotonic() - self.saved > CHECKPOINT_SECONDS:
                self.save_checkpoint()
        return line

    def save_checkpoint(self) -> None:
        """Write the state of the trainer."""
        if self.folder is None:
            return
        tensors, progress = self.trainer.state()
        metadata = {"progress": progress, "fingerprint": self.fingerprint}
        self.folder.save_tensors(CHECKPOINT, tensors, metadata)
        self.saved = time.monotonic()

    def resume(self) -> None:
        """Restore the last checkpoint, and drop the records of later epochs."""
        if self.folder is None:
            return
        if not self.folder.has(CHECKPOINT):
            self.folder.filter_records(lambda each: False)
            return
        tensors, metadata = self.folder.load_tensors(CHECKPOINT)
        check_fingerprint(self.folder, metadata, self.fingerprint)
        self.trainer.restore(tensors, metadata["progress"])
        epoch = self.trainer.progress.epoch
        self.folder.filter_records(lambda each: each.get("epoch", 0) <= epoch)


def check_fingerprint(folder: RunDir, about: Mapping[str, Any], fingerprint: str) -> None:
    """Reject a file of a run with other options or rows."""
    if about.get("fingerprint", "") != fingerprint:
        raise RunError(
            f"{folder.path}: the configuration or the tables changed since this run started; "
            "restore them, or train into another folder"
        )
