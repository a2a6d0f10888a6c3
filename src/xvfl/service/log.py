"""A side's log: one JSON object a line, in its own folder."""

import json
import sys
import threading
from collections.abc import Mapping
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from xvfl.errors import RunError

LOG = "log.jsonl"


class Log:
    """Writes events; `show` also says them on standard error."""

    def __init__(self, folder: Path, who: str, show: bool = True) -> None:
        """Append to the folder's log."""
        self.path, self.who, self._show = folder / LOG, who, show
        self._lock = threading.Lock()

    def note(self, event: Mapping[str, Any]) -> None:
        """Write an event down."""
        now = datetime.now(UTC)
        line = json.dumps({"time": now.isoformat(timespec="milliseconds"), **event}, default=str)
        with self._lock:
            try:
                with self.path.open("a", encoding="utf-8") as file:
                    file.write(line + "\n")
            except OSError as error:
                raise RunError(f"{self.path}: cannot be written ({error.strerror})") from error
        if self._show:
            rest = " ".join(f"{key}={value}" for key, value in event.items() if key != "event")
            print(f"{now:%H:%M:%S} {self.who}: {event.get('event')} {rest}", file=sys.stderr)


def read_log(folder: Path) -> list[dict[str, Any]]:
    """Read a log; a line cut short by a crash is passed over."""
    path = folder / LOG
    found = []
    for line in path.read_text(encoding="utf-8").splitlines() if path.is_file() else ():
        try:
            found.append(json.loads(line))
        except ValueError:
            continue
    return found
