"""A JSON document in a file, signed with the key of a TLS certificate that it carries.

{"kind": …, "certificate": PEM, "signature": hexadecimal}
content: JSON text

The first line is short. The signature covers the kind and the bytes of the content. The content is
parsed after the certificate was found to be trusted and the signature to belong to it.
"""

import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from xvfl.certs.peers import parse_certificate
from xvfl.certs.signatures import is_signed, sign
from xvfl.errors import CertificateError, WireError
from xvfl.wire.tls import Tls

MAX_BYTES = 2**26
"""Bytes of the largest document."""
MAX_LINE_BYTES = 2**14
"""Bytes of its first line, which is parsed before the signature is checked."""
PREFIX = b"xvfl signed document\0"


@dataclass(frozen=True)
class SignedDocument:
    """A document whose certificate is trusted, and whose signature belongs to it."""

    content: Mapping[str, Any]
    certificate: bytes
    """PEM."""
    owner: Any
    """What the check of the certificate returned."""

    def get(self, key: str, kind: type[Any]) -> Any:
        """Return a value of the content; reject a missing one and one of another type."""
        value = self.content.get(key)
        if not isinstance(value, kind) or isinstance(value, bool) is not (kind is bool):
            raise WireError(f"{key}: expected a value of type {kind.__name__}")
        return value


def sign_document(tls: Tls, kind: str, content: Mapping[str, Any]) -> bytes:
    """Write and sign a document with this side's certificate."""
    _, certificate, key = tls.read()
    text = json.dumps(content).encode()
    line = {
        "kind": kind,
        "certificate": certificate.decode("ascii"),
        "signature": sign(key, _statement(kind, text)).hex(),
    }
    return json.dumps(line).encode() + b"\n" + text


def read_document(data: bytes, kind: str, check: Callable[[bytes], object]) -> SignedDocument:
    """Read a document of a kind, and check its certificate and its signature.

    Parameters
    ----------
    data : bytes
        The file.
    kind : str
        The kind that is expected.
    check : callable
        Returns whose certificate (PEM) it is, and raises if it is not trusted
        (`PeerVerifier.check`, `check_coordinator`).
    """
    line, _, text = data.partition(b"\n")
    if len(data) > MAX_BYTES or len(line) > MAX_LINE_BYTES:
        raise WireError(
            f"expected a signed document of at most {MAX_BYTES} bytes, {MAX_LINE_BYTES} of them in "
            "its first line"
        )
    try:
        found = json.loads(line)
        given, pem, signature = (str(found[key]) for key in ("kind", "certificate", "signature"))
        signed, certificate = bytes.fromhex(signature), pem.encode()
        statement = _statement(given, text)
    except (ValueError, KeyError, TypeError, RecursionError) as error:
        raise WireError(f"not a signed document, or damaged ({type(error).__name__})") from error
    if given != kind:
        raise WireError(f"expected a signed document of kind {kind!r}, got {given[:50]!r}")
    owner = check(certificate)
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
    return SignedDocument(content, certificate, owner)


def _statement(kind: str, text: bytes) -> bytes:
    return PREFIX + kind.encode() + b"\0" + text
