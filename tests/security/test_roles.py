"""Roles: every route of every HTTP port needs a right, and no right opens another one's route."""

import json
import re
import ssl
from collections.abc import Iterator
from concurrent.futures import Future
from contextlib import ExitStack, closing
from http.client import HTTPSConnection
from pathlib import Path
from typing import Any

import pytest

from serve_tests.server import wait_until
from tests.command_line import rejected_with, run_xvfl
from tests.processes import ROOT, free_port
from tests.security.route_walk import (
    TOKENS,
    basic,
    bearer,
    request,
    walk,
    write_tokens,
)
from tests.service.predicting_federation import copy_trained, write_party
from xvfl.certs import create_authority
from xvfl.errors import ConfigError
from xvfl.model.dashboard.dashboard_server import DashboardServer
from xvfl.model.run_dir import RunDir
from xvfl.service.config import load_config
from xvfl.service.port_access import read_tokens
from xvfl.service.prediction.http_endpoint import open_endpoint
from xvfl.service.prediction.prediction_config import PartyPrediction
from xvfl.service.release_store import ReleaseStore
from xvfl.service.state_dir import open_state_dir
from xvfl.service.status_server import serve_status
from xvfl.system.event_log import read_log
from xvfl.trail.approvals import REJECTED, Approvals
from xvfl.trail.entries import TRAIL
from xvfl_serve.http.callers import RIGHTS
from xvfl_serve.http.id_endpoint import IdEndpoint, PredictionService
from xvfl_serve.http.server import HttpServer

COORDINATOR = """\
listen = "127.0.0.1:0"
parties = ["bank"]
release_to = ["bank"]
labels = {table = "labels.csv", id_column = "id", column = "y"}
"""
PARTY = 'coordinator = "localhost:8470"\ntable = "bank.csv"\n'
PORT = """\
state_dir = "state"
status_address = "127.0.0.1:{port}"
status_tokens = "tokens"
[tls]
ca_certificate = "ca.crt"
certificate = "own.crt"
private_key = "own.key"
"""
STATUS = {"side": "test", "healthy": False, "problem": "no party is connected"}


def status_server(folder: Path, text: str, stack: ExitStack) -> tuple[HttpServer, Path]:
    """Serve a status as a process with this configuration does; return its state folder too."""
    write_tokens(folder)
    (folder / "config.toml").write_text(text + PORT.format(port=free_port()))
    config = load_config(folder / "config.toml")
    state, log = open_state_dir(config, "test", show=False)
    server = serve_status(config, lambda: dict(STATUS), log, stack)
    assert server is not None
    return server, state.path


def prediction_endpoint(tokens: Path, events: list[Any]) -> IdEndpoint:
    """Serve predictions of which nothing is known."""
    service = PredictionService(
        "assisted", lambda each: 0, lambda note: {"mode": "prior"}, lambda *given: Future()
    )
    section = PartyPrediction("t.csv", address="127.0.0.1:0", tokens=str(tokens))
    return open_endpoint(section, service, events.append)


