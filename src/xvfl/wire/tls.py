"""Settings of gRPC connections: service name, limits, keep-alive, TLS credentials."""

from dataclasses import dataclass
from pathlib import Path

import grpc

from xvfl.errors import ConfigError
from xvfl.wire.codec import MAX_FRAME_BYTES

SERVICE, METHOD = "xvfl.Federation", "Join"
PATH = f"/{SERVICE}/{METHOD}"
CALL_METHOD = "Call"
"""A request of a party to the coordinator, on the connection of its stream."""
CALL_PATH = f"/{SERVICE}/{CALL_METHOD}"
KEEPALIVE_S, KEEPALIVE_TIMEOUT_S = 10, 5
"""Seconds between keep-alive pings on an idle connection, and to wait for their reply."""


@dataclass(frozen=True)
class Tls:
    """Certificate and key files of the coordinator or of a party."""

    ca_certificate: str
    """Certificates of the authorities that this side trusts (PEM)."""
    certificate: str
    """This side's certificate (PEM), then those of intermediate authorities; its common name is the
    party's name."""
    private_key: str
    """Its private key (PEM)."""

    def read(self) -> tuple[bytes, bytes, bytes]:
        """Read the files: CA certificate, certificate, private key."""
        return _read(self.ca_certificate), _read(self.certificate), _read(self.private_key)

    def client_credentials(self) -> grpc.ChannelCredentials:
        """Return credentials of a client with its certificate."""
        authority, certificate, key = self.read()
        return grpc.ssl_channel_credentials(authority, key, certificate)


def channel_options(max_bytes: int = MAX_FRAME_BYTES) -> list[tuple[str, int]]:
    """Return gRPC options: message size (gRPC's default is 4 MiB) and keep-alive."""
    return [
        ("grpc.max_receive_message_length", max_bytes),
        ("grpc.max_send_message_length", max_bytes),
        ("grpc.keepalive_time_ms", 1000 * KEEPALIVE_S),
        ("grpc.keepalive_timeout_ms", 1000 * KEEPALIVE_TIMEOUT_S),
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
