"""Addresses in configurations and on the command line, and the token for them."""

from xvfl.errors import ConfigError

MAX_PORT = 65_535
TOKEN_VARIABLE = "XVFL_TOKEN"
"""Environment variable with the token of a client of an HTTP port."""


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
    if not host or not port.isdecimal() or int(port) > MAX_PORT:
        raise ConfigError(
            f"{option}: expected HOST:PORT, such as 0.0.0.0:8443 or fl.example.org:8443, got "
            f"{address!r}"
        )
    return host.strip("[]"), int(port)
