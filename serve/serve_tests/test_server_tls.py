"""TLS of a port: renewed files without a restart, certificates of clients as callers."""

import shutil
import socket
import ssl
from collections.abc import Mapping
from contextlib import closing
from hashlib import sha256
from http.client import HTTPSConnection
from pathlib import Path
from typing import Any

import pytest
from starlette.requests import Request
from starlette.responses import PlainTextResponse, Response

from serve_tests.server import wait_until
from xvfl.certs import create_authority
from xvfl_serve.errors import ServeError
from xvfl_serve.http.access import Access
from xvfl_serve.http.callers import read_callers, watch_callers
from xvfl_serve.http.connections import port_limits
from xvfl_serve.http.routes import PortRoute, application
from xvfl_serve.http.server import HttpServer, listen
from xvfl_serve.http.server_tls import ServerTls, server_tls


def name_caller(request: Request) -> Response:
    """Answer with the name of the caller."""
    return PlainTextResponse(getattr(request.state, "caller", "nobody"))


ROUTES = [
    PortRoute("/name", name_caller, "look"),
    PortRoute("/predict", name_caller, "predict", ["POST"]),
]


def serve(access: Access, tls: ServerTls) -> HttpServer:
    """Serve the routes."""
    app = application(ROUTES, access)
    return HttpServer(app, listen("127.0.0.1", 0), port_limits(), tls).start("tls")


def shown_certificate(port: int, authority: Path) -> bytes:
    """Return the certificate that a port shows to a new connection."""
    context = ssl.create_default_context(cafile=str(authority))
    plain = socket.create_connection(("127.0.0.1", port))
    with context.wrap_socket(plain, server_hostname="localhost") as connection:
        return connection.getpeercert(True) or b""


def test_renewed_files_are_used_by_new_connections(tmp_path: Path) -> None:
    authority, events = create_authority(tmp_path), list[Mapping[str, Any]]()
    for name in ("old", "new"):
        authority.issue(name, hosts=("localhost",))
        certificate = (tmp_path / f"{name}.crt").read_text()
        end = "-----END CERTIFICATE-----\n"
        (tmp_path / f"{name}.der").write_bytes(
            ssl.PEM_cert_to_DER_cert(certificate.partition(end)[0] + end)
        )
    used = tmp_path / "used.crt", tmp_path / "used.key"
    for path in used:
        shutil.copy(tmp_path / f"old{path.suffix}", path)
    tls, ca = server_tls(*used, log=events.append), tmp_path / "ca.crt"
    with closing(serve(Access("127.0.0.1"), tls)) as server:
        assert shown_certificate(server.port, ca) == (tmp_path / "old.der").read_bytes()
        # Another certificate without its key: the old ones stay in use.
        shutil.copy(tmp_path / "new.crt", used[0])
        wait_until(lambda: shown_certificate(server.port, ca) and events)
        assert [each["event"] for each in events] == ["certificate_not_loaded"]
        assert shown_certificate(server.port, ca) == (tmp_path / "old.der").read_bytes()
        shutil.copy(tmp_path / "new.key", used[1])
        new = (tmp_path / "new.der").read_bytes()
        wait_until(lambda: shown_certificate(server.port, ca) == new)
        assert [each["event"] for each in events][1:] == ["certificate_loaded"]
        used[1].unlink()
        wait_until(lambda: shown_certificate(server.port, ca) == new and len(events) == 3)
    with pytest.raises(ServeError, match="the certificate cannot be used"):
        server_tls(*used)


def test_the_certificate_of_a_client_has_rights(tmp_path: Path) -> None:
    authority = create_authority(tmp_path)
    authority.issue("server", hosts=("localhost",))
    for name in ("reader", "stranger"):
        authority.issue(name)
    certificate = (tmp_path / "reader.crt").read_text()
    end = "-----END CERTIFICATE-----\n"
    der = ssl.PEM_cert_to_DER_cert(certificate.partition(end)[0] + end)
    digits = sha256(der).hexdigest().upper()
    shown = ":".join(digits[at : at + 2] for at in range(0, 64, 2))
    tokens = tmp_path / "tokens"
    tokens.write_text(f"reader sha256:{shown} look\nscript {32 * 'b'} predict\n")
    tokens.chmod(0o600)
    access = Access("127.0.0.1", watch_callers(tokens, read_callers))
    ca = tmp_path / "ca.crt"
    tls = server_tls(tmp_path / "server.crt", tmp_path / "server.key", ca)
    with closing(serve(access, tls)) as server:

        def ask(client: str, method: str, path: str, **headers: str) -> tuple[int, bytes]:
            context = ssl.create_default_context(cafile=str(ca))
            context.load_cert_chain(tmp_path / f"{client}.crt", tmp_path / f"{client}.key")
            address = "localhost", server.port
            with closing(HTTPSConnection(*address, context=context)) as connection:
                kind = {"Content-Type": "application/json"}
                given = {name.replace("_", "-"): each for name, each in headers.items()}
                connection.request(method, path, headers=kind | given)
                reply = connection.getresponse()
                return reply.status, reply.read()

        assert ask("reader", "GET", "/name") == (200, b"reader")
        assert ask("reader", "POST", "/predict")[0] == 403
        assert ask("stranger", "GET", "/name")[0] == 401
        # A browser sends a certificate for any page; a token decides, if there is one.
        assert ask("reader", "GET", "/name", Sec_Fetch_Site="cross-site")[0] == 403
        token = f"Bearer {32 * 'b'}"
        assert ask("reader", "POST", "/predict", Authorization=token) == (200, b"script")
        assert ask("reader", "GET", "/name", Authorization="Bearer wrong")[0] == 401
        wrong = f"Bearer sha256:{shown}"
        assert ask("stranger", "GET", "/name", Authorization=wrong)[0] == 401
