"""A JSON document in a file, signed with the key of a TLS certificate that it carries.

{"kind": …, "content": JSON text, "certificate": PEM, "signature": hexadecimal}

The signature covers the kind and the text of the content. Whether the certificate is trusted, and
whose it is, is checked by the reader (`PeerVerifier.check`, `check_coordinator`).
"""

import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from xvfl.certs.peers import parse_certificate
from xvfl.certs.signatures import is_signed, sign
from xvfl.errors import CertificateError, WireError
from xvfl.wire.tls import Tls

MAX_BYTES = 2**26
"""Bytes of the largest document."""
PREFIX = b"xvfl signed document\0"


@dataclass(frozen=True)
class SignedDocument:
    """A document whose signature belongs to its certificate."""

    content: Mapping[str, Any]
    certificate: bytes
    """PEM."""

    def get(self, key: str, kind: type[Any]) -> Any:
        """Return a value of the content; reject a missing one and one of another type."""
        value = self.content.get(key)
        if not isinstance(value, kind) or isinstance(value, bool) is not (kind is bool):
            raise WireError(f"{key}: expected a value of type {kind.__name__}")
        return value


def sign_document(tls: Tls, kind: str, content: Mapping[str, Any]) -> bytes:
    """Write and sign a document with this side's certificate."""
    _, certificate, key = tls.read()
    text = json.dumps(content)
    document = {
        "kind": kind,
        "content": text,
        "certificate": certificate.decode("ascii"),
        "signature": sign(key, _statement(kind, text)).hex(),
    }
    return json.dumps(document, indent=1).encode()


def read_document(data: bytes, kind: str) -> SignedDocument:
    """Read a document of a kind and check its signature."""
    if len(data) > MAX_BYTES:
        raise WireError(f"expected a signed document of at most {MAX_BYTES} bytes")
    try:
        found = json.loads(data)
        given, text, pem, signature = (
            str(found[key]) for key in ("kind", "content", "certificate", "signature")
        )
        signed, certificate = bytes.fromhex(signature), pem.encode()
        statement = _statement(given, text)
    except (ValueError, KeyError, TypeError, RecursionError) as error:
        raise WireError(f"not a signed document, or damaged ({type(error).__name__})") from error
    if given != kind:
        raise WireError(f"expected a signed document of kind {kind!r}, got {given[:50]!r}")
    if not is_signed(parse_certificate(certificate), signed, statement):
        raise CertificateError(
            "the signature does not belong to the content; the file was changed: request it again"
        )
    try:
        content = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise WireError(f"the content is not JSON ({type(error).__name__})") from error
    if not isinstance(content, dict):
        raise WireError("expected the content to be a JSON object")
    return SignedDocument(content, certificate)


def _statement(kind: str, text: str) -> bytes:
    return PREFIX + kind.encode() + b"\0" + text.encode()
