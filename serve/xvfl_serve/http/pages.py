"""Read-only pages on a port."""

from collections.abc import Sequence

from xvfl_serve.http.access import Access, LogAccess
from xvfl_serve.http.connections import port_limits
from xvfl_serve.http.routes import PortRoute, application
from xvfl_serve.http.server import HttpServer, listen

MAX_CONNECTIONS = 64


def serve_pages(
    name: str,
    access: Access,
    port: int,
    routes: Sequence[PortRoute],
    log: LogAccess = lambda event: None,
) -> HttpServer:
    """Serve pages in a thread of this name.

    Raises
    ------
    OSError, OverflowError
        It cannot listen on this address.
    """
    app = application(routes, access, log=log)
    return HttpServer(app, listen(access.host, port), port_limits(MAX_CONNECTIONS)).start(name)
