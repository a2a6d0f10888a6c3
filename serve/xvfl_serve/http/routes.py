"""The application of every HTTP port: routes that declare the right that they need."""

from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from typing import Any

from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route
from starlette.types import Lifespan, Receive, Scope, Send

from xvfl_serve.errors import RequestError
from xvfl_serve.http.access import (
    Access,
    AccessMiddleware,
    CountRequest,
    check_right,
)
from xvfl_serve.http.callers import Right
from xvfl_serve.http.json_response import error_response
from xvfl_serve.http.watched_files import LogEvent

Respond = Callable[[Request], Awaitable[Response]] | Callable[[Request], Response]
"""Answer a request; a function that is not `async` is called in a thread."""


class PortRoute(Route):
    """A route and the right that it needs; with None, everybody may request it.

    The right is checked before the body is read.
    """

    def __init__(
        self, path: str, respond: Respond, right: Right | None, methods: Sequence[str] = ("GET",)
    ) -> None:
        super().__init__(path, respond, methods=methods)
        self.right = right

    async def handle(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Check the right and answer a request."""
        if self.right is not None:
            check_right(scope, self.right)
        await super().handle(scope, receive, send)


def application(
    routes: Iterable[PortRoute],
    access: Access,
    count: CountRequest | None = None,
    log: LogEvent = lambda event: None,
    failures: Mapping[type[Exception], Any] | None = None,
    lifespan: Lifespan[Starlette] | None = None,
) -> AccessMiddleware:
    """Return the application of a port.

    Parameters
    ----------
    routes : iterable of PortRoute
        All routes.
    access : Access
        Who may send requests.
    count : callable, optional
        Counts each request.
    log : callable, optional
        Receives events about callers and refused requests.
    failures : mapping, optional
        Further exceptions of the routes, and what answers them.
    lifespan : callable, optional
        What runs beside the server.
    """
    table = list(routes)
    handlers = {RequestError: on_error, HTTPException: _on_http_error, **(failures or {})}
    app = Starlette(routes=table, exception_handlers=handlers, lifespan=lifespan)
    app.router.redirect_slashes = False
    open_paths = frozenset(each.path for each in table if each.right is None)
    return AccessMiddleware(app, access, open_paths, count, log)


async def on_error(request: Request, error: RequestError) -> Response:
    """Answer a request that cannot be carried out."""
    return error_response(error)


async def _on_http_error(request: Request, error: HTTPException) -> Response:
    """Answer a request for an unknown page or with a wrong method."""
    path = request.url.path[:200]
    known = ", ".join(each.path for each in request.app.routes)
    texts = {
        404: f"{path}: no such page; expected one of {known}",
        405: f"{path}: method {request.method} is not allowed; see the documentation",
    }
    text = texts.get(error.status_code, str(error.detail))
    return error_response(RequestError(text, status=error.status_code), error.headers)
