"""Addresses of HTTP ports in configurations and on the command line."""

from xvfl.errors import ConfigError


def parse_address(address: str, option: str) -> tuple[str, int]:
    """Split HOST:PORT into host and port; the host may be an IPv6 address in brackets.

    Parameters
    ----------
    address : str
        The address.
    option : str
        Name of the option, for the error.

    Raises
    ------
    ConfigError
        The host or the port is missing.
    """
    host, _, port = address.rpartition(":")
    if not host or not port.isdecimal():
        raise ConfigError(f"{option}: expected HOST:PORT, got {address!r}")
    return host.strip("[]"), int(port)
