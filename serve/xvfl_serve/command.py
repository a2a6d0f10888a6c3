"""The command `xvfl-serve`, also `xvfl serve`."""

import argparse
import gc
import logging
import os
import signal
import sys
from collections.abc import Sequence
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

from xvfl_serve.errors import ServeError
from xvfl_serve.http.access import Access, is_loopback
from xvfl_serve.http.app import Service, log_event
from xvfl_serve.http.callers import Caller, read_callers, watch_callers
from xvfl_serve.http.connections import MAX_CONNECTIONS, port_limits
from xvfl_serve.http.server import HttpServer, listen
from xvfl_serve.http.server_tls import ServerTls, server_tls
from xvfl_serve.http.settings import Settings
from xvfl_serve.printable import PrintableFormatter, printable

TOKEN_VARIABLE = "XVFL_SERVE_TOKEN"
OTHERS = 0o077
"""Permissions of all users but the owner."""
DESCRIPTION = """Serve a bundle over HTTP: POST /predict, the Open Inference Protocol (/v2), and
/metrics and /docs. A bundle that replaces the file is loaded without a failed request; SIGHUP
loads it again. SIGTERM and Ctrl-C finish the requests in progress."""


def main(arguments: Sequence[str] | None = None, program: str = "xvfl-serve") -> None:
    """Run the command."""
    try:
        serve(_parser(program).parse_args(arguments))
    except ServeError as error:
        print(printable(f"error: {' '.join(str(error).split())}"), file=sys.stderr)
        sys.exit(2)


def serve(options: argparse.Namespace) -> None:
    """Load the bundle and serve it until a signal arrives."""
    handler = logging.StreamHandler()
    handler.setFormatter(PrintableFormatter("%(asctime)s %(levelname)s %(message)s"))
    logging.basicConfig(level=logging.INFO, handlers=[handler])
    _warn_readable(options.tokens, options.tls_key)
    callers = watch_callers(options.tokens, _read_callers, log_event)
    _check_exposure(options, callers())
    tls = _tls(options)
    settings = Settings(
        options.bundle,
        options.name or options.bundle.stem,
        options.verify,
        Access(options.host, callers, frozenset(options.allowed_host)),
        options.max_rows,
        options.max_bytes,
        options.max_cells,
        options.max_seconds,
        threads=options.threads,
        release=options.release,
    )
    service = Service(settings, own_version())
    if hasattr(signal, "SIGHUP"):
        signal.signal(signal.SIGHUP, lambda *_: service.slot.request_reload())
    try:
        listener = listen(options.host, options.port)
    except (OSError, OverflowError) as error:
        raise ServeError(
            f"cannot listen on {options.host}:{options.port} ({error}); choose another --host or "
            "--port"
        ) from error
    limits = port_limits(options.max_connections)
    server = HttpServer(service.application(), listener, limits, tls, options.max_seconds + 1)
    url = f"{'https' if options.tls_cert else 'http'}://{options.host}:{server.port}"
    modes = ", ".join(f"{mode} {party}".strip() for mode, party in service.slot.current.outputs)
    text = f"serving {options.bundle} ({modes}) on {url}; documentation: {url}/docs"
    print(printable(text), flush=True)
    # What is loaded by now stays: the garbage collector need not look at it again.
    gc.collect()
    gc.freeze()
    server.run()


def own_version() -> str:
    """Return the version of this distribution."""
    try:
        return version("xvfl-serve")
    except PackageNotFoundError:
        return "0"


