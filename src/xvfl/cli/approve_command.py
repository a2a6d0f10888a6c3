"""`xvfl approve` and `xvfl ask`: what needs the consent of a party's operator."""

from pathlib import Path
from typing import Annotated

import typer
from rich.table import Table

from xvfl.cli.extras import require_extra
from xvfl.cli.output import print_line, print_table


def approve(
    config: Annotated[Path, typer.Argument(help="The party's configuration.")],
    number: Annotated[
        int | None, typer.Argument(help="The request to decide; without it, list all that wait.")
    ] = None,
    reject: Annotated[bool, typer.Option("--reject", help="Reject the request.")] = False,
) -> None:
    """List what waits for your consent, approve or reject it.

    Requests are also in `xvfl status`. A running `xvfl party` goes on at once with what you
    approve; nothing needs a restart. The log and the trail record who decided, and when.

    xvfl approve bank.toml

    xvfl approve bank.toml 3

    xvfl approve bank.toml 3 --reject
    """
    with require_extra("federated"):
        from xvfl.certs import peer_name
        from xvfl.service.config import load_party_config
        from xvfl.service.party_approvals import decide
        from xvfl.service.state_dir import open_state_dir
        from xvfl.system.user import user_name
        from xvfl.trail.approvals import KINDS, Approvals

    loaded = load_party_config(config)
    folder, log = open_state_dir(loaded, peer_name(loaded.tls.read()[1]), show=False, create=False)
    if number is None:
        waiting = Approvals(folder.path).pending()
        table = Table("number", "request", "reason", "asked", title="waiting for approval")
        for each in waiting:
            table.add_row(str(each.number), KINDS[each.kind], each.reason, each.asked)
        if waiting:
            print_table(table)
        else:
            print_line("nothing waits for approval")
        return
    request = decide(folder, log, number, user_name(), not reject)
    print_line(f"{'rejected' if reject else 'approved'}: {KINDS[request.kind]}")


def ask(
    config: Annotated[Path, typer.Argument(help="The coordinator's configuration.")],
    kind: Annotated[str, typer.Argument(help="new-version, new-upload or new-rows.")],
    party: Annotated[
        list[str] | None, typer.Option(help="A party to ask; may be repeated. Default: all.")
    ] = None,
    reason: Annotated[str, typer.Option(help="What its operator reads.")] = "",
    wait: Annotated[float, typer.Option(help="Seconds to wait for a party.", min=0)] = 60.0,
) -> None:
    """Ask parties for another version or part of their upload, at the coordinator.

    Their operators decide with `xvfl approve`. Train with --retrain afterwards: it waits for
    uploads that are being made.

    xvfl ask coordinator.toml new-rows --party bank --reason "rows of October"
    """
    with require_extra("federated"):
        from xvfl.service.ask_parties import ask_parties
        from xvfl.service.config import load_coordinator_config
        from xvfl.service.state_dir import open_state_dir

    loaded = load_coordinator_config(config)
    _, log = open_state_dir(loaded, "coordinator", show=False, create=False)
    for name in ask_parties(loaded, party or loaded.parties, kind, reason, wait, log):
        print_line(f"asked {name}; its operator decides with: xvfl approve")
