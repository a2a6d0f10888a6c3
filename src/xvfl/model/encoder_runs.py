"""Train encoders: of one party with checkpoints, and of all parties of a run in one process.

In a run folder:
encoders/PARTY.safetensors              the trained encoder
encoders/PARTY.checkpoint.safetensors   its training, until it is finished
"""

import time
from collections.abc import Callable
from dataclasses import dataclass
from threading import Event

import torch
from torch import Tensor

from xvfl.config import EncoderConfig
from xvfl.dataset.in_memory import InMemoryDataset
from xvfl.errors import ConfigError
from xvfl.federation.upload.encoder_training import EncoderTraining
from xvfl.federation.upload.views import compute_views
from xvfl.model.model import Model
from xvfl.model.run_dir import CHECKPOINT, RunDir
from xvfl.model.run_recorder import check_fingerprint
from xvfl.training.loop import Record

CHECKPOINT_SECONDS = 30.0
"""Least time between two checkpoints of an encoder."""
OnRecord = Callable[[str, EncoderTraining, Record], None]
"""Called with the name of a party, the training of its encoder, and a record."""


def train_encoder(
    training: EncoderTraining,
    folder: RunDir | None,
    stop: Event,
    on_record: Callable[[Record], None],
    checkpoint: str = CHECKPOINT,
    fingerprint: str = "",
) -> bool:
    """Train until the last epoch or `stop`; return whether it finished.

    With a folder, an interrupted training continues from its checkpoint, if that has the same
    fingerprint.
    """
    trainer, saved = training.trainer, time.monotonic()
    if folder is not None and folder.has(checkpoint):
        tensors, about = folder.load_tensors(checkpoint)
        check_fingerprint(folder, about, fingerprint)
        trainer.restore(tensors, about["progress"])
    for record in training.run():
        on_record(record)
        stopped = stop.is_set()
        if folder is not None and (stopped or time.monotonic() - saved > CHECKPOINT_SECONDS):
            tensors, progress = trainer.state()
            about = {"progress": progress, "fingerprint": fingerprint}
            folder.save_tensors(checkpoint, tensors, about)
            saved = time.monotonic()
        if stopped:
            return False
    return True


def tables_on_disk() -> ConfigError:
    """Return the error of a run whose tables are on disk."""
    return ConfigError(
        "label_protection 'no_gradients': expected tables in memory; set `out_of_core = false`, "
        "or label_protection 'off' or 'noise'"
    )


@dataclass(frozen=True)
class LocalUploads:
    """The encoders of all parties in one process, each trained alone, and their uploads."""

    dataset: InMemoryDataset
    model: Model
    config: EncoderConfig
    folder: RunDir | None
    fingerprint: str

    def run(self, resume: bool, stop: Event, on_record: OnRecord) -> dict[str, Tensor]:
        """Train the encoders of the model and embed all rows; fewer parties if stopped."""
        uploads = {}
        for at, name in enumerate(self.model.encoders):
            handles = self.dataset.rows.handles[self.dataset.train, at]
            if self._train(name, handles[handles >= 0], resume, stop, on_record):
                uploads[name] = self._views(name)
        return uploads

    def _train(
        self, name: str, handles: Tensor, resume: bool, stop: Event, on_record: OnRecord
    ) -> bool:
        """Train one party's encoder; return whether it is trained."""
        net, config, folder = self.model.parties[name], self.config, self.folder
        if config.epsilon is not None:
            return True
        trained, checkpoint = (f"encoders/{name}{each}.safetensors" for each in ("", ".checkpoint"))
        if folder is not None and not resume:
            for file in (trained, checkpoint):
                (folder / file).unlink(missing_ok=True)
        if folder is not None and folder.has(trained):
            weights, about = folder.load_tensors(trained)
            check_fingerprint(folder, about, self.fingerprint)
            net.load_state_dict(weights)
            return True
        if stop.is_set():
            return False
        table, device = self.dataset.tables[name], next(net.parameters()).device
        seeds = [self.model.random_state]
        training = EncoderTraining(name, net, table, handles.to(device), config, seeds)

        def report(record: Record) -> None:
            on_record(name, training, record)

        if not train_encoder(training, folder, stop, report, checkpoint, self.fingerprint):
            return False
        if folder is not None:
            folder.save_tensors(trained, net.state_dict(), {"fingerprint": self.fingerprint})
            (folder / checkpoint).unlink(missing_ok=True)
        return True

    def _views(self, name: str) -> Tensor:
        """Compute a party's upload of all its rows. (n, 1 + c, d)"""
        table = self.dataset.tables[name]
        device = next(self.model.parties[name].parameters()).device
        handles = torch.arange(len(table), device=device)
        return compute_views(self.model.worker(name, table.to(device)), handles, self.config.copies)
