"""Refused TLS handshakes, for the log: gRPC reports them nowhere but on the process's stderr."""

import os
import re
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, redirect_stderr
from typing import Any

FAILED = re.compile(rb"ssl_transport_security\S* Handshake failed .*OPENSSL_internal:(.*)")
WHY = {
    "PEER_DID_NOT_RETURN_A_CERTIFICATE": "it showed no certificate",
    "certificate has expired": "its certificate has expired, or this clock is wrong",
    "certificate is not yet valid": "its certificate is not yet valid, or this clock is wrong",
    "CERTIFICATE_VERIFY_FAILED": "its certificate is not of the authority trusted here",
    "HTTP_REQUEST": "it does not speak TLS",
    "WRONG_VERSION_NUMBER": "it does not speak TLS, or too old a version",
}
"""What the words of the TLS library mean here; the first that fits counts."""


@contextmanager
def log_failed_handshakes(note: Callable[[dict[str, Any]], None]) -> Iterator[None]:
    """Note every refused handshake; all that goes to stderr still gets there."""
    sys.stderr.flush()
    before = os.dup(2)
    reading, writing = os.pipe()
    os.dup2(writing, 2)
    os.close(writing)
    passing = threading.Thread(target=_pass_on, args=(reading, before, note), daemon=True)
    passing.start()
    # Python's own lines go there directly: a note that came back through the pipe could fill it.
    own = os.fdopen(before, "w", buffering=1, errors="backslashreplace", closefd=False)
    try:
        with own, redirect_stderr(own):
            yield
    finally:
        os.dup2(before, 2)
        passing.join(1)
        # A child process may hold the pipe still.
        if not passing.is_alive():
            os.close(before)


def _pass_on(reading: int, before: int, note: Callable[[dict[str, Any]], None]) -> None:
    with os.fdopen(reading, "rb") as lines:
        for line in lines:
            os.write(before, line)
            if (found := FAILED.search(line)) is not None:
                note(
                    {
                        "event": "connection_rejected",
                        "party": "?",
                        "reason": _why(found[1].decode(errors="replace")),
                    }
                )


def _why(said: str) -> str:
    meaning = next((text for words, text in WHY.items() if words in said), "it failed")
    return f"TLS handshake: {meaning} ({said.strip()})"
