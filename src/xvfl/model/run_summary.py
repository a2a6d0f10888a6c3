"""`run.json`: what a run trains, and whether it still does. Written when training starts and ends.

A run whose process was killed has no end; `is_running` looks for its process.
"""

import os
import socket
import warnings
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from datetime import UTC, datetime
from typing import Any

from xvfl.model.run_dir import RunDir

SUMMARY = "run.json"


def start_summary(about: Mapping[str, Any]) -> dict[str, Any]:
    """Return the contents of `run.json` of a run that starts in this process."""
    return {
        **about,
        "state": "training",
        "host": socket.gethostname(),
        "pid": os.getpid(),
        "started": now_text(),
    }


@contextmanager
def record_run(folder: RunDir, about: Mapping[str, Any]) -> Iterator[dict[str, Any]]:
    """Write `run.json` at the start of a block and at its end; the block may change it.

    `state` is `training`, then `ended`, or `failed` with the reason as `problem`. The block may
    set another one.
    """
    data = start_summary(about)
    folder.write_json(SUMMARY, data)
    try:
        yield data
        if data["state"] == "training":
            data["state"] = "ended"
    except BaseException as error:
        data |= {"state": "failed", "problem": str(error) or type(error).__name__}
        raise
    finally:
        data["ended"] = now_text()
        folder.write_json(SUMMARY, data)


def is_running(data: Mapping[str, Any]) -> bool:
    """Return whether the process of a run exists; one on another machine is assumed to."""
    if data.get("state") != "training":
        return False
    if data.get("host") != socket.gethostname():
        return True
    try:
        os.kill(int(data["pid"]), 0)
    except (ProcessLookupError, KeyError, TypeError, ValueError, OverflowError):
        return False
    except PermissionError:
        pass
    return True


def now_text() -> str:
    """Return the current time in UTC, as ISO 8601."""
    return datetime.now(UTC).isoformat(timespec="seconds")


@contextmanager
def recorded_warnings() -> Iterator[list[str]]:
    """Collect the texts of warnings, and show them as before."""
    before, texts = warnings.showwarning, list[str]()

    def show(message: Warning | str, *rest: Any, **more: Any) -> None:
        texts.append(str(message))
        before(message, *rest, **more)

    warnings.showwarning = show
    try:
        yield texts
    finally:
        warnings.showwarning = before
