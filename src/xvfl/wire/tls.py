"""What both ends of a gRPC line agree on: names, limits, keep-alive, certificates."""

from dataclasses import dataclass
from pathlib import Path

import grpc

from xvfl.errors import ConfigError
from xvfl.wire.codec import LARGEST

SERVICE, METHOD = "xvfl.Federation", "Join"
PATH = f"/{SERVICE}/{METHOD}"
ALIVE_S, SILENT_S = 10, 5
"""Seconds between signs of life on an idle line, and seconds to wait for one."""


@dataclass(frozen=True)
class Tls:
    """The files of one side's identity."""

    ca_certificate: str
    """Certificate of the authority that both sides trust, PEM."""
    certificate: str
    """This side's certificate, PEM; its name is the common name."""
    private_key: str
    """Its private key, PEM."""

    def read(self) -> tuple[bytes, bytes, bytes]:
        """Read authority, certificate and key."""
        return _read(self.ca_certificate), _read(self.certificate), _read(self.private_key)

    def for_server(self) -> grpc.ServerCredentials:
        """Give what a listener shows and demands: nobody comes in without a certificate."""
        authority, certificate, key = self.read()
        return grpc.ssl_server_credentials([(key, certificate)], authority, True)

    def for_client(self) -> grpc.ChannelCredentials:
        """Give what a caller shows and demands."""
        authority, certificate, key = self.read()
        return grpc.ssl_channel_credentials(authority, key, certificate)


def options(largest: int = LARGEST) -> list[tuple[str, int]]:
    """List the limits of a line; gRPC's own limit would be 4 MiB."""
    return [
        ("grpc.max_receive_message_length", largest),
        ("grpc.max_send_message_length", largest),
        ("grpc.keepalive_time_ms", 1000 * ALIVE_S),
        ("grpc.keepalive_timeout_ms", 1000 * SILENT_S),
        ("grpc.keepalive_permit_without_calls", 1),
        ("grpc.http2.max_pings_without_data", 0),
        ("grpc.http2.max_ping_strikes", 0),
    ]


def _read(path: str) -> bytes:
    try:
        return Path(path).read_bytes()
    except OSError as error:
        raise ConfigError(
            f"{path}: cannot be read ({error.strerror}); `xvfl certs` makes certificates for trials"
        ) from error
