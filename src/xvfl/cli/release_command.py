"""`xvfl release` and `xvfl install`: the head of a finished run, from coordinator to party."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from xvfl.cli.extras import require_extra
from xvfl.cli.output import FINISHED_WITHOUT, print_error, print_line
from xvfl.errors import InputError, unknown

if TYPE_CHECKING:
    from xvfl.service.config import CoordinatorConfig


def release(
    config: Annotated[Path, typer.Argument(help="The coordinator's configuration.")],
    to: Annotated[
        list[str] | None,
        typer.Option(help="A party; may be repeated. Default: those in `release_to`."),
    ] = None,
    revoke: Annotated[
        bool, typer.Option("--revoke", help="Revoke what was released to the parties.")
    ] = False,
    reason: Annotated[str, typer.Option(help="Why; the parties are told.")] = "",
    wait: Annotated[
        float, typer.Option(help="Seconds to wait for the parties; 0: only sign.", min=0)
    ] = 60.0,
) -> None:
    """Release the head of a finished run to parties, or revoke it, at any time after training.

    Signs the head for each party, then listens on the coordinator's address until every party has
    received it or --wait is over. A party receives it while `xvfl party` runs. If a coordinator
    predicts at this address (--serve), it delivers the releases instead. The signed file
    STATE_DIR/releases/PARTY.release may also be sent in another way; the party installs it with
    `xvfl install`.

    A new release replaces the earlier one, and a party never accepts an older one again. After a
    revocation, the party's model is deleted, and it predicts again only after a new release.

    Exit code 3: some parties have not received it yet; run the command again, or hand over the
    file.

    xvfl release coordinator.toml --to bank

    xvfl release coordinator.toml --to bank --revoke --reason "trained on wrong labels"
    """
    with require_extra("federated"):
        from xvfl.service.config import load_coordinator_config
        from xvfl.service.release_delivery import serve_releases, sign_releases
        from xvfl.service.state_dir import open_state_dir
        from xvfl.system.signals import stop_on_signals

    loaded = load_coordinator_config(config)
    parties = _parties(loaded, to)
    if reason and not revoke:
        raise InputError("--reason: expected --revoke as well")
    _, log = open_state_dir(loaded, "coordinator", create=False)
    store = sign_releases(loaded, parties, reason if revoke else None)
    log({"event": "release_signed", "parties": parties, "revoked": reason if revoke else None})
    with stop_on_signals() as stop:
        serve_releases(loaded, store, parties, wait, stop, log)
    records, pending = store.records(), store.pending(parties)
    for name in parties:
        state = f"waiting, in {store.path(name)}" if name in pending else "delivered"
        print_line(f"{name}: {records[name]}, {state}")
    if pending:
        print_error(
            f"not delivered yet: {', '.join(pending)}; run this command again when they are "
            "started, or hand over the files for `xvfl install`"
        )
        raise typer.Exit(FINISHED_WITHOUT)


def install(
    config: Annotated[Path, typer.Argument(help="The party's configuration.")],
    file: Annotated[Path, typer.Argument(help="The file that `xvfl release` wrote.")],
) -> None:
    """Install a release, or a revocation, that arrived as a file.

    Verifies the signature with `release_key` and assembles the party's model from the released head
    and the encoder that it was trained on. A release for another party, for an encoder that the
    party does not have, or older than the installed one is rejected.

    xvfl install bank.toml bank.release
    """
    with require_extra("federated"):
        from xvfl.certs import peer_name
        from xvfl.service.config import load_party_config
        from xvfl.service.party_release import PartyFolder
        from xvfl.service.release_store import read_release
        from xvfl.service.state_dir import open_state_dir

    loaded = load_party_config(config)
    name = peer_name(loaded.tls.read()[1])
    folder, log = open_state_dir(loaded, name, create=False)
    party = PartyFolder(name, loaded, folder)
    manifest = party.install(read_release(file))
    kind = "released" if manifest.get("revoked") is None else "release_revoked"
    log({"event": kind, "number": manifest["number"], "run": manifest["run"]})
    what = f"{manifest['number']} of run {manifest['run']}"
    if manifest.get("revoked") is not None:
        print_line(f"installed revocation {what} ({manifest['revoked']}); the model is deleted")
    else:
        print_line(f"installed release {what}; next: xvfl export {config} --out {name}.xvfl")


def _parties(config: "CoordinatorConfig", given: list[str] | None) -> list[str]:
    parties = list(dict.fromkeys(given or config.release_to))
    if not parties:
        raise InputError("--to: expected a party, since `release_to` is empty")
    for name in parties:
        if name not in config.all_parties:
            raise InputError(f"--to: {unknown('party', name, config.all_parties)}")
    return parties
