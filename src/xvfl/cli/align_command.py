"""`xvfl align`: match ids before training."""

from contextlib import ExitStack
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from xvfl.cli.ends import logged_end
from xvfl.cli.extras import require_extra

if TYPE_CHECKING:
    from xvfl.service.config import CoordinatorConfig, PartyProcessConfig


def align(
    config: Annotated[
        Path, typer.Argument(help="Configuration of this side, coordinator or party.")
    ],
    party: Annotated[
        list[str] | None,
        typer.Option(
            help="Coordinator only: a party to match with; may be repeated. Default: all."
        ),
    ] = None,
    wait: Annotated[float, typer.Option(help="Seconds to wait for the other side.", min=0)] = 600.0,
    again: Annotated[
        bool,
        typer.Option(
            "--again", help="Party only: match again; the new alignment replaces the old one."
        ),
    ] = False,
) -> None:
    """Match ids privately: find the rows of the label table that each party holds.

    Start it at the coordinator and at every party, in any order. No id and no plain hash of an id
    is sent. Each side learns which of its own ids the other side has, and the other side's total
    number of ids. The coordinator must prove that it has the ids of the rows that it matches. The
    result is saved in STATE_DIR/alignment.json. `xvfl coordinator` also matches ids, if this was
    not done before.

    A party matches its ids once. After a table has changed, match again: the party's operator
    allows it with `xvfl approve` while `xvfl party` runs, else with --again.

    xvfl align coordinator.toml

    xvfl align bank.toml

    xvfl align bank.toml --again
    """
    with require_extra("federated"):
        import xvfl.certs  # noqa: F401
        from xvfl.service.config import CoordinatorConfig, load_config

    loaded = load_config(config)
    if isinstance(loaded, CoordinatorConfig):
        with logged_end(loaded.state_dir):
            _align_coordinator(loaded, party, wait)
    else:
        _align_party(loaded, wait, again)


def _align_coordinator(config: "CoordinatorConfig", names: list[str] | None, wait: float) -> None:
    from xvfl.data.labels import read_labels
    from xvfl.errors import InputError, unknown
    from xvfl.service.align import match_parties
    from xvfl.service.config import ALIGNMENT
    from xvfl.service.coordinator import open_connections
    from xvfl.service.state_dir import open_state_dir

    for name in names or ():
        if name not in config.parties:
            raise InputError(f"--party: {unknown('party', name, config.parties)}")
    given, path = config.labels, Path(config.state_dir) / ALIGNMENT
    labels = read_labels(
        given.table, id_column=given.id_column, column=given.column, task=given.task
    )
    ids, columns = list(labels.index), [given.column]
    _, log = open_state_dir(config, "coordinator")
    with ExitStack() as stack:
        connections, _ = open_connections(config, log, {}, stack)
        transports = {name: connections[name] for name in names or config.parties}
        alignment = match_parties(
            transports, ids, columns, config.matching, path, log, wait, approval_s=wait
        )
    for name in transports:
        match = alignment.matches[name]
        held = int((match.handles >= 0).sum())
        print(f"{name}: holds {held} of {len(labels)} labeled rows; {match.party_ids} rows in all")
    print(f"wrote {path}")


def _align_party(config: "PartyProcessConfig", wait: float, again: bool) -> None:
    from xvfl.certs import peer_name
    from xvfl.data.sources import source_ids
    from xvfl.errors import InputError, PartyError
    from xvfl.matching import load_party_alignment
    from xvfl.model.workflow import read_source
    from xvfl.service.config import ALIGNMENT
    from xvfl.service.matched_table import matching_endpoint
    from xvfl.service.party import connect_party
    from xvfl.service.state_dir import open_state_dir

    path = Path(config.state_dir) / ALIGNMENT
    if path.exists() and not again:
        raise InputError(f"{path}: ids are matched already; add --again to match again")
    name = peer_name(config.tls.read()[1])
    source = read_source(config.table, config.id_column, name)
    n_rows = len(source_ids(source))
    before = path.stat().st_mtime_ns if path.exists() else 0
    _, log = open_state_dir(config, name)
    endpoint = matching_endpoint(source, path, config.matching, log, again)
    connect_party(config, endpoint, log, wait).run()
    if not path.exists() or path.stat().st_mtime_ns == before:
        raise PartyError(f"the coordinator ended without matching: {endpoint.end_reason}")
    match = load_party_alignment(path).match
    print(f"holds {len(match.rows)} of {match.labeled_ids} labeled rows; {n_rows} rows in all")
    print(f"wrote {path}")
