"""Who may use the HTTP ports of a process, and their TLS files, from its configuration."""

from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path

from xvfl.errors import ConfigError, WireError
from xvfl.service.addresses import parse_address
from xvfl.system.event_log import LogFunction
from xvfl.wire.texts import NAME
from xvfl_serve.errors import ServeError
from xvfl_serve.http.access import Access
from xvfl_serve.http.callers import Caller, read_callers, watch_callers
from xvfl_serve.http.server_tls import ServerTls, server_tls


def port_access(
    address: str,
    option: str,
    tokens: str | None,
    log: LogFunction,
    allowed_hosts: Iterable[str] = (),
) -> Access:
    """Return who may use an address; `option` is its name, and `tokens` the file of the callers."""
    host, _ = parse_address(address, option)
    path = None if tokens is None else Path(tokens)
    with _config_errors(option.replace("address", "tokens")):
        callers = watch_callers(path, _read_callers, log)
    return Access(host, callers, frozenset(allowed_hosts))


def read_tokens(path: str | None, option: str) -> tuple[Caller, ...]:
    """Read a file of callers; without one, there are none."""
    with _config_errors(option):
        return _read_callers(None if path is None else Path(path))


def port_tls(
    certificate: str | None, private_key: str | None, option: str, log: LogFunction
) -> ServerTls | None:
    """Load the TLS files of a port; without a certificate, it is plain HTTP."""
    if certificate is None:
        return None
    with _config_errors(option):
        return server_tls(certificate, private_key, log=log)


@contextmanager
def _config_errors(option: str) -> Iterator[None]:
    try:
        yield
    except ServeError as error:
        raise ConfigError(f"{option}: {error}") from error


def _read_callers(path: Path | None) -> tuple[Caller, ...]:
    callers = () if path is None else read_callers(path)
    try:
        for each in callers:
            # Parties count the requests of a caller by its name.
            NAME.read(each.name, "name")
    except WireError as error:
        raise ServeError(f"{path}: {error}") from error
    return callers
