"""Find out why a TLS connection fails; gRPC only reports that it is unavailable."""

import socket
import ssl
from datetime import UTC, datetime

from cryptography import x509

from xvfl.wire.tls import Tls

CONNECT_TIMEOUT_S = 5.0
ADVICE = {
    "has expired": "the coordinator's certificate has expired, or this clock is wrong",
    "not yet valid": "the coordinator's certificate is not yet valid, or this clock is wrong",
    "certificate verify failed": "the coordinator's certificate is not issued by the CA "
    "trusted here, or not for this address",
    "wrong version number": "the server at this address does not use TLS",
}
"""Explanations of TLS errors, by a part of the message; the first match applies."""


def diagnose_tls(address: str, tls: Tls) -> str | None:
    """Try a TLS handshake; return why it fails, or None if it succeeds or nothing listens."""
    host, _, port = address.rpartition(":")
    context = ssl.create_default_context(cafile=tls.ca_certificate)
    try:
        context.load_cert_chain(tls.certificate, tls.private_key)
    except (ssl.SSLError, OSError) as error:
        return f"this party's certificate and key cannot be used together ({error})"
    context.set_alpn_protocols(["h2"])
    try:
        with (
            socket.create_connection((host, int(port)), timeout=CONNECT_TIMEOUT_S) as connection,
            context.wrap_socket(connection, server_hostname=host.strip("[]")) as session,
        ):
            return None if session.recv(1) else _diagnose_own_certificate(tls)
    except ssl.SSLEOFError:
        return None
    except ssl.SSLError as error:
        text = str(error).lower()
        meaning = next((why for part, why in ADVICE.items() if part in text), None)
        return f"{meaning or 'the TLS handshake failed'} ({error.reason or error})"
    except (OSError, ValueError):
        return None


def _diagnose_own_certificate(tls: Tls) -> str:
    """Explain why a server may close the connection after it received this certificate."""
    now = datetime.now(UTC)
    own = x509.load_pem_x509_certificate(tls.read()[1])
    if own.not_valid_after_utc < now:
        return f"this party's certificate expired on {own.not_valid_after_utc:%Y-%m-%d %H:%M} UTC"
    if own.not_valid_before_utc > now:
        starts = f"{own.not_valid_before_utc:%Y-%m-%d %H:%M}"
        return f"this party's certificate is not valid before {starts} UTC; check this clock"
    return (
        "the coordinator rejected this party's certificate: it is issued by another CA, or by the "
        "coordinator's clock it has expired or is not yet valid"
    )