@pytest.fixture(params=["coordinator", "party", "dashboard", "prediction"])
def server(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[HttpServer]:
    """Start a port with a caller for each right."""
    tokens = write_tokens(tmp_path)
    with ExitStack() as stack:
        if request.param == "dashboard":
            yield stack.enter_context(closing(DashboardServer(tmp_path, tokens=tokens))).server
        elif request.param == "prediction":
            yield stack.enter_context(closing(prediction_endpoint(tokens, []))).server
        else:
            text = COORDINATOR if request.param == "coordinator" else PARTY
            yield status_server(tmp_path, text, stack)[0]


def test_all_routes_with_every_role(server: HttpServer, request: pytest.FixtureRequest) -> None:
    walked = dict(walk(server))
    kind = request.node.callspec.params["server"]
    rights = {right for right in walked.values() if right is not None}
    expected = {
        "coordinator": {"look", "release"},
        "party": {"look", "approve"},
        "dashboard": {"look"},
        "prediction": {"look", "predict"},
    }
    assert rights == expected[kind]
    # Probes have no token; what they learn is not more than whether a process is well.
    opened = {what for what, right in walked.items() if right is None and what[:3] == "GET"}
    assert (
        opened
        == {
            "coordinator": {"GET /health", "GET /live"},
            "party": {"GET /health", "GET /live"},
            "dashboard": set(),
            "prediction": {"GET /v2/health/live", "GET /v2/health/ready"},
        }[kind]
    )


def test_all_ports_have_the_routes_that_are_walked() -> None:
    sources = [*(ROOT / "src").rglob("*.py"), *(ROOT / "serve" / "xvfl_serve").rglob("*.py")]
    apps = re.compile(
        r"starlette\.(routing|applications)|(from|import) http\.server|AccessMiddleware\("
    )
    found = {path.name for path in sources if apps.search(path.read_text(encoding="utf-8"))}
    assert found == {"routes.py"}
    servers = re.compile(r"\bHttpServer\(\w|\bserve_pages\(")
    found = {path.name for path in sources if servers.search(path.read_text(encoding="utf-8"))}
    assert found == {
        "command.py",
        "dashboard_server.py",
        "id_endpoint.py",
        "pages.py",
        "status_server.py",
    }


def test_the_reason_in_health_is_for_those_who_may_look(tmp_path: Path) -> None:
    with ExitStack() as stack:
        server, _ = status_server(tmp_path, PARTY, stack)
        for headers in ({}, bearer("wrong"), bearer(TOKENS["predict"])):
            reply = request(server.port, "GET", "/health", headers)
            assert (reply.status, reply.body) == (503, b"unhealthy\n")
        reply = request(server.port, "GET", "/health", bearer(TOKENS["look"]))
        assert reply.body == b"unhealthy: no party is connected\n"


def test_a_browser_asks_for_the_token_as_the_password(tmp_path: Path) -> None:
    with closing(DashboardServer(tmp_path, tokens=write_tokens(tmp_path))) as dashboard:
        port = dashboard.server.port
        reply = request(port, "GET", "/")
        asked = [value for name, value in reply.headers if name.lower() == "www-authenticate"]
        assert reply.status == 401 and [each.split()[0] for each in asked] == ["Bearer", "Basic"]
        own = basic("anybody", TOKENS["look"])
        assert request(port, "GET", "/", own).status == 200
        assert request(port, "GET", "/api/runs", own).status == 200
        assert request(port, "GET", "/api/runs", basic("release", TOKENS["release"])).status == 403
        for wrong in ("Basic", "Basic !", "Basic bG9vaw==", f"Token {TOKENS['look']}"):
            assert request(port, "GET", "/", {"Authorization": wrong}).status == 401


def test_pages_of_other_sites_cannot_use_the_password_of_a_browser(tmp_path: Path) -> None:
    with ExitStack() as stack:
        server, _ = status_server(tmp_path, COORDINATOR, stack)
        own, body = basic("me", TOKENS["release"]), '{"parties": ["bank"]}'
        json_type = {"Content-Type": "application/json"}
        foreign = (
            {"Origin": "https://attacker.example"},
            {"Sec-Fetch-Site": "cross-site"},
            {"Origin": "null"},
        )
        for each in foreign:
            headers = {**own, **json_type, **each}
            assert request(server.port, "POST", "/release", headers, body).status == 403
        form = {**own, "Content-Type": "text/plain"}
        assert request(server.port, "POST", "/release", form, body).status == 415
        # A script with a token is no browser.
        headers = {**bearer(TOKENS["release"]), "Origin": "https://tool.example"}
        assert request(server.port, "POST", "/release", headers, body).status == 409


def test_without_callers_nobody_may_release(tmp_path: Path) -> None:
    (tmp_path / "config.toml").write_text(
        COORDINATOR + PORT.format(port=free_port()).replace('status_tokens = "tokens"\n', "")
    )
    config = load_config(tmp_path / "config.toml")
    with ExitStack() as stack:
        _, log = open_state_dir(config, "test", show=False)
        server = serve_status(config, lambda: dict(STATUS), log, stack)
        assert server is not None
        headers = {"Content-Type": "application/json"}
        reply = request(server.port, "POST", "/release", headers, "{}")
        assert reply.status == 403 and b"configure tokens" in reply.body
        assert request(server.port, "GET", "/status").status == 200
        assert request(server.port, "GET", "/health").body.startswith(b"unhealthy: no party")


def test_the_log_names_callers_and_is_bounded(tmp_path: Path) -> None:
    with ExitStack() as stack:
        server, state = status_server(tmp_path, PARTY, stack)
        for number in range(50):
            assert request(server.port, "GET", "/status", bearer(TOKENS["look"])).status == 200
            assert request(server.port, "GET", "/status", bearer(TOKENS["predict"])).status == 403
            wrong = {**bearer(f"wrong{number}"), "User-Agent": f"agent{number}"}
            assert request(server.port, "GET", f"/{number}", wrong).status == 401
    events = [each for each in read_log(state) if each["event"].startswith("access")]
    for each in events:
        assert each.pop("time") and each.pop("address") == "127.0.0.1"
    assert events == [
        {"event": "access", "caller": "look", "right": "look"},
        {"event": "access_refused", "caller": "predict", "right": "look", "status": 403},
        {"event": "access_refused", "status": 401},
    ]
    assert not any(token in (state / "log.jsonl").read_text() for token in TOKENS.values())


def test_todays_tokens_look_and_predict(tmp_path: Path) -> None:
    (tmp_path / "tokens").write_text("web s3cret\nbatch other\n")
    events: list[Any] = []
    with closing(prediction_endpoint(tmp_path / "tokens", events)) as endpoint:
        for token in ("s3cret", "other"):
            assert request(endpoint.port, "GET", "/metrics", bearer(token)).status == 200
            assert request(endpoint.port, "POST", "/predict", bearer(token), "{}").status == 422
    assert [(each["caller"], each["right"]) for each in events] == [
        (name, right) for name in ("web", "batch") for right in ("look", "predict")
    ]


@pytest.mark.parametrize(
    ("text", "error"),
    [
        (f"ann look {32 * 'a'}", "expected rights among look, predict"),
        ("ann short look", "32 or more random characters"),
        (f"ann {32 * 'a'} look,edit", "expected rights among look, predict"),
        (f"ann {32 * 'a'} look release", "a name and a token in each line"),
        (f"ann {32 * 'a'} look\nbob {32 * 'a'} look", "all distinct"),
        (f"a;nn {32 * 'a'} look", "letters, digits"),
    ],
)
def test_wrong_files_are_rejected_without_showing_tokens(
    tmp_path: Path, text: str, error: str
) -> None:
    path = tmp_path / "tokens"
    path.write_text(text)
    path.chmod(0o600)
    with pytest.raises(ConfigError, match=error) as raised:
        read_tokens(str(path), "status_tokens")
    assert 32 * "a" not in str(raised.value) and "status_tokens" in str(raised.value)


def test_a_file_with_rights_is_private(tmp_path: Path) -> None:
    path = write_tokens(tmp_path)
    assert [each.name for each in read_tokens(str(path), "tokens")] == list(RIGHTS)
    path.chmod(0o604)
    with pytest.raises(ConfigError, match="chmod 600"):
        read_tokens(str(path), "tokens")


@pytest.mark.slow
def test_release_and_approval_over_http_are_in_the_trail(
    tmp_path: Path, tmp_path_factory: pytest.TempPathFactory
) -> None:
    copy_trained(tmp_path_factory, tmp_path)
    write_party(tmp_path, "bank", free_port())
    write_tokens(tmp_path)
    for name in ("coordinator", "bank"):
        path = tmp_path / f"{name}.toml"
        path.write_text('status_tokens = "tokens"\n' + path.read_text())
    with ExitStack() as stack:
        servers, folders = {}, {}
        for name in ("coordinator", "bank"):
            config = load_config(tmp_path / f"{name}.toml")
            folders[name], log = open_state_dir(config, name, show=False)
            servers[name] = serve_status(config, lambda: dict(STATUS), log, stack)
        coordinator, bank = servers["coordinator"], servers["bank"]
        assert coordinator is not None and bank is not None

        def ask(server: HttpServer, path: str, right: Any, body: Any) -> tuple[int, Any]:
            headers = bearer(TOKENS[right])
            reply = request(server.port, "POST", path, headers, json.dumps(body))
            return reply.status, json.loads(reply.body)

        before = ReleaseStore(folders["coordinator"]).records()
        for right in ("look", "predict", "approve"):
            assert ask(coordinator, "/release", right, {"parties": ["bank"]})[0] == 403
        assert ReleaseStore(folders["coordinator"]).records() == before
        status, answer = ask(coordinator, "/release", "release", {"parties": ["bank"]})
        assert status == 200 and not answer["releases"]["bank"]["delivered"]
        revoked = {"parties": ["bank"], "revoke": "a test"}
        status, answer = ask(coordinator, "/release", "release", revoked)
        assert status == 200 and answer["releases"]["bank"]["revoked"]
        assert ask(coordinator, "/release", "release", revoked)[0] == 409
        assert ask(coordinator, "/release", "release", {"parties": ["nobody"]})[0] == 409
        assert ask(coordinator, "/release", "release", {"to": ["bank"]})[0] == 422
        approvals = Approvals(folders["bank"].path)
        for kind in ("new-version", "match"):
            assert approvals.ask(kind, "a test")
        first, second = (each.number for each in approvals.pending())
        assert ask(bank, "/approve", "look", {"number": first})[0] == 403
        assert len(approvals.pending()) == 2
        status, answer = ask(bank, "/approve", "approve", {"number": first})
        assert status == 200 and answer["by"] == "approve over HTTP"
        assert ask(bank, "/approve", "approve", {"number": first})[0] == 409
        status, answer = ask(bank, "/approve", "approve", {"number": second, "reject": True})
        assert status == 200 and answer["state"] == REJECTED
        for wrong in ({}, {"number": "1"}, {"number": True}, {"number": 1, "reject": "no"}):
            assert ask(bank, "/approve", "approve", wrong)[0] == 422
    assert made(folders["coordinator"], "release_signed") == 2 * ["release over HTTP"]
    for event in ("version_allowed", "request_approved", "request_declined"):
        assert made(folders["bank"], event) == ["approve over HTTP"]


def made(folder: RunDir, event: str) -> list[str]:
    """Return who made the newest entries of a trail by HTTP."""
    lines = (folder / TRAIL).read_text().splitlines()
    entries = [json.loads(line) for line in lines]
    return [each["by"] for each in entries if each["event"] == event and "HTTP" in each["by"]]


def test_status_and_dashboard_over_https(tmp_path: Path) -> None:
    authority = create_authority(tmp_path / "certs")
    authority.issue("ports", hosts=("localhost",))
    cert, key = tmp_path / "certs" / "ports.crt", tmp_path / "certs" / "ports.key"
    context = ssl.create_default_context(cafile=str(tmp_path / "certs" / "ca.crt"))
    more = f'status_certificate = "{cert}"\nstatus_private_key = "{key}"\n'
    with ExitStack() as stack:
        server, _ = status_server(tmp_path, PARTY + more, stack)
        tokens = tmp_path / "tokens"
        dashboard = DashboardServer(tmp_path, tokens=tokens, certificate=cert, key=key)
        stack.callback(dashboard.close)
        assert dashboard.url.startswith("https://")
        for port, path in ((server.port, "/status"), (dashboard.server.port, "/api/runs")):
            with closing(HTTPSConnection("localhost", port, context=context)) as connection:
                connection.request("GET", path, headers=bearer(TOKENS["look"]))
                assert connection.getresponse().status == 200
    with pytest.raises(ConfigError, match="expected also `status_private_key`"):
        status_server(tmp_path, f'{PARTY}status_certificate = "{cert}"\n', ExitStack())


def test_changed_callers_are_used_without_a_restart(tmp_path: Path) -> None:
    with ExitStack() as stack:
        server, state = status_server(tmp_path, PARTY, stack)
        tokens, look, new = tmp_path / "tokens", bearer(TOKENS["look"]), 40 * "n"

        def status(headers: dict[str, str]) -> int:
            return request(server.port, "GET", "/status", headers).status

        assert status(look) == 200 and status(bearer(new)) == 401
        # A file that cannot be used changes nothing: it may be half written.
        tokens.write_text("")
        wait_until(lambda: status(look) == 200 and "callers_not_loaded" in events(state))
        assert status(look) == 200
        tokens.write_text(f"ann {new} look\n")
        wait_until(lambda: status(bearer(new)) == 200)
        assert status(look) == 401 and "callers_loaded" in events(state)


def events(state: Path) -> set[str]:
    """Return the names of the events in the log."""
    return {each["event"] for each in read_log(state)}


def test_the_status_command_sends_the_token_of_the_environment(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    create_authority(tmp_path / "certs").issue("ports", hosts=("localhost",))
    cert, key = tmp_path / "certs" / "ports.crt", tmp_path / "certs" / "ports.key"
    more = f'status_certificate = "{cert}"\nstatus_private_key = "{key}"\n'
    monkeypatch.setenv("SSL_CERT_FILE", str(tmp_path / "certs" / "ca.crt"))
    with ExitStack() as stack:
        server, _ = status_server(tmp_path, PARTY + more, stack)
        address = f"https://localhost:{server.port}"
        assert "the right 'look'; set XVFL_TOKEN" in rejected_with("status", address)
        monkeypatch.setenv("XVFL_TOKEN", TOKENS["predict"])
        assert "the right 'look'; set XVFL_TOKEN" in rejected_with("status", address)
        monkeypatch.setenv("XVFL_TOKEN", TOKENS["look"])
        assert "no party is connected" in run_xvfl("status", address).out
        assert "no response" in rejected_with("status", f"localhost:{server.port}")
    assert "expected HOST:PORT" in rejected_with("status", "ftp://localhost:1")
