"""Roles at the server of a bundle: every route needs a right."""

import logging
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pytest

from tests.security.route_walk import TOKENS, bearer, request, walk, write_tokens
from xvfl_serve.errors import ServeError
from xvfl_serve.http.access import Access
from xvfl_serve.http.app import Service
from xvfl_serve.http.callers import DEFAULT_RIGHTS, read_callers, watch_callers
from xvfl_serve.http.connections import port_limits
from xvfl_serve.http.server import HttpServer, listen
from xvfl_serve.http.settings import Settings


@pytest.fixture
def server(bundles: Path, tmp_path: Path) -> Iterator[HttpServer]:
    """Serve a bundle with a caller for each right."""
    access = Access("127.0.0.1", watch_callers(write_tokens(tmp_path), read_callers))
    service = Service(Settings(bundles / "bank.xvfl", "bank", access=access), "0")
    app, listener = service.application(), listen("127.0.0.1", 0)
    with closing(HttpServer(app, listener, port_limits()).start("serve")) as server:
        yield server


def test_all_routes_with_every_role(server: HttpServer, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO, "xvfl_serve")
    walked = dict(walk(server, model="bank", version="x"))
    opened = {what for what, right in walked.items() if right is None and what[:3] == "GET"}
    assert opened == {"GET /v2/health/live", "GET /v2/health/ready"}
    assert {right for right in walked.values() if right} == {"look", "predict"}
    for right in ("look", "predict"):
        assert f"access caller={right} right={right} address=127.0.0.1" in caplog.messages
    assert len(caplog.messages) < 20
    assert not any(token in caplog.text for token in TOKENS.values())


def test_a_caller_may_predict(server: HttpServer) -> None:
    body = '{"rows": [{}]}'
    assert request(server.port, "POST", "/predict", bearer(TOKENS["predict"]), body).status == 200
    reply = request(server.port, "POST", "/predict", bearer(TOKENS["look"]), body)
    assert reply.status == 403 and b"'look' has: look" in reply.body


def test_a_file_may_mix_tokens_and_callers(tmp_path: Path) -> None:
    path = tmp_path / "tokens"
    path.write_text(f"first\nsecond\nfirst\nann {32 * 'a'} look\nbob third\n")
    path.chmod(0o600)
    callers = {each.name: each for each in read_callers(path, named=False)}
    assert list(callers) == ["token 1", "token 2", "ann", "bob"]
    assert callers["token 1"].token == "first" and callers["bob"].rights == DEFAULT_RIGHTS
    assert callers["ann"].rights == {"look"} and "aaa" not in repr(callers["ann"])
    with pytest.raises(ServeError, match="a name and a token in each line"):
        read_callers(path)
