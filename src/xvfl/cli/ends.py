"""The end of a process of a federation: its log says why, and its exit code suits systemd."""

import traceback
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import typer

from xvfl.cli.output import print_error
from xvfl.errors import XVFLError
from xvfl.system.signals import stop_code


@contextmanager
def logged_end(state_dir: str) -> Iterator[None]:
    """Log how a block ends if it fails or is stopped; the exit code after one SIGTERM is 0.

    The event is `failed` or `stopped`, with the exit code; there is none before the state folder
    exists.
    """
    try:
        yield
    except XVFLError as error:
        _log(state_dir, "failed", 2, str(error))
        raise
    except KeyboardInterrupt:
        code = stop_code()
        _log(state_dir, "stopped", code, "SIGTERM" if code == 0 else "interrupted")
        if code:
            print_error("interrupted")
        raise typer.Exit(code) from None
    except Exception:
        _log(state_dir, "failed", 1, traceback.format_exc())
        raise


def _log(state_dir: str, event: str, code: int, reason: str) -> None:
    from xvfl.system.event_log import EventLog

    if (folder := Path(state_dir)).is_dir():
        log = EventLog(folder, "", show=False)
        log({"event": event, "reason": reason, "exit_code": code})
