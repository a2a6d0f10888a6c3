"""An ASGI application of read-only pages."""

from collections.abc import Callable

from starlette.concurrency import run_in_threadpool
from starlette.responses import PlainTextResponse, Response
from starlette.types import ASGIApp, Receive, Scope, Send

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
