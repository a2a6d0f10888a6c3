"""Access control of every HTTP port: callers with rights, and cross-site requests.

With callers, a request needs the token or the certificate of one of them (status 401), and each
route a right of the caller (status 403). Without callers, everybody who reaches the port has
`DEFAULT_RIGHTS`, and a browser on this machine or network sends requests for any web page. A page
of another site is recognized by the header `Host` if it resolves its own name to this address (DNS
rebinding), otherwise by `Origin` and `Sec-Fetch-Site`, and it can send only a few content types
without asking first. A browser also sends passwords and certificates for any page.
"""

import time
from base64 import b64decode
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from hmac import compare_digest
from ipaddress import ip_address
from typing import Any

from starlette.datastructures import MutableHeaders
from starlette.requests import ClientDisconnect, Request
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from xvfl_serve.errors import RequestError
from xvfl_serve.http.callers import DEFAULT_RIGHTS, Caller, Callers, Right, no_callers
from xvfl_serve.http.json_response import error_response
from xvfl_serve.http.watched_files import LogEvent

CHALLENGES = ("Bearer", 'Basic realm="xvfl", charset="UTF-8"')
"""What a client without a token is asked for; a browser asks its user for a password."""
FORM_TYPES = ("", "application/x-www-form-urlencoded", "multipart/form-data", "text/plain")
"""Content types that a web page may send to another site without asking it first."""
READING = ("GET", "HEAD")
CountRequest = Callable[[str, int, float], None]
"""Count a request: route, status, seconds."""
GRANTED_S, REFUSED_S = 86_400.0, 60.0
"""Seconds in which a caller's requests, and requests that are refused, are logged once."""


@dataclass(frozen=True)
class Access:
    """Who may send requests to a port.

    Parameters
    ----------
    host : str
        The address on which the server listens.
    callers : callable, default=no_callers
        Returns who may send requests; nobody in it means everybody.
    allowed_hosts : frozenset of str, default=empty
        Host names that clients may use over plain HTTP at a port without callers besides
        `localhost`, IP addresses and, unless it listens on a loopback address, names without a dot.
    """

    host: str
    callers: Callers = no_callers
    allowed_hosts: frozenset[str] = frozenset()


class AccessLog:
    """Logs who uses which right, and refusals; the same line once in some time.

    The number of lines is bounded by that of the callers, whatever clients send.
    """

    def __init__(self, log: LogEvent) -> None:
        self._log, self._last, self._more = log, dict[Any, float](), dict[Any, int]()

    def granted(self, caller: str, right: Right, address: str) -> None:
        """Log that a caller has used a right."""
        self._write(GRANTED_S, {"event": "access", "caller": caller, "right": right}, address)

    def refused(self, caller: str, right: Right | None, status: int, address: str) -> None:
        """Log that a request was refused; `caller` is empty if it is unknown."""
        event = {"event": "access_refused", "caller": caller, "right": right, "status": status}
        self._write(REFUSED_S, {key: each for key, each in event.items() if each}, address)

    def _write(self, seconds: float, event: Mapping[str, Any], address: str) -> None:
        key, now = tuple(event.items()), time.monotonic()
        if now < self._last.get(key, -seconds) + seconds:
            self._more[key] = self._more.get(key, 0) + 1
            return
        self._last[key], more = now, self._more.pop(key, 0)
        self._log({**event, "address": address, **({"more": more} if more else {})})


