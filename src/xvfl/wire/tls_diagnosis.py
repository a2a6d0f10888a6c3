"""Why a TLS line cannot be had: gRPC only says that it is not there."""

import socket
import ssl
from datetime import UTC, datetime

from cryptography import x509

from xvfl.wire.tls import Tls

WAIT_S = 5.0
ADVICE = {
    "has expired": "the coordinator's certificate has expired, or this clock is wrong",
    "not yet valid": "the coordinator's certificate is not yet valid, or this clock is wrong",
    "certificate verify failed": "the coordinator's certificate is not of the authority trusted "
    "here, or not for this address",
    "wrong version number": "what answers there does not speak TLS",
}
"""What the words of the TLS library mean here; the first that fits counts."""


def diagnose_tls(address: str, tls: Tls) -> str | None:
    """Shake hands with whoever answers; say why that fails, None where it does not or nobody is."""
    host, _, port = address.rpartition(":")
    context = ssl.create_default_context(cafile=tls.ca_certificate)
    try:
        context.load_cert_chain(tls.certificate, tls.private_key)
    except (ssl.SSLError, OSError) as error:
        return f"this party's certificate and key cannot be used together ({error})"
    context.set_alpn_protocols(["h2"])
    try:
        with (
            socket.create_connection((host, int(port)), timeout=WAIT_S) as plain,
            context.wrap_socket(plain, server_hostname=host.strip("[]")) as line,
        ):
            return None if line.recv(1) else _own_certificate(tls)
    except ssl.SSLEOFError:
        return None
    except ssl.SSLError as error:
        said = str(error).lower()
        meaning = next((text for words, text in ADVICE.items() if words in said), None)
        return f"{meaning or 'the TLS handshake failed'} ({error.reason or error})"
    except (OSError, ValueError):
        return None


def _own_certificate(tls: Tls) -> str:
    """Say why a listener may hang up once it has seen this side's certificate."""
    now = datetime.now(UTC)
    own = x509.load_pem_x509_certificate(tls.read()[1])
    if own.not_valid_after_utc < now:
        return f"this party's certificate expired on {own.not_valid_after_utc:%Y-%m-%d %H:%M} UTC"
    if own.not_valid_before_utc > now:
        starts = f"{own.not_valid_before_utc:%Y-%m-%d %H:%M}"
        return f"this party's certificate is not valid before {starts} UTC; is this clock right?"
    return (
        "the coordinator hung up when it saw this party's certificate: it is of another authority, "
        "or by the coordinator's clock expired or not yet valid"
    )