def _parser(program: str) -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        program, description=DESCRIPTION, epilog="example: %(prog)s clinic.xvfl --port 8080"
    )
    add = parser.add_argument
    add("bundle", type=Path, help="the file that `xvfl export` wrote")
    add("--host", default="127.0.0.1", help="address to listen on (default: %(default)s)")
    add("--port", type=int, default=8080, help="port, 0 for any (default: %(default)s)")
    add("--name", help="the model's name in /v2 (default: the file's name)")
    add("--verify", type=Path, metavar="KEY", help="public key that must have signed the bundle")
    add(
        "--release",
        type=Path,
        metavar="FILE",
        help="the party's release.json: reject a bundle whose head is revoked or replaced",
    )
    add(
        "--tokens",
        type=Path,
        metavar="FILE",
        help="file of callers, in each line a name, a token and rights, such as `web TOKEN "
        f"look,predict`, or a token alone (or variable {TOKEN_VARIABLE})",
    )
    add("--tls-cert", type=Path, help="certificate of the server (PEM)")
    add("--tls-key", type=Path, help="its private key (PEM)")
    add("--client-ca", type=Path, help="accept only clients with a certificate of this authority")
    add("--insecure", action="store_true", help="allow other machines without token or client CA")
    add(
        "--allowed-host",
        action="append",
        default=[],
        metavar="NAME",
        help="host name that clients without a token may use over plain HTTP besides localhost and "
        "IP addresses; unless --host is a loopback address, names without a dot are allowed too; "
        "may be repeated",
    )
    add(
        "--max-connections",
        type=_positive,
        default=MAX_CONNECTIONS,
        help="at the same time, half of them from one address (default: %(default)s, or a quarter "
        "of `ulimit -n` if that is less)",
    )
    add("--max-rows", type=_positive, default=10_000, help="per request (default: %(default)s)")
    add("--max-bytes", type=_positive, default=16 * 2**20, help="per request (default: 16 MiB)")
    add(
        "--max-cells",
        type=_positive,
        default=2_000_000,
        help="values per request and per answer, about 100 bytes each (default: %(default)s)",
    )
    add("--max-seconds", type=_seconds, default=30.0, help="per request (default: %(default)s)")
    add("--threads", type=_positive, default=1, help="threads of the nets (default: %(default)s)")
    return parser


def _warn_readable(*paths: Path | None) -> None:
    """Warn of files with tokens or keys that other users can read."""
    for path in paths:
        if path is not None and path.is_file() and path.stat().st_mode & OTHERS:
            logging.warning("%s: other users can read it; run `chmod 600 %s`", path, path)


def _read_callers(path: Path | None) -> tuple[Caller, ...]:
    """Return the callers of the file, and the one whose token is in the environment."""
    try:
        callers = () if path is None else read_callers(path, named=False)
    except ServeError as error:
        raise ServeError(f"--tokens: {error}") from error
    token = os.environ.get(TOKEN_VARIABLE)
    if token and token not in {each.token for each in callers}:
        callers = (*callers, Caller(TOKEN_VARIABLE, token))
    return callers


def _check_exposure(options: argparse.Namespace, callers: Sequence[Caller]) -> None:
    """Reject a server that anybody on the network could use, unless it is intended."""
    if not (is_loopback(options.host) or callers or options.client_ca or options.insecure):
        raise ServeError(
            f"--host {options.host}: other machines could predict without a token; give --tokens "
            "or --client-ca, or allow it with --insecure"
        )


def _tls(options: argparse.Namespace) -> ServerTls | None:
    if options.tls_cert is None:
        if options.tls_key or options.client_ca:
            raise ServeError("--tls-key and --client-ca need --tls-cert")
        return None
    for path in (options.tls_cert, options.tls_key, options.client_ca):
        if path is not None and not path.is_file():
            raise ServeError(f"{path}: no such file")
    return server_tls(options.tls_cert, options.tls_key, options.client_ca, log_event)


def _positive(text: str) -> int:
    value = int(text)
    if value < 1:
        raise argparse.ArgumentTypeError(f"expected at least 1, got {value}")
    return value


def _seconds(text: str) -> float:
    value = float(text)
    if not 0 < value < 86_400:
        raise argparse.ArgumentTypeError(f"expected a positive number of seconds, got {text}")
    return value


if __name__ == "__main__":
    main()
