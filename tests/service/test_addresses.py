"""One rule for the addresses in configurations; `[::]` are all addresses of a machine."""

import asyncio
import socket
from contextlib import closing
from pathlib import Path

import pytest

from tests.service.test_http_endpoint import Recorder
from tests.service.test_service import write
from xvfl.errors import ConfigError
from xvfl.service.addresses import parse_address
from xvfl.service.config import load_config
from xvfl.service.status_server import open_status_server
from xvfl.wire.front import Front


@pytest.mark.parametrize(
    "address", ["7480", ":7480", "localhost", "localhost:", "localhost:²", "localhost:65536"]
)
def test_an_address_needs_host_and_port(address: str) -> None:
    with pytest.raises(ConfigError, match="status_address: expected HOST:PORT"):
        open_status_server(address, dict)
    with pytest.raises(ConfigError, match=r"prediction\.address: expected HOST:PORT"):
        Recorder().endpoint(address)


@pytest.mark.parametrize("option", ["listen", "status_address"])
def test_a_configuration_without_a_port_is_refused(tmp_path: Path, option: str) -> None:
    write(tmp_path)
    config = tmp_path / "coordinator.toml"
    lines = config.read_text().splitlines()
    kept = [each for each in lines if not each.startswith(f"{option} ")]
    config.write_text("\n".join([f'{option} = "fl.example.org"', *kept]))
    with pytest.raises(ConfigError, match=f"{option}: expected HOST:PORT, such as"):
        load_config(config)


def test_an_ipv6_address_may_be_in_brackets() -> None:
    assert parse_address("[::1]:7480", "x") == ("::1", 7480)


@pytest.mark.skipif(not socket.has_dualstack_ipv6(), reason="this machine has no IPv6")
def test_all_addresses_are_those_of_ipv4_and_ipv6(tmp_path: Path) -> None:
    with closing(open_status_server("[::]:0", lambda: {"healthy": True})) as server:
        for host in ("127.0.0.1", "::1"):
            socket.create_connection((host, server.port)).close()

    async def connect() -> None:
        front = Front(tmp_path, 8, lambda address, reason: None, 60.0)
        port = await front.listen("[::]:0")
        for host in ("127.0.0.1", "::1"):
            _, writer = await asyncio.open_connection(host, port)
            writer.close()
        await front.close()

    asyncio.run(connect())
