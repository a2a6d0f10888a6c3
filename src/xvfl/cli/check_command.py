"""`xvfl check`: what a process needs, before it is started."""

import os
import secrets
import shutil
import socket
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from rich.table import Table

from xvfl.cli.extras import require_extra
from xvfl.cli.output import print_table
from xvfl.errors import RunError, XVFLError
from xvfl.system.printable import printable

if TYPE_CHECKING:
    from xvfl.service.config import CoordinatorConfig, PartyProcessConfig
    from xvfl.wire.tls import Tls

WARN_FREE_BYTES = 2**30
"""Free bytes on the disk of a state folder below which a warning is shown."""
TIMEOUT_S = 10.0
OK, WARNING, FAILED = "ok", "warning", "failed"
Found = tuple[str, str, str]
"""What was checked, the result, and details or what to do."""


def check(
    config: Annotated[Path, typer.Argument(help="The coordinator's or a party's configuration.")],
) -> None:
    """Check what a coordinator or party needs before it is started.

    Reads the tables and certificates, opens and closes the ports, asks for the free space of the
    state folder, and lets a party connect to its coordinator, which must be running for that.
    Nothing is matched, trained or sent. The exit code is 2 if a check fails; the ports of a
    process that runs already count as a failure.

    xvfl check bank.toml
    """
    with require_extra("federated"):
        from xvfl.service.config import CoordinatorConfig, load_config

    loaded = load_config(config)
    checks = _coordinator(loaded) if isinstance(loaded, CoordinatorConfig) else _party(loaded)
    found: list[Found] = [("configuration", OK, str(config)), *checks]
    table = Table("check", "result", "details")
    for what, result, text in found:
        table.add_row(what, result, printable(text))
    print_table(table)
    failed = [what for what, result, _ in found if result == FAILED]
    if failed:
        raise RunError(f"{config}: failed: {', '.join(failed)}; see the table")


def _coordinator(config: "CoordinatorConfig") -> Iterator[Found]:
    from xvfl.data.labels import read_labels

    labels, key = config.labels, config.signing_key
    yield _try(
        "labels",
        lambda: _count(
            len(
                read_labels(
                    labels.table,
                    id_column=labels.id_column,
                    column=labels.column,
                    task=labels.task,
                    allow_missing=True,
                )
            )
        ),
    )
    if (prediction := config.prediction) is not None:
        yield _ids("prediction.ids", prediction.ids, prediction.id_column or labels.id_column)
    yield from _certificates(config.tls, config.revocation_list)
    if key is not None:
        yield _try("signing_key", lambda: _read_key(Path(key)))
    yield from _folder(config.state_dir)
    yield _port("listen", config.listen)
    yield from _http_ports(config)


def _party(config: "PartyProcessConfig") -> Iterator[Found]:
    yield _rows("table", config, config.table)
    if config.prediction is not None:
        yield _rows("prediction.table", config, config.prediction.table)
    yield from _certificates(config.tls, config.revocation_list)
    if config.release_key is None:
        text = "not given: a released head is refused; use the coordinator's NAME.release.pub"
        yield "release_key", WARNING, text
    elif not Path(config.release_key).is_file():
        yield "release_key", FAILED, f"{config.release_key}: no such file"
    yield from _folder(config.state_dir)
    yield from _http_ports(config)
    yield _try("coordinator", lambda: _greet(config))


def _certificates(tls: "Tls", revocation_list: str | None) -> Iterator[Found]:
    from xvfl.certs import PeerVerifier, peer_name
    from xvfl.certs.loaded_tls import ADVICE, WARN_DAYS, days_left, read_chain

    def own() -> str | tuple[str, str]:
        files = tls.read()
        name = peer_name(files[1])
        PeerVerifier(tls.ca_certificate, None).check_trusted(files[1], repr(name))
        certificate, authority = days_left(read_chain(tls, files))
        text = f"{name}, {certificate} days left, its authority {authority}"
        advice = [ADVICE["certificate"]] if certificate < WARN_DAYS else []
        advice += [ADVICE["authority"]] if authority < WARN_DAYS else []
        return (WARNING, "; ".join((text, *advice))) if advice else text

    yield _try("certificate", own)
    yield _try("private_key", lambda: _own_key(tls))
    if revocation_list is None:
        yield "revocation_list", WARNING, "not given: revoked certificates are accepted"
    else:
        yield _try("revocation_list", lambda: _lists(tls, revocation_list))


def _lists(tls: "Tls", revocation_list: str) -> str:
    from xvfl.certs import PeerVerifier

    if PeerVerifier(tls.ca_certificate, revocation_list).is_revoked(tls.read()[1]):
        raise RunError("the certificate is revoked; request a new one")
    return "readable, and does not name the certificate"


def _own_key(tls: "Tls") -> str | tuple[str, str]:
    from xvfl.certs import pem_files
    from xvfl.certs.peers import parse_certificate
    from xvfl.system.files import is_open_to_others

    key = pem_files.read(Path(tls.private_key), pem_files.parse_key, "a private key")
    if key.public_key() != parse_certificate(tls.read()[1]).public_key():
        raise RunError(f"{tls.private_key}: does not belong to {tls.certificate}")
    if is_open_to_others(Path(tls.private_key)):
        return WARNING, f"other users can read it; run `chmod 600 {tls.private_key}`"
    return "belongs to the certificate"


