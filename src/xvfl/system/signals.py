"""Stop requests by signal."""

import signal
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from types import FrameType

STOP_SIGNALS = (signal.SIGINT, signal.SIGTERM)


@contextmanager
def stop_on_signals(
    signals: Sequence[signal.Signals] = STOP_SIGNALS, on_stop: Callable[[], None] | None = None
) -> Iterator[threading.Event]:
    """Turn the first of these signals into a stop request; a second one interrupts at once.

    The first signal sets the yielded event, then calls `on_stop`. The old handlers are restored at
    the end. Outside the main thread, where Python handles no signals, the event is
    never set.
    """
    stop = threading.Event()
    if threading.current_thread() is not threading.main_thread():
        yield stop
        return

    def handle(number: int, frame: FrameType | None) -> None:
        if stop.is_set():
            raise KeyboardInterrupt
        stop.set()
        if on_stop is not None:
            on_stop()

    previous = {each: signal.signal(each, handle) for each in signals}
    try:
        yield stop
    finally:
        for number, handler in previous.items():
            signal.signal(number, handler)
