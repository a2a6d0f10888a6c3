"""Who may use the HTTP ports of a process, and their TLS files, from its configuration."""

from collections.abc import Iterable
from pathlib import Path

from xvfl.errors import ConfigError, WireError
from xvfl.service.addresses import parse_address
from xvfl.system.event_log import LogFunction
from xvfl.wire.texts import NAME
from xvfl_serve.errors import ServeError
from xvfl_serve.http.access import Access
from xvfl_serve.http.callers import Caller, read_callers
from xvfl_serve.http.server_tls import ServerTls


def port_access(
    address: str, option: str, tokens: str | None, allowed_hosts: Iterable[str] = ()
) -> Access:
    """Return who may use an address; `option` is its name, and `tokens` the file of the callers."""
    host, _ = parse_address(address, option)
    section = option.rpartition("address")[0]
    return Access(host, read_tokens(tokens, f"{section}tokens"), frozenset(allowed_hosts))


def read_tokens(path: str | None, option: str) -> tuple[Caller, ...]:
    """Read a file of callers; without one, there are none."""
    if path is None:
        return ()
    try:
        callers = read_callers(Path(path))
        for each in callers:
            # Parties count the requests of a caller by its name.
            NAME.read(each.name, "name")
    except (ServeError, WireError) as error:
        raise ConfigError(f"{option}: {error}") from error
    return callers


def port_tls(
    certificate: str | None, private_key: str | None, option: str, log: LogFunction
) -> ServerTls | None:
    """Load the TLS files of a port; without a certificate, it is plain HTTP."""
    if certificate is None:
        return None
    try:
        return ServerTls(certificate, private_key, log=log)
    except ServeError as error:
        raise ConfigError(f"{option}: {error}") from error
