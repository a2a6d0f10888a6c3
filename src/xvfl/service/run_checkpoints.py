"""Common checkpoints of a run: the same step at the coordinator and at all parties."""

from collections.abc import Mapping
from typing import Any

from torch import Tensor

from xvfl.errors import RunError
from xvfl.federation.elastic import ElasticFederation
from xvfl.model.run_dir import CHECKPOINT, RunDir
from xvfl.service.log import LogFunction
from xvfl.service.outcome import restore_participation, save_participation
from xvfl.system.write_guard import WriteGuard
from xvfl.training.loop import Trainer


class RunCheckpoints:
    """Saves checkpoints of a run."""

    def __init__(
        self,
        folder: RunDir,
        federation: ElasticFederation,
        images: Mapping[str, bool],
        writes: WriteGuard,
        log: LogFunction,
        step: int,
    ) -> None:
        """Start at the step of the last checkpoint; `images` says which parties hold images."""
        self._folder, self._federation, self._images = folder, federation, images
        self._writes, self._log = writes, log
        self.saved_step = self.attempted_step = step
        """Step of the last checkpoint, and of the last attempt to save one."""

    def save(self, trainer: Trainer) -> None:
        """Save a checkpoint of this step at all parties and here; nowhere if it fails here."""
        federation = self._federation
        step = self.attempted_step = trainer.progress.step
        tensors, progress = trainer.state()
        tensors |= {f"row_status/{name}": value for name, value in row_status(federation).items()}
        about = {
            "run": federation.terms.run,
            "step": step,
            "update": federation.counters.update,
            "keep": federation.best_state(),
            "progress": progress,
            "settings": federation.terms.settings,
            "parties": list(federation.names),
            "images": self._images,
            "participation": save_participation(federation),
        }

        def write() -> None:
            with self._folder.transaction():
                self._folder.save_tensors(CHECKPOINT, tensors, about)
                federation.flush(save=step)

        if self._writes.attempt(CHECKPOINT, write):
            self.saved_step = step
            self._log({"event": "checkpoint", "step": step})


def load_checkpoint(folder: RunDir) -> tuple[dict[str, Tensor], dict[str, Any]]:
    """Load the last checkpoint; empty if there is none."""
    return folder.load_tensors(CHECKPOINT) if folder.has(CHECKPOINT) else ({}, {})


def restore_federation(
    federation: ElasticFederation, folder: RunDir, saved: dict[str, Tensor], about: dict[str, Any]
) -> None:
    """Restore the federation of a checkpoint; take the row status out of the saved tensors."""
    unchanged = about["settings"] == federation.terms.settings
    if not unchanged or about["parties"] != list(federation.names):
        raise RunError(
            f"{folder.path}: the configuration changed since this run started; "
            "restore it, or choose another `state_dir`"
        )
    federation.counters.update, federation.step = about["update"], about["step"]
    federation.restore_best_state(about["keep"])
    restore_participation(federation, about["participation"])
    for member in federation.members:
        member.row_status = saved.pop(f"row_status/{member.party.name}")


def row_status(federation: ElasticFederation) -> dict[str, Tensor]:
    """Return the observation levels that each party has reported."""
    levels = {}
    for member in federation.members:
        assert member.row_status is not None
        levels[member.party.name] = member.row_status
    return levels