def _folder(state_dir: str) -> Iterator[Found]:
    folder = Path(state_dir)
    existing = next(each for each in (folder, *folder.parents) if each.exists())
    if not os.access(existing, os.W_OK | os.X_OK):
        yield "state_dir", FAILED, f"{existing}: not writable by this user"
        return
    free = shutil.disk_usage(existing).free
    text = f"{free / 2**30:.1f} GiB free"
    yield "state_dir", OK if free >= WARN_FREE_BYTES else WARNING, text


def _http_ports(config: "CoordinatorConfig | PartyProcessConfig") -> Iterator[Found]:
    if config.status_address is not None:
        yield _port("status_address", config.status_address)
        tls = config.status_certificate is not None
        yield from _callers("status_tokens", config.status_tokens, config.status_address, tls)
    if config.prediction is not None and config.prediction.address is not None:
        yield _port("prediction.address", config.prediction.address)
        address, tls = config.prediction.address, config.prediction.certificate is not None
        yield from _callers("prediction.tokens", config.prediction.tokens, address, tls)


def _callers(option: str, path: str | None, address: str, tls: bool) -> Iterator[Found]:
    from xvfl.service.addresses import parse_address
    from xvfl.service.port_access import read_tokens
    from xvfl.system.files import is_open_to_others
    from xvfl_serve.http.access import is_loopback

    def read() -> str | tuple[str, str]:
        found = read_tokens(path, option)
        text = "; ".join(f"{each.name}: {', '.join(sorted(each.rights))}" for each in found)
        if is_open_to_others(Path(str(path))):
            return WARNING, f"other users can read it; run `chmod 600 {path}` ({text})"
        if not (tls or is_loopback(parse_address(address, option)[0])):
            return WARNING, f"tokens can be read on the network: set a certificate ({text})"
        return text

    if path is not None:
        yield _try(option, read)


def _port(option: str, address: str) -> Found:
    from xvfl.service.addresses import parse_address

    host, port = parse_address(address, option)
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    try:
        found = socket.getaddrinfo(host, port, family=family if ":" in host else 0)[0]
        socket.create_server(found[4][:2], family=found[0]).close()
    except OSError as error:
        text = f"{address}: cannot listen ({error.strerror or error}); does the process run already"
        return option, FAILED, f"{text}, or is the port in use?"
    return option, OK, f"{address} is free"


def _greet(config: "PartyProcessConfig") -> str | tuple[str, str]:
    """Let the coordinator prove its certificate; nothing else is sent."""
    from xvfl.certs import PeerVerifier
    from xvfl.certs.clocks import clock_warning
    from xvfl.certs.proof import proof_checker
    from xvfl.certs.tls_diagnosis import diagnose_tls
    from xvfl.errors import PartyError
    from xvfl.wire.client import NONCE_BYTES, call_coordinator
    from xvfl.wire.messages import Challenge, Proof

    peers = PeerVerifier(config.tls.ca_certificate, config.revocation_list)
    checker = proof_checker(config.tls, config.coordinator, peers)
    message = Challenge(0, secrets.token_bytes(NONCE_BYTES))
    try:
        reply = call_coordinator(config.coordinator, config.tls, message, TIMEOUT_S, checker)
    except PartyError as error:
        if (why := diagnose_tls(config.coordinator, config.tls)) is not None:
            raise RunError(why) from error
        text = f"{config.coordinator}: no answer; it is not running, or a firewall is in the way"
        return WARNING, text
    if not isinstance(reply, Proof):
        raise RunError(f"{config.coordinator}: {getattr(reply, 'text', reply)}")
    if warning := clock_warning(reply.time - time.time(), "the coordinator's clock", "this one"):
        return WARNING, warning
    return f"{config.coordinator} accepts this certificate and has proved its own"


def _try(what: str, action: Callable[[], str | tuple[str, str]]) -> Found:
    try:
        result = action()
    except (XVFLError, OSError) as error:
        return what, FAILED, str(error)
    return (what, *result) if isinstance(result, tuple) else (what, OK, result)


def _rows(option: str, config: "PartyProcessConfig", table: str) -> Found:
    from xvfl.certs import peer_name
    from xvfl.data.sources import source_ids
    from xvfl.model.workflow import read_source

    try:
        party = peer_name(config.tls.read()[1])
    except XVFLError:
        party = "?"  # the row of the certificate says why
    return _try(
        option, lambda: _count(len(source_ids(read_source(table, config.id_column, party))))
    )


def _ids(option: str, table: str, id_column: str | None) -> Found:
    from xvfl.data.frames import read_frame

    return _try(option, lambda: _count(len(read_frame(table, id_column, "ids"))))


def _count(rows: int) -> str:
    return f"{rows} rows"


def _read_key(path: Path) -> str:
    from xvfl.certs.release_key import read_private_key

    read_private_key(path)
    return "readable"