class AccessMiddleware:
    """Rejects requests of unknown callers; without callers, cross-site requests.

    Notes the caller in the state of a request: `caller`, if there are any, and `rights`, which the
    routes check. Paths in `open_paths` are answered without rights.
    """

    def __init__(
        self,
        app: ASGIApp,
        access: Access,
        open_paths: frozenset[str],
        count: CountRequest | None = None,
        log: LogEvent = lambda event: None,
    ) -> None:
        self.app, self._open_paths, self._count = app, open_paths, count
        self._callers, self._log = access.callers, AccessLog(log)
        self._allowed_hosts = {name.lower() for name in access.allowed_hosts}
        self._loopback = is_loopback(access.host)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer a request."""
        if scope["type"] != "http":
            await self.app(scope, receive, send)
            return
        begin, status = time.perf_counter(), 500

        async def note_status(message: Message) -> None:
            nonlocal status
            if message["type"] == "http.response.start":
                status = message["status"]
                if status == 401:
                    for each in CHALLENGES:
                        MutableHeaders(scope=message).append("WWW-Authenticate", each)
            await send(message)

        state = scope.setdefault("state", {})
        state["access_log"], state["rights"] = self._log, frozenset()
        try:
            error = self._refusal(scope)
            if error is None or scope["path"] in self._open_paths:
                await self.app(scope, receive, note_status)
            else:
                self._log.refused(state.get("caller", ""), None, error.status, client(scope))
                await error_response(error)(scope, receive, note_status)
        except ClientDisconnect:
            status = 499
        finally:
            if self._count is not None:
                path = getattr(scope.get("route"), "path", "other")
                self._count(path, status, time.perf_counter() - begin)

    def _refusal(self, scope: Scope) -> RequestError | None:
        """Return why a request is refused, or None; note caller and rights in its state."""
        headers, state = dict(scope["headers"]), scope["state"]
        host = headers.get(b"host", b"").decode("latin-1").lower()
        caller, callers, by_browser = None, self._callers(), True
        if callers:
            kind, _, text = headers.get(b"authorization", b"").partition(b" ")
            by_browser = kind.lower() != b"bearer"
            token = _password(kind, text) if by_browser else text.strip()
            caller = _find_caller(callers, token, state.get("fingerprint", ""))
            if caller is None:
                return _NO_TOKEN
            state["caller"] = caller.name
        # Over TLS the certificate has told the client which server this is.
        elif scope["scheme"] == "http" and host and not self._is_own(_without_port(host)):
            return RequestError(
                f"Host: expected an IP address or a name of this server, got {host[:100]!r}; "
                "allow the name with --allowed-host or `status_allowed_hosts`, or use the IP "
                "address",
                "host",
                status=421,
            )
        error = _cross_site_error(scope, headers, host) if by_browser else None
        if error is None:
            state["rights"] = DEFAULT_RIGHTS if caller is None else caller.rights
        return error

    def _is_own(self, name: str) -> bool:
        if name == "localhost" or name in self._allowed_hosts or _is_address(name):
            return True
        # Nobody outside can own a name without a dot.
        return not self._loopback and "." not in name


def check_right(scope: Scope, right: Right) -> None:
    """Raise unless the caller of a request has a right; log who has used or lacked it."""
    state, address = scope["state"], client(scope)
    caller = state.get("caller", "")
    if right in state["rights"]:
        if caller:
            state["access_log"].granted(caller, right, address)
        return
    state["access_log"].refused(caller, right, 403, address)
    if not caller:
        text = f"this port has no callers with the right {right!r}; configure tokens"
    else:
        rights = ", ".join(sorted(state["rights"]))
        text = f"this needs the right {right!r}; {caller!r} has: {rights}"
    raise RequestError(text, "authorization", status=403)


def may(request: Request, right: Right) -> bool:
    """Return whether the caller of a request has a right."""
    return right in request.state.rights


def client(scope: Scope) -> str:
    """Return the address of the client."""
    return str((scope.get("client") or ("",))[0])


def is_loopback(host: str) -> bool:
    """Return whether only this machine can reach a server that listens on this host."""
    name = host.strip("[]")
    return name == "localhost" or (_is_address(name) and ip_address(name).is_loopback)


_NO_TOKEN = RequestError(
    "expected a valid token in the header `Authorization: Bearer TOKEN`, or as the password",
    "authorization",
    status=401,
)


def _find_caller(callers: Sequence[Caller], token: bytes, fingerprint: str) -> Caller | None:
    """Return whose token a request has or, without a token, whose certificate."""
    if token:
        # Compared with all, so that the time does not tell which one was near.
        valid = [each for each in callers if compare_digest(token, each.token.encode())]
    else:
        valid = [each for each in callers if each.fingerprint and each.fingerprint == fingerprint]
    return valid[0] if valid else None


def _password(kind: bytes, text: bytes) -> bytes:
    """Return the password of HTTP Basic; its name is not used."""
    with suppress(ValueError):
        if kind.lower() == b"basic":
            return b64decode(text.strip(), validate=True).partition(b":")[2]
    return b""


def _cross_site_error(
    scope: Scope, headers: Mapping[bytes, bytes], host: str
) -> RequestError | None:
    """Return why a request that a browser may have sent for any page is refused, or None."""
    method = scope["method"]
    if _is_cross_site(headers, host, method):
        return RequestError(
            "cross-site request rejected; send the request without a browser and, if this port "
            "has tokens, with the header `Authorization: Bearer TOKEN`",
            "origin",
            status=403,
        )
    kind = headers.get(b"content-type", b"").decode("latin-1").partition(";")[0].strip().lower()
    if method not in READING and kind in FORM_TYPES:
        return RequestError(
            f"content type: expected application/json, got {kind or 'none'!r}; send the header "
            "`Content-Type: application/json`",
            "content-type",
            status=415,
        )
    return None


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
