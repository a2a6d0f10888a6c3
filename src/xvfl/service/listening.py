"""A coordinator's one open port: whom it lets in, and a note of everybody it refuses."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from xvfl.certs import Peers
from xvfl.sides import CoordinatorFile
from xvfl.wire.handshakes import noted_handshakes
from xvfl.wire.listen import Listener
from xvfl.wire.messages import Hello


@contextmanager
def listening(
    config: CoordinatorFile,
    note: Callable[[dict[str, Any]], None],
    welcome: Callable[[str, Hello], None] = lambda name, hello: None,
) -> Iterator[Listener]:
    """Listen for the parties on the list; `welcome` may refuse what one says of itself."""
    peers = Peers(Path(config.tls.authority), Path(config.revoked) if config.revoked else None)
    with noted_handshakes(note):
        listener = Listener(
            config.listen,
            config.tls,
            config.parties,
            peers.check,
            note,
            welcome,
            config.largest_message,
        )
        try:
            yield listener
        finally:
            listener.close()
