"""`xvfl withdraw`: a party has its rows, a version or everything deleted at the coordinator."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from xvfl.cli.extras import require_extra
from xvfl.cli.output import print_error, print_line
from xvfl.errors import InputError

if TYPE_CHECKING:
    from xvfl.service.config import PartyProcessConfig
    from xvfl.wire.messages import Withdraw


def withdraw(
    config: Annotated[Path, typer.Argument(help="The party's configuration.")],
    ids: Annotated[
        Path | None, typer.Option(help="Withdraw rows: a text file with one id per line.")
    ] = None,
    version: Annotated[int | None, typer.Option(help="Withdraw a version of the upload.")] = None,
    everything: Annotated[
        bool, typer.Option("--all", help="Withdraw all that was uploaded so far.")
    ] = False,
    out: Annotated[
        Path | None,
        typer.Option(help="Write a signed file for `xvfl upload import`; send nothing."),
    ] = None,
    receipt: Annotated[
        Path | None, typer.Option(help="Store the receipt that arrived as a file.")
    ] = None,
) -> None:
    """Delete uploaded rows, a version, or everything at the coordinator.

    The coordinator must be running: `xvfl coordinator`, with or without --serve. It overwrites the
    rows with zeros and from then on uses them neither in training nor in prediction. It returns a
    signed receipt, which lists the heads that were trained on them and is stored in
    STATE_DIR/receipts. Withdraw rows before you delete them from the table. If there is no reply,
    run the same command again.

    A withdrawal binds an honest coordinator only. Heads that are trained already stay as they are.

    xvfl withdraw bank.toml --ids leaving.txt

    xvfl withdraw bank.toml --all
    """
    with require_extra("federated"):
        from xvfl.certs import peer_name
        from xvfl.service.config import load_party_config
        from xvfl.service.party_inputs import PartyInputs
        from xvfl.service.state_dir import open_state_dir
        from xvfl.service.uploads.file_exchange import export_withdrawal
        from xvfl.service.uploads.party_withdrawal import (
            read_receipt,
            record_withdrawal,
            store_receipt,
            withdraw_rows,
            withdraw_version,
        )

    if [ids, version, receipt, everything or None].count(None) != 3:
        raise InputError("expected one of --ids, --version, --all and --receipt")
    loaded = load_party_config(config)
    name = peer_name(loaded.tls.read()[1])
    folder, log = open_state_dir(loaded, name, show=False, create=False)
    key = loaded.release_key
    if receipt is not None:
        _print_receipt(store_receipt(folder, name, read_receipt(receipt), key), key)
        return
    if ids is not None:
        message = withdraw_rows(PartyInputs.load(name, loaded, folder), _read_ids(ids))
        n_rows = 0 if message is None else len(message.handles)
        print_line(f"withdrawn so far: {n_rows} of the rows that were matched in training")
        if message is None:
            print_line("the coordinator has none of them; this party refuses them in predictions")
    else:
        message = withdraw_version(folder, version)
        record_withdrawal(folder, message)
    if message is None:
        return
    log({"event": "withdrawal", "version": message.version, "rows": len(message.handles)})
    if out is None:
        _send(loaded, name, message, key)
        return
    export_withdrawal(loaded, message, out)
    print_line(f"wrote {out}; next, at the coordinator: xvfl upload import coordinator.toml {out}")


def _read_ids(path: Path) -> list[str]:
    try:
        lines = path.read_text(encoding="utf-8-sig").splitlines()
    except (OSError, ValueError) as error:
        raise InputError(f"{path}: expected a text file with one id per line ({error})") from error
    return [line for line in lines if line.strip()]


def _send(config: "PartyProcessConfig", name: str, message: "Withdraw", key: str | None) -> None:
    from xvfl.model.run_dir import RunDir
    from xvfl.service.uploads.party_withdrawal import (
        send_withdrawal,
        split_request,
        store_receipt,
    )
    from xvfl.service.uploads.withdrawn import request_digest

    for part in split_request(message):
        reply, digest = send_withdrawal(config, part), request_digest(part)
        _print_receipt(store_receipt(RunDir(config.state_dir), name, reply, key, digest), key)


def _print_receipt(statement: dict[str, Any], key: str | None) -> None:
    what = f"{statement['rows']} rows" if statement["rows"] else f"version {statement['version']}"
    if statement["everything"]:
        what += " and all before it"
    print_line(f"the coordinator deleted {what} at {statement['time']}; the receipt is stored")
    for run in statement["runs"]:
        print_line(f"the head of run {run} was trained on it; retrain to replace it")
    if key is None:
        print_error("warning: the receipt is not verified; set `release_key` to do so")
