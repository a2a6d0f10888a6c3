"""Records of the epochs of a run, in the run folder and in the log."""

import time
from collections.abc import Mapping
from typing import Any

from xvfl.federation.elastic import ElasticFederation
from xvfl.model.dashboard.curves import curves
from xvfl.model.run_dir import RECORDS, RunDir
from xvfl.service.log import LogFunction
from xvfl.system.write_guard import WriteGuard
from xvfl.training.loop import Record


class EpochRecords:
    """Writes a record after every epoch; keeps those that cannot be written yet."""

    def __init__(
        self, folder: RunDir, federation: ElasticFederation, writes: WriteGuard, log: LogFunction
    ) -> None:
        self._folder, self._federation, self._writes, self._log = folder, federation, writes, log
        self._started = time.monotonic()
        self._unwritten: list[dict[str, Any]] = []
        self._batches = self._count_batches()
        self._lines = folder.records()

    @property
    def seconds(self) -> float:
        """Seconds since the coordinator started or resumed the run."""
        return time.monotonic() - self._started

    def curves(self) -> dict[str, Any]:
        """Return the loss terms and the validation loss of each mode, by epoch."""
        return curves(list(self._lines))

    def add(self, record: Record, losses: Mapping[str, float]) -> None:
        """Record an epoch with its validation loss by mode."""
        progress, federation = record.progress, self._federation
        before, self._batches = self._batches, self._count_batches()
        line = {
            "kind": "epoch",
            "epoch": progress.epoch,
            "step": progress.step,
            "best_epoch": progress.best_epoch + 1,
            **record.values,
            "modes": dict(losses),
            "parties": len(federation.present),
            "batches": {name: n - before.get(name, 0) for name, n in self._batches.items()},
            "seconds": round(self.seconds, 3),
        }
        self._unwritten.append(line)
        self._lines.append(line)
        self._writes.attempt(RECORDS, self.write)
        self._log({"event": "epoch", **line})

    def write(self) -> None:
        """Append the records that are not in the file yet."""
        while self._unwritten:
            self._folder.append_record(self._unwritten[0])
            del self._unwritten[0]

    def _count_batches(self) -> dict[str, int]:
        return {member.party.name: member.batches for member in self._federation.members}
