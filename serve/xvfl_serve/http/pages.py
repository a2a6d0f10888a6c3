"""Read-only pages on a port."""

from collections.abc import Callable, Iterable

from starlette.concurrency import run_in_threadpool
from starlette.responses import PlainTextResponse, Response
from starlette.types import ASGIApp, Receive, Scope, Send

from xvfl_serve.http.access import Access, AccessMiddleware
from xvfl_serve.http.connections import port_limits
from xvfl_serve.http.server import HttpServer, listen

MAX_CONNECTIONS = 64
Respond = Callable[[str], Response]
"""Answer a GET request of a path, with its query."""


def pages(respond: Respond) -> ASGIApp:
    """Return the application; `respond` is called in a thread of its own."""

    async def app(scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            return
        if scope["method"] not in ("GET", "HEAD"):
            response: Response = PlainTextResponse("expected GET\n", 405, {"Allow": "GET, HEAD"})
        else:
            query = scope["query_string"].decode("latin-1")
            path = scope["raw_path"].decode("latin-1") + (f"?{query}" if query else "")
            response = await run_in_threadpool(respond, path)
        await response(scope, receive, send)

    return app


def serve_pages(
    name: str, host: str, port: int, respond: Respond, allowed_hosts: Iterable[str] = ()
) -> HttpServer:
    """Serve pages in a thread of this name; `allowed_hosts` are further names of this host.

    Raises
    ------
    OSError, OverflowError
        It cannot listen on this address.
    """
    access = Access(host, allowed_hosts=frozenset(allowed_hosts))
    app = AccessMiddleware(pages(respond), access)
    return HttpServer(app, listen(host, port), port_limits(MAX_CONNECTIONS)).start(name)
