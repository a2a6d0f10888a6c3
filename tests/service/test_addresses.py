"""One rule for the addresses of HTTP ports."""

import pytest

from tests.service.test_http_endpoint import Recorder
from xvfl.errors import ConfigError
from xvfl.service.addresses import parse_address
from xvfl.service.status_server import open_status_server


@pytest.mark.parametrize("address", ["7480", ":7480", "localhost", "localhost:", "localhost:²"])
def test_an_address_needs_host_and_port(address: str) -> None:
    with pytest.raises(ConfigError, match="status_address: expected HOST:PORT"):
        open_status_server(address, dict)
    with pytest.raises(ConfigError, match=r"prediction\.address: expected HOST:PORT"):
        Recorder().endpoint(address)


def test_an_ipv6_address_may_be_in_brackets() -> None:
    assert parse_address("[::1]:7480", "x") == ("::1", 7480)
