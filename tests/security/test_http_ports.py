"""Every HTTP port, with clients that never finish a request and with foreign web pages."""

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager

import pytest

from tests.security.http_ports import Federation, Port

HONEST = 20


@pytest.fixture(scope="module")
def federation(tmp_path_factory: pytest.TempPathFactory) -> Federation:
    """Write the files of a federation."""
    return Federation(tmp_path_factory.mktemp("ports"))


@contextmanager
def open_ports(federation: Federation, name: str) -> Iterator[list[Port]]:
    """Start processes; return their ports of this kind."""
    kind, _, detail = name.partition(" ")
    tls = detail == "tls"
    with ExitStack() as stack:
        if kind == "serve":
            yield [stack.enter_context(federation.serving(tls=tls))]
        elif kind == "dashboard":
            yield [stack.enter_context(federation.dashboard())]
        elif kind == "status":
            yield [stack.enter_context(federation.status_of(detail))]
        else:
            ports = stack.enter_context(federation.predicting(tls))
            yield [ports["coordinator"], ports["bank"]]


SLOW = ["status bank", "dashboard", "serve", "serve tls", "prediction", "prediction tls"]


@pytest.mark.parametrize(
    "name",
    ["status coordinator", *(pytest.param(each, marks=pytest.mark.slow) for each in SLOW)],
)
def test_half_sent_headers_do_not_stop_a_port(federation: Federation, name: str) -> None:
    with open_ports(federation, name) as ports:
        for port in ports:
            assert port.request()[0] == 200
            with port.slow_headers():
                for _ in range(HONEST):
                    assert port.request()[0] == 200
            assert port.request()[0] == 200
