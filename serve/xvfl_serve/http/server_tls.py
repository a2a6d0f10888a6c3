"""Certificate, key and authority of an HTTP port."""

import ssl
from pathlib import Path

from xvfl_serve.errors import ServeError
from xvfl_serve.http.watched_files import LogEvent, WatchedFiles

ServerTls = WatchedFiles[ssl.SSLContext]
"""The TLS settings of new connections."""


def server_tls(
    certificate: Path | str,
    key: Path | str | None,
    client_ca: Path | str | None = None,
    log: LogEvent = lambda event: None,
) -> ServerTls:
    """Load the certificate of a port, and again when its files change.

    New connections use renewed files, once certificate and key belong together.

    Parameters
    ----------
    certificate, key
        Certificate, with those of intermediate authorities, and private key (PEM).
    client_ca
        With it, clients need a certificate of this authority.
    log
        Receives an event when renewed files are used, or cannot be.

    Raises
    ------
    ServeError
        The files cannot be used.
    """
    files = [each for each in (certificate, key, client_ca) if each is not None]

    def load() -> ssl.SSLContext:
        context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
        try:
            context.load_cert_chain(certificate, key)
            if client_ca is not None:
                context.load_verify_locations(client_ca)
                context.verify_mode = ssl.CERT_REQUIRED
        except OSError as error:
            names = ", ".join(map(str, files))
            raise ServeError(f"{names}: the certificate cannot be used ({error})") from error
        return context

    return WatchedFiles(files, load, "certificate", log)
