"""Every HTTP port, with clients that never finish a request and with foreign web pages."""

from collections.abc import Iterator
from contextlib import ExitStack

import pytest

from tests.security.http_ports import Federation, Port

HONEST = 20


@pytest.fixture(scope="module")
def federation(tmp_path_factory: pytest.TempPathFactory) -> Federation:
    """Write the files of a federation."""
    return Federation(tmp_path_factory.mktemp("ports"))


SLOW = ["status bank", "dashboard", "serve", "serve tls", "prediction", "prediction tls"]


@pytest.fixture(
    scope="module",
    params=["status coordinator", *(pytest.param(each, marks=pytest.mark.slow) for each in SLOW)],
)
def ports(request: pytest.FixtureRequest, federation: Federation) -> Iterator[list[Port]]:
    """Start processes; return their ports of this kind, which have no tokens."""
    kind, _, detail = request.param.partition(" ")
    tls = detail == "tls"
    with ExitStack() as stack:
        if kind == "serve":
            yield [stack.enter_context(federation.serving(tls=tls))]
        elif kind == "dashboard":
            yield [stack.enter_context(federation.dashboard())]
        elif kind == "status":
            yield [stack.enter_context(federation.status_of(detail))]
        else:
            predicting = stack.enter_context(federation.predicting(tls))
            yield [predicting["coordinator"], predicting["bank"]]


def test_half_sent_headers_do_not_stop_a_port(ports: list[Port]) -> None:
    for port in ports:
        assert port.request() == 200
        with port.slow_headers():
            for _ in range(HONEST):
                assert port.request() == 200
        assert port.request() == 200


def test_web_pages_of_other_sites_are_refused(ports: list[Port]) -> None:
    for port in ports:
        own = f"{'https' if port.ca else 'http'}://localhost:{port.number}"
        assert port.request(Origin=own, Sec_Fetch_Site="same-origin") == 200
        # A page whose name its owner resolves to this address; over TLS the certificate is wrong.
        rebound = f"attacker.example:{port.number}"
        assert port.ca or port.request(Host=rebound) == 421
        assert port.ca or port.request(Host=rebound, Origin=f"http://{rebound}") == 421
        for origin in ("https://attacker.example", "http://localhost:1", "null"):
            assert port.request(Origin=origin) == 403
        for site in ("cross-site", "same-site"):
            assert port.request(Sec_Fetch_Site=site, Sec_Fetch_Mode="no-cors") == 403
        # What a form, or a script without the server's consent, can send.
        for kind in ("application/x-www-form-urlencoded", "text/plain", "multipart/form-data"):
            assert port.body is None or port.request(Content_Type=kind) == 415
