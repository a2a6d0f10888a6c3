"""Stop requests by signal."""

import signal
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from types import FrameType

STOP_SIGNALS = (signal.SIGINT, signal.SIGTERM)
STOP_TIMEOUT_S = 20
"""Seconds that a service may take to stop before it is interrupted."""
INTERRUPTED = 130
"""Exit code of a command that Ctrl-C has stopped, or that did not stop in time."""
_codes: list[int] = []
"""Exit codes of the stop signals that this process has received."""


def stop_code() -> int:
    """Return the exit code of a command that a signal has stopped: 0 after one SIGTERM."""
    return _codes[0] if len(_codes) == 1 else INTERRUPTED


def stopped_event() -> dict[str, str | int]:
    """Return the log event of a process that a signal has stopped: the reason and its exit code."""
    code = stop_code()
    reason = "SIGTERM" if code == 0 else "interrupted"
    return {"event": "stopped", "reason": reason, "exit_code": code}


class StopRequest(threading.Event):
    """Set by the first stop signal."""

    def __init__(self) -> None:
        super().__init__()
        self.waiting = False
        """Whether the main thread only waits, so that a signal may interrupt it at once."""


@contextmanager
def stop_on_signals(
    signals: Sequence[signal.Signals] = STOP_SIGNALS,
    on_stop: Callable[[], None] | None = None,
    timeout: int = 0,
) -> Iterator[StopRequest]:
    """Turn the first of these signals into a stop request; a second one interrupts at once.

    The first signal sets the yielded event, then calls `on_stop`. If the block does not end within
    `timeout` seconds (0: no limit), `KeyboardInterrupt` is raised in it. The old handlers are
    restored at the end. Outside the main thread, where Python handles no signals, the event is
    never set.
    """
    stop = StopRequest()
    if threading.current_thread() is not threading.main_thread():
        yield stop
        return

    def handle(number: int, frame: FrameType | None) -> None:
        _codes.append(0 if number == signal.SIGTERM else INTERRUPTED)
        if stop.is_set() or stop.waiting:
            raise KeyboardInterrupt
        stop.set()
        signal.alarm(timeout)
        if on_stop is not None:
            on_stop()

    previous = {each: signal.signal(each, handle) for each in (*signals, signal.SIGALRM)}
    try:
        yield stop
    finally:
        signal.alarm(0)
        for number, handler in previous.items():
            signal.signal(number, handler)


@contextmanager
def interruptible(stop: threading.Event) -> Iterator[None]:
    """Let a signal interrupt the block at once: it waits, and nothing would be lost."""
    if not isinstance(stop, StopRequest):
        yield
        return
    stop.waiting = True
    try:
        if stop.is_set():
            raise KeyboardInterrupt
        yield
    finally:
        stop.waiting = False
