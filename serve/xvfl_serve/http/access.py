"""Access control of every HTTP port: tokens and cross-site requests.

With tokens, a request needs one of them. Without tokens, everybody who reaches the port may send
requests, and a browser on this machine or network does so for any web page. A page of another site
is recognized by the header `Host` if it resolves its own name to this address (DNS rebinding),
otherwise by `Origin` and `Sec-Fetch-Site`, and it can send only a few content types without asking
first.
"""

import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from hmac import compare_digest
from ipaddress import ip_address

from starlette.requests import ClientDisconnect
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from xvfl_serve.errors import RequestError
from xvfl_serve.http.json_response import error_response

OPEN_ROUTES = ("/v2/health/live", "/v2/health/ready")
"""Routes that anybody may request; their answers have no content."""
FORM_TYPES = ("", "application/x-www-form-urlencoded", "multipart/form-data", "text/plain")
"""Content types that a web page may send to another site without asking it first."""
READING = ("GET", "HEAD")
CountRequest = Callable[[str, int, float], None]
"""Count a request: route, status, seconds."""


@dataclass(frozen=True)
class Access:
    """Who may send requests to a port.

    Parameters
    ----------
    host : str
        The address on which the server listens.
    tokens : mapping of str to str, default=empty
        Accepted bearer token of each caller; empty accepts requests without a token.
    allowed_hosts : frozenset of str, default=empty
        Host names that clients without a token may use over plain HTTP besides `localhost`, IP
        addresses and, unless it listens on a loopback address, names without a dot.
    """

    host: str
    tokens: Mapping[str, str] = field(default_factory=dict)
    allowed_hosts: frozenset[str] = frozenset()


class AccessMiddleware:
    """Rejects requests without a valid token; without configured tokens, cross-site requests."""

    def __init__(self, app: ASGIApp, access: Access, count: CountRequest | None = None) -> None:
        self._app, self._count = app, count
        self._tokens = {name: token.encode() for name, token in access.tokens.items()}
        self._allowed_hosts = {name.lower() for name in access.allowed_hosts}
        self._loopback = is_loopback(access.host)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer a request."""
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        begin, status = time.perf_counter(), 500

        async def note_status(message: Message) -> None:
            nonlocal status
            if message["type"] == "http.response.start":
                status = message["status"]
            await send(message)

        try:
            error = None if scope["path"] in OPEN_ROUTES else self._refusal(scope)
            if error is None:
                await self._app(scope, receive, note_status)
            else:
                bearer = {"WWW-Authenticate": "Bearer"} if error.status == 401 else None
                await error_response(error, bearer)(scope, receive, note_status)
        except ClientDisconnect:
            status = 499
        finally:
            if self._count is not None:
                path = getattr(scope.get("route"), "path", "other")
                self._count(path, status, time.perf_counter() - begin)

    def _refusal(self, scope: Scope) -> RequestError | None:
        """Return why a request is refused, or None; with tokens, note the caller in its state."""
        headers = dict(scope["headers"])
        if self._tokens:
            caller = self._find_caller(headers)
            scope.setdefault("state", {})["caller"] = caller
            return _NO_TOKEN if caller is None else None
        host = headers.get(b"host", b"").decode("latin-1").lower()
        # Over TLS the certificate has told the client which server this is.
        if scope["scheme"] == "http" and host and not self._is_own(_without_port(host)):
            return RequestError(
                f"Host: expected an IP address or a name of this server, got {host[:100]!r}; "
                "allow the name with --allowed-host or `status_allowed_hosts`, or use the IP "
                "address",
                "host",
                status=421,
            )
        if _is_cross_site(headers, host, scope["method"]):
            return RequestError(
                "cross-site request rejected: this server has no tokens; send the request without "
                "a browser, or configure tokens",
                "origin",
                status=403,
            )
        kind = headers.get(b"content-type", b"").decode("latin-1").partition(";")[0].strip().lower()
        if scope["method"] not in READING and kind in FORM_TYPES:
            return RequestError(
                f"content type: expected application/json, got {kind or 'none'!r}; send the header "
                "`Content-Type: application/json` to a server without tokens",
                "content-type",
                status=415,
            )
        return None

    def _find_caller(self, headers: Mapping[bytes, bytes]) -> str | None:
        """Return whose token a request has; None without a valid one."""
        kind, _, token = headers.get(b"authorization", b"").partition(b" ")
        # Compared with all, so that the time does not tell which one was near.
        valid = [name for name, each in self._tokens.items() if compare_digest(token.strip(), each)]
        return valid[0] if valid and kind.lower() == b"bearer" else None

    def _is_own(self, name: str) -> bool:
        if name == "localhost" or name in self._allowed_hosts or _is_address(name):
            return True
        # Nobody outside can own a name without a dot.
        return not self._loopback and "." not in name


def is_loopback(host: str) -> bool:
    """Return whether only this machine can reach a server that listens on this host."""
    name = host.strip("[]")
    return name == "localhost" or (_is_address(name) and ip_address(name).is_loopback)


_NO_TOKEN = RequestError(
    "expected a valid token in the header `Authorization: Bearer TOKEN`",
    "authorization",
    status=401,
)


def _is_cross_site(headers: Mapping[bytes, bytes], host: str, method: str) -> bool:
    """Return whether a browser sends a request for a page of another site."""
    origin = headers.get(b"origin")
    if origin is not None and origin.decode("latin-1").lower().partition("://")[2] != host:
        return True
    site = headers.get(b"sec-fetch-site", b"none")
    # A link on another page may lead here; what it opens, that page cannot read.
    link = method in READING and headers.get(b"sec-fetch-mode") == b"navigate"
    return site not in (b"same-origin", b"none") and not link


def _without_port(host: str) -> str:
    if host.startswith("["):
        return host[1:].partition("]")[0]
    return host.partition(":")[0]


def _is_address(name: str) -> bool:
    try:
        ip_address(name)
    except ValueError:
        return False
    return True
