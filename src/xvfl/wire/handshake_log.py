"""Log failed TLS handshakes; gRPC reports them only on the stderr of the process."""

import os
import re
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager, redirect_stderr, suppress

from xvfl.system.printable import printable
from xvfl.wire.limited_log import LogEvent

FAILED = re.compile(rb"ssl_transport_security\S* Handshake failed .*OPENSSL_internal:(.*)")
EXPLANATIONS = {
    "PEER_DID_NOT_RETURN_A_CERTIFICATE": "the client sent no certificate",
    "certificate has expired": "the client's certificate has expired, or this clock is wrong",
    "certificate is not yet valid": "the client's certificate is not yet valid, or this clock is "
    "wrong",
    "CERTIFICATE_VERIFY_FAILED": "the client's certificate is not issued by the CA trusted here",
    "HTTP_REQUEST": "the client does not use TLS",
    "WRONG_VERSION_NUMBER": "the client does not use TLS, or an old version",
}
"""Explanations of TLS errors, by a part of the message; the first match applies."""


@contextmanager
def log_failed_handshakes(log_event: LogEvent) -> Iterator[None]:
    """Log an event for every failed handshake; all else on stderr is passed through."""
    sys.stderr.flush()
    before = os.dup(2)
    read_end, write_end = os.pipe()
    os.dup2(write_end, 2)
    os.close(write_end)
    forwarder = threading.Thread(target=_forward, args=(read_end, before, log_event), daemon=True)
    forwarder.start()
    # Python writes to stderr directly: a log line that came back through the pipe could fill it.
    own = os.fdopen(before, "w", buffering=1, errors="backslashreplace", closefd=False)
    try:
        with own, redirect_stderr(own):
            yield
    finally:
        os.dup2(before, 2)
        forwarder.join(1)
        # A child process may still hold the pipe.
        if not forwarder.is_alive():
            os.close(before)


def _forward(read_end: int, before: int, log_event: LogEvent) -> None:
    with os.fdopen(read_end, "rb") as lines:
        for line in lines:
            if (found := FAILED.search(line)) is not None:
                reason = _explain(found[1].decode(errors="replace"))
                log_event({"event": "connection_rejected", "party": "?", "reason": reason})
            else:
                # The other end may be a file on a full disk, or a closed pipe.
                with suppress(OSError):
                    os.write(before, _printable(line))


def _printable(line: bytes) -> bytes:
    """Escape a line of native code, which may quote a peer; keep its end."""
    text, end, _ = line.decode(errors="replace").partition("\n")
    return f"{printable(text)}{end}".encode()


def _explain(error: str) -> str:
    explanation = next((why for part, why in EXPLANATIONS.items() if part in error), "failed")
    return f"TLS handshake: {explanation} ({error.strip()})"
