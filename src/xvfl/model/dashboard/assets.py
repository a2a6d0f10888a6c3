"""The files of the web page, and replies with headers that keep everything else out.

The page is the same for run folders and for the status of a process; it is told which of them its
server has.
"""

import json
from collections.abc import Mapping
from functools import cache
from importlib.resources import files
from typing import Any, Literal

from starlette.responses import Response

from xvfl.model.run_dir import finite_json
from xvfl_serve.http.routes import PortRoute

PageSource = Literal["runs", "status"]
"""What the page reads: the runs of a folder, or `/status` of a process."""
TYPES = {
    "index.html": "text/html; charset=utf-8",
    "dashboard.css": "text/css; charset=utf-8",
    "dashboard.js": "text/javascript; charset=utf-8",
    "charts.js": "text/javascript; charset=utf-8",
    "panels.js": "text/javascript; charset=utf-8",
    "elements.js": "text/javascript; charset=utf-8",
}
HEADERS = {
    "Content-Security-Policy": "default-src 'none'; script-src 'self'; style-src 'self'; "
    "img-src 'self' data:; connect-src 'self'; base-uri 'none'; form-action 'none'; "
    "frame-ancestors 'none'",
    "X-Content-Type-Options": "nosniff",
    "X-Frame-Options": "DENY",
    "Referrer-Policy": "no-referrer",
    "Cross-Origin-Resource-Policy": "same-origin",
    "Cache-Control": "no-store",
}


def static_routes(source: PageSource) -> list[PortRoute]:
    """Return the routes of the page's files."""

    def reply(name: str) -> Response:
        body = _read(name)
        if name == "index.html":
            body = body.replace(b"SOURCE", source.encode())
        return Response(body, 200, HEADERS, TYPES[name])

    def route(path: str, name: str) -> PortRoute:
        return PortRoute(path, lambda request: reply(name), "look")

    return [route("/", "index.html"), *(route(f"/{name}", name) for name in TYPES)]


def json_reply(data: Mapping[str, Any], code: int = 200) -> Response:
    """Reply with JSON; NaN and infinity become null."""
    body = json.dumps(finite_json(data), default=str) + "\n"
    return Response(body, code, HEADERS, "application/json")


@cache
def _read(name: str) -> bytes:
    return (files(__package__) / "static" / name).read_bytes()
