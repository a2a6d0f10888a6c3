"""`run.json` of a coordinator: what it trains, and the last status. Contains no row."""

from collections.abc import Mapping
from typing import Any

from xvfl.model.missing_map import MISSING
from xvfl.model.run_dir import RunDir
from xvfl.model.run_summary import SUMMARY, now_text, start_summary
from xvfl.system.write_guard import WriteGuard


class RunSnapshot:
    """Writes `run.json` at the start of a run, after epochs, and at its end."""

    def __init__(
        self, folder: RunDir, writes: WriteGuard, about: Mapping[str, Any], missing: dict[str, Any]
    ) -> None:
        """Take the description of the run, and what is missing where."""
        self._folder, self._writes = folder, writes
        self._data, self.missing = start_summary(about), missing

    def start(self) -> None:
        """Write what is known before training."""
        self._writes.attempt(MISSING, lambda: self._folder.write_json(MISSING, self.missing))
        self.write({})

    def write(self, status: Mapping[str, Any], state: str = "training") -> None:
        """Write the status of the run; `state` is training, stopped, ended or failed."""
        self._data |= {"state": state, "status": dict(status), "updated": now_text()}
        self._writes.attempt(SUMMARY, lambda: self._folder.write_json(SUMMARY, self._data))
