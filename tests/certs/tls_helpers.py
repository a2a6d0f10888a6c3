"""A TLS handshake between a coordinator and a party, in memory."""

import ssl
from contextlib import suppress
from pathlib import Path


def tls_context(server: bool, authority: Path, owner: Path | None) -> ssl.SSLContext:
    """Build a context that trusts an authority; `owner` is a certificate's path without suffix."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER if server else ssl.PROTOCOL_TLS_CLIENT)
    context.verify_mode = ssl.CERT_REQUIRED
    context.verify_flags |= ssl.VERIFY_X509_STRICT
    context.load_verify_locations(authority)
    if owner is not None:
        context.load_cert_chain(f"{owner}.crt", f"{owner}.key")
    return context


def handshake(server: ssl.SSLContext, client: ssl.SSLContext, host: str = "localhost") -> bytes:
    """Perform a handshake; return the party's certificate as the coordinator receives it (PEM)."""
    to_server, to_client = ssl.MemoryBIO(), ssl.MemoryBIO()
    ends = [
        server.wrap_bio(to_server, to_client, server_side=True),
        client.wrap_bio(to_client, to_server, server_hostname=host),
    ]
    open_ends = list(ends)
    for _ in range(10):
        for end in list(open_ends):
            try:
                end.do_handshake()
                open_ends.remove(end)
            except ssl.SSLWantReadError:
                continue
    assert not open_ends
    # With TLS 1.3 the client hears of a refusal only when it reads.
    with suppress(ssl.SSLWantReadError):
        ends[1].read(1)
    shown = ends[0].getpeercert(binary_form=True)
    assert shown is not None
    return ssl.DER_cert_to_PEM_cert(shown).encode()
