"""Certificate, key and authority of an HTTP port: read again when the files change."""

import ssl
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from xvfl_serve.errors import ServeError

CHECK_S = 1.0
"""Seconds between two looks at the files."""
LogTls = Callable[[Mapping[str, Any]], None]
"""Log an event: a mapping with the key `event` and details."""


class ServerTls:
    """The TLS files of a port.

    New connections use renewed files, once certificate and key belong together; until then the
    files that were read before stay in use.

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

    def __init__(
        self,
        certificate: Path | str,
        key: Path | str | None,
        client_ca: Path | str | None = None,
        log: LogTls = lambda event: None,
    ) -> None:
        self._files, self._log = (certificate, key, client_ca), log
        self._version, self._context = self._stat(), self._load()
        self._checked, self._failed = time.monotonic(), ""

    def context(self) -> ssl.SSLContext:
        """Return the settings of a new connection."""
        if (now := time.monotonic()) >= self._checked + CHECK_S:
            self._checked, version = now, self._stat()
            if version != self._version:
                self._renew(version)
        return self._context

    def _renew(self, version: tuple[Any, ...]) -> None:
        try:
            self._context = self._load()
        except ServeError as error:
            # The next call tries again: the other file may not be written yet.
            if str(error) != self._failed:
                self._failed = str(error)
                self._log({"event": "certificate_not_loaded", "reason": self._failed})
            return
        self._version, self._failed = version, ""
        self._log({"event": "certificate_loaded", "file": str(self._files[0])})

    def _stat(self) -> tuple[Any, ...]:
        found: list[Any] = []
        for path in self._files:
            try:
                stat = None if path is None else Path(path).stat()
                found.append(stat and (stat.st_ino, stat.st_mtime_ns, stat.st_size))
            except OSError as error:
                found.append(error.errno)
        return tuple(found)

    def _load(self) -> ssl.SSLContext:
        certificate, key, client_ca = self._files
        context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
        try:
            context.load_cert_chain(certificate, key)
            if client_ca is not None:
                context.load_verify_locations(client_ca)
                context.verify_mode = ssl.CERT_REQUIRED
        except OSError as error:
            files = ", ".join(str(each) for each in self._files if each is not None)
            raise ServeError(f"{files}: the certificate cannot be used ({error})") from error
        return context
