"""A coordinator's one open port: whom it lets in, and a note of all_parties it refuses."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from xvfl.certs import Peers
from xvfl.service.config import CoordinatorConfig
from xvfl.wire.handshake_log import log_failed_handshakes
from xvfl.wire.messages import Hello
from xvfl.wire.server import CoordinatorServer


@contextmanager
def listening(
    config: CoordinatorConfig,
    note: Callable[[dict[str, Any]], None],
    welcome: Callable[[str, Hello], None] = lambda name, hello: None,
) -> Iterator[CoordinatorServer]:
    """Listen for the parties on the list; `welcome` may refuse what one says of itself."""
    peers = Peers(
        Path(config.tls.ca_certificate),
        Path(config.revocation_list) if config.revocation_list else None,
    )
    with log_failed_handshakes(note):
        listener = CoordinatorServer(
            config.listen,
            config.tls,
            config.parties,
            peers.check,
            note,
            welcome,
            config.max_message_bytes,
        )
        try:
            yield listener
        finally:
            listener.close()
