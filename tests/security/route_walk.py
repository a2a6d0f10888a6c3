"""Requests to all routes of a running port, with every role."""

import http.client
import socket
from base64 import b64encode
from collections.abc import Iterator, Mapping
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path

from xvfl_serve.http.access import AccessMiddleware
from xvfl_serve.http.callers import RIGHTS, Right
from xvfl_serve.http.routes import PortRoute
from xvfl_serve.http.server import HttpServer

TOKENS: dict[Right, str] = {each: f"{each:-<32}{'0123456789' * 2}" for each in RIGHTS}
"""A token for each right; its caller has this right alone."""


def write_tokens(folder: Path) -> Path:
    """Write a file with a caller for each right, named as the right."""
    path = folder / "tokens"
    path.write_text("".join(f"{each} {token} {each}\n" for each, token in TOKENS.items()))
    path.chmod(0o600)
    return path


@dataclass(frozen=True)
class Reply:
    """Status, headers and body of a reply."""

    status: int
    headers: list[tuple[str, str]]
    body: bytes


def request(
    port: int, method: str, path: str, headers: Mapping[str, str] | None = None, body: str = ""
) -> Reply:
    """Send a request on a connection of its own."""
    with closing(http.client.HTTPConnection("127.0.0.1", port)) as connection:
        connection.request(method, path, body or None, dict(headers or {}))
        reply = connection.getresponse()
        return Reply(reply.status, reply.getheaders(), reply.read())


def bearer(token: str) -> dict[str, str]:
    """Return the header of a token."""
    return {"Authorization": f"Bearer {token}", "Content-Type": "application/json"}


def basic(name: str, token: str) -> dict[str, str]:
    """Return the header that a browser sends for a name and a password."""
    return {"Authorization": f"Basic {b64encode(f'{name}:{token}'.encode()).decode()}"}


def status_without_body(port: int, method: str, path: str, token: str) -> int:
    """Announce a body that is never sent; return the status of the reply."""
    with socket.create_connection(("127.0.0.1", port)) as connection:
        text = f"{method} {path} HTTP/1.1\r\nHost: localhost\r\nContent-Length: 100\r\n"
        connection.sendall(f"{text}Authorization: Bearer {token}\r\n\r\n".encode())
        with connection.makefile("rb") as file:
            return int(file.readline().split()[1])


def routes_of(server: HttpServer) -> list[PortRoute]:
    """Return the routes of the application that a server runs."""
    assert isinstance(server.app, AccessMiddleware)
    found = server.app.app.routes  # type: ignore[attr-defined]
    assert all(isinstance(each, PortRoute) for each in found)
    return list(found)


def walk(server: HttpServer, **parameters: str) -> Iterator[tuple[str, Right | None]]:
    """Request all routes of a port whose callers are those of `write_tokens`; check each status.

    Yields what was requested, and the right that it needs.
    """
    for route in routes_of(server):
        path = route.path.format(**parameters)
        for method in sorted(route.methods or ()):
            what = f"{method} {path}"
            for headers in ({}, bearer("wrong"), basic("look", "wrong"), basic("look", "")):
                status = request(server.port, method, path, headers).status
                assert (status == 401) == (route.right is not None), (what, headers, status)
            for right, token in TOKENS.items():
                status = request(server.port, method, path, bearer(token), "{}").status
                allowed = route.right in (None, right)
                assert (status not in (401, 403)) if allowed else status == 403, (what, status)
                if not allowed:
                    assert status_without_body(server.port, method, path, token) == 403, what
            yield what, route.right
    for token, status in (("wrong", 401), (TOKENS["look"], 404)):
        assert request(server.port, "GET", "/nowhere", bearer(token)).status == status
