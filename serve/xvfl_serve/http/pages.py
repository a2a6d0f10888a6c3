"""Read-only pages on a port."""

from collections.abc import Sequence

from xvfl_serve.http.access import Access
from xvfl_serve.http.connections import port_limits
from xvfl_serve.http.routes import PortRoute, application
from xvfl_serve.http.server import HttpServer, listen
from xvfl_serve.http.server_tls import ServerTls
from xvfl_serve.http.watched_files import LogEvent

MAX_CONNECTIONS = 64


def serve_pages(
    name: str,
    access: Access,
    port: int,
    routes: Sequence[PortRoute],
    log: LogEvent = lambda event: None,
    tls: ServerTls | None = None,
) -> HttpServer:
    """Serve pages in a thread of this name; without `tls`, over plain HTTP.

    Raises
    ------
    OSError, OverflowError
        It cannot listen on this address.
    """
    app = application(routes, access, log=log)
    limits = port_limits(MAX_CONNECTIONS)
    return HttpServer(app, listen(access.host, port), limits, tls).start(name)
