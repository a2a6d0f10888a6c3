"""The TLS files of a running process: read again when they change, watched for their end."""

import threading
import time
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import grpc
from cryptography import x509
from cryptography.exceptions import UnsupportedAlgorithm
from cryptography.hazmat.primitives.serialization import load_pem_private_key

from xvfl.certs.chain import common_name, find_chain, parse_certificates
from xvfl.errors import CertificateError, XVFLError
from xvfl.wire.limited_log import LogEvent
from xvfl.wire.tls import Tls

WARN_DAYS = 30
"""Days before the end of a certificate from which on its end is logged, once a day."""
DAY_S = 86400.0


class LoadedTls:
    """Certificate, key and authorities of this process.

    New connections use renewed files, once certificate and key belong together and are valid;
    until then the files that were read before stay in use. Callable from any thread.
    """

    def __init__(self, tls: Tls, log_event: LogEvent = lambda event: None) -> None:
        """Read the files; raise if they cannot be used."""
        self._tls, self._log, self._lock = tls, log_event, threading.Lock()
        self._warned = -DAY_S
        self._failed = ""
        self._version = self._stat()
        self._files = tls.read()
        self._chain = _check(tls, self._files)

    def read(self) -> tuple[bytes, bytes, bytes]:
        """Return the authorities, the certificate and the private key (PEM) in use."""
        with self._lock:
            version = self._stat()
            if version != self._version:
                self._load(version)
            self._warn()
            return self._files

    def server_credentials(self) -> grpc.ServerCredentials:
        """Return credentials of a server that requires client certificates."""

        def fetch() -> Any:
            authorities, certificate, key = self.read()
            return grpc.ssl_server_certificate_configuration([(key, certificate)], authorities)

        return grpc.dynamic_ssl_server_credentials(fetch(), fetch, True)

    def client_credentials(self) -> grpc.ChannelCredentials:
        """Return credentials of a client with its certificate."""
        authorities, certificate, key = self.read()
        return grpc.ssl_channel_credentials(authorities, key, certificate)

    def status(self) -> dict[str, Any]:
        """Return the days until the certificate, and one of those that issued it, end."""
        with self._lock:
            certificate, authority = days_left(self._chain)
            return {"certificate_days_left": certificate, "authority_days_left": authority}

    def _stat(self) -> tuple[Any, ...]:
        found: list[Any] = []
        for path in (self._tls.ca_certificate, self._tls.certificate, self._tls.private_key):
            try:
                stat = Path(path).stat()
                found.append((stat.st_ino, stat.st_mtime_ns, stat.st_size))
            except OSError as error:
                found.append(error.errno)
        return tuple(found)

    def _load(self, version: tuple[Any, ...]) -> None:
        try:
            files = self._tls.read()
            chain = _check(self._tls, files)
            if chain[0].not_valid_before_utc > datetime.now(UTC):
                raise CertificateError(f"{self._tls.certificate}: not valid yet")
            if (name := common_name(chain[0])) != (known := common_name(self._chain[0])):
                raise CertificateError(
                    f"{self._tls.certificate}: expected a certificate of {known!r}, got {name!r}"
                )
        except XVFLError as error:
            # The next call tries again: the other file may not be written yet.
            if str(error) != self._failed:
                self._failed = str(error)
                self._log({"event": "certificate_not_loaded", "reason": self._failed})
            return
        self._files, self._chain, self._version, self._failed = files, chain, version, ""
        self._warned = -DAY_S
        serial, days = f"{chain[0].serial_number:x}", days_left(chain)[0]
        self._log({"event": "certificate_loaded", "serial": serial, "days_left": days})

    def _warn(self) -> None:
        now = time.monotonic()
        if now < self._warned + DAY_S:
            return
        for what, days in zip(("certificate", "authority"), days_left(self._chain), strict=True):
            if days < WARN_DAYS:
                self._warned = now
                event = {"event": "certificate_expires", "what": what, "days_left": days}
                self._log({**event, "warning": ADVICE[what]})


ADVICE = {
    "certificate": "request a new certificate and write it over this one; no restart is needed",
    "authority": "add the new certificate of the authority to `ca_certificate` at every side",
}


def read_chain(tls: Tls, files: tuple[bytes, bytes, bytes]) -> list[x509.Certificate]:
    """Return the certificate, and those that issued it as far as they are known."""
    try:
        certificates = parse_certificates(files[1])
        authorities = x509.load_pem_x509_certificates(files[0])
    except (ValueError, CertificateError) as error:
        path = tls.certificate if isinstance(error, CertificateError) else tls.ca_certificate
        raise CertificateError(f"{path}: cannot be used ({error})") from error
    try:
        return find_chain(certificates, authorities)
    except CertificateError:
        # The other side decides whether it trusts this certificate.
        return [certificates[0], *authorities]


def days_left(chain: list[x509.Certificate]) -> tuple[int, int]:
    """Return the days until a certificate ends, and until one of those that issued it ends."""
    now = datetime.now(UTC)
    days = [(each.not_valid_after_utc - now).days for each in chain]
    return days[0], min(days[1:])


def _check(tls: Tls, files: tuple[bytes, bytes, bytes]) -> list[x509.Certificate]:
    """Return the chain of a certificate; raise if the private key is that of another one."""
    chain = read_chain(tls, files)
    try:
        belongs = load_pem_private_key(files[2], None).public_key() == chain[0].public_key()
    except (ValueError, TypeError, UnsupportedAlgorithm) as error:
        raise CertificateError(f"{tls.private_key}: cannot be used ({error})") from error
    if not belongs:
        raise CertificateError(f"{tls.private_key}: does not belong to {tls.certificate}")
    return chain
