"""The coordinator's listening port: accept the listed parties, log rejected connections."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

from xvfl.certs import PeerVerifier
from xvfl.service.config import CoordinatorConfig
from xvfl.service.log import LogFunction
from xvfl.wire.handshake_log import log_failed_handshakes
from xvfl.wire.messages import Hello
from xvfl.wire.server import CoordinatorServer


@contextmanager
def listen(
    config: CoordinatorConfig,
    log: LogFunction,
    check_hello: Callable[[str, Hello], None] = lambda name, hello: None,
) -> Iterator[CoordinatorServer]:
    """Listen for the configured parties; `check_hello` may raise to reject one."""
    peers = PeerVerifier(
        Path(config.tls.ca_certificate),
        Path(config.revocation_list) if config.revocation_list else None,
    )
    with log_failed_handshakes(log):
        server = CoordinatorServer(
            config.listen,
            config.tls,
            config.parties,
            peers.check,
            log,
            check_hello,
            config.max_message_bytes,
        )
        try:
            yield server
        finally:
            server.close()
