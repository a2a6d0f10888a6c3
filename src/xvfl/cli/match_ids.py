"""`xvfl align`: match ids with the other sides before training."""

import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from xvfl.cli.extras import extra

if TYPE_CHECKING:
    from xvfl.service.config import CoordinatorConfig, PartyProcessConfig


def align(
    config: Annotated[Path, typer.Argument(help="This side's own configuration.")],
    party: Annotated[
        list[str] | None,
        typer.Option(help="At the coordinator: match with these alone; repeat. By default all."),
    ] = None,
    wait: Annotated[
        float, typer.Option(help="Seconds to wait for the other sides.", min=0)
    ] = 600.0,
) -> None:
    """Match ids privately: which labelled rows does each party hold?

    Every side starts it, in any order. No id and no plain hash of one is sent; each side learns
    which of its own ids the other has, and how many it has in all. What is found is kept in
    STATE/alignment.json; a table that changes afterwards must be matched again.

    xvfl align coordinator.toml

    xvfl align bank.toml
    """
    with extra("federated"):
        import xvfl.certs  # noqa: F401
        from xvfl.service.config import CoordinatorConfig, read_service_config

    side = read_service_config(config)
    if isinstance(side, CoordinatorConfig):
        _ask(side, party, wait)
    else:
        _answer(side, wait)


def _ask(side: "CoordinatorConfig", wanted: list[str] | None, wait: float) -> None:
    from xvfl.data.labels import read_labels
    from xvfl.errors import InputError, unknown
    from xvfl.service.align import ask_parties
    from xvfl.service.config import ALIGNMENT
    from xvfl.service.listener import listening

    for name in wanted or ():
        if name not in side.parties:
            raise InputError(f"--party: {unknown('party', name, side.parties)}")
    labels = read_labels(
        side.labels.table,
        id_column=side.labels.id_column,
        column=side.labels.column,
        where="labels",
    )
    path = Path(side.state_dir) / ALIGNMENT
    with listening(side, _say) as listener:
        lines = {name: listener.lines[name] for name in wanted or side.parties}
        found = ask_parties(
            lines, list(labels.index), [side.labels.column], side.matching, path, _say, wait
        )
    for name in lines:
        match = found.matches[name]
        held = int((match.handles >= 0).sum())
        print(f"{name} holds {held} of {len(labels)} labelled rows, and {match.party_ids} in all")
    print(f"wrote {path}")


def _answer(side: "PartyProcessConfig", wait: float) -> None:
    from xvfl.certs import peer_name
    from xvfl.data.sources import source_columns, source_ids
    from xvfl.errors import PartyError
    from xvfl.matching import load_party_alignment
    from xvfl.model.workflow import read_source
    from xvfl.service.align import answering
    from xvfl.service.config import ALIGNMENT
    from xvfl.wire.client import PartyClient

    name = peer_name(side.tls.read()[1])
    source = read_source(side.table, side.id_column, name)
    path = Path(side.state_dir) / ALIGNMENT
    before = path.stat().st_mtime_ns if path.exists() else 0
    ids = source_ids(source)
    end = answering(name, ids, source_columns(source), side.matching, path, _say)
    over = lambda: end.over is not None  # noqa: E731
    hello = lambda: end.hello  # noqa: E731
    PartyClient(side.coordinator, side.tls, hello, end.handle, over, _say, give_up_s=wait).run()
    if not path.exists() or path.stat().st_mtime_ns == before:
        raise PartyError(f"the coordinator ended without matching: {end.over}")
    match = load_party_alignment(path).match
    print(f"holds {len(match.rows)} of {match.labeled_ids} labelled rows, and {len(ids)} in all")
    print(f"wrote {path}")


def _say(event: dict[str, Any]) -> None:
    print("  ".join(f"{key}={value}" for key, value in event.items()), file=sys.stderr)
