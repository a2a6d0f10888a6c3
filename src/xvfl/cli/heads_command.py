"""`xvfl heads` and `xvfl rollback`: list a coordinator's heads, choose one, retire one."""

import json
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.table import Table

from xvfl.cli.extras import require_extra
from xvfl.cli.output import print_evaluation, print_line, print_table
from xvfl.errors import InputError

app = typer.Typer(
    help="List a coordinator's heads, choose the one that predicts, retire those that are not "
    "needed.\n\nEach training makes a head with a number of its own. None of these commands "
    "interrupts a coordinator that predicts.",
    no_args_is_help=True,
)
CoordinatorFile = Annotated[Path, typer.Argument(help="The coordinator's configuration.")]
Number = Annotated[int, typer.Argument(help="Number of the head.", min=1)]
Json = Annotated[bool, typer.Option("--json", help="Print JSON.")]
Anyway = Annotated[
    bool,
    typer.Option(
        "--anyway",
        help="Also if it was trained on uploads that were withdrawn, expired or suspended.",
    ),
]
SHOWN = {
    "run": "run",
    "state": "state",
    "digest": "digest",
    "method": "method",
    "label": "label",
    "started": "training started",
    "ended": "training ended",
    "ended_as": "ended because",
    "epoch": "epochs",
    "left_out": "trained without",
    "suspicious": "suspicious uploads",
    "retired": "retired",
    "retired_by": "retired by",
}
"""What `show` prints of a head, and its names."""


@app.command("list")
def list_command(config: CoordinatorFile, as_json: Json = False) -> None:
    """List all heads: state, end of training, digest, validation, encoders, problems.

    A head is current, earlier (was current before), taken back, in training, aborted (its training
    was stopped, failed or killed), or retired. `encoders` are the version and part of the upload of
    each party that it was trained on.

    xvfl heads list coordinator.toml
    """
    with require_extra("federated"):
        from xvfl.model.registry import list_heads
        from xvfl.service.config import load_coordinator_config

    folder = Path(load_coordinator_config(config).state_dir)
    heads = list_heads(folder)
    if as_json:
        print(json.dumps(heads))
        return
    table = Table(title=f"heads in {folder}")
    for column in ("head", "state", "ended (UTC)", "digest", "validation", "encoders", "usable"):
        table.add_column(column, overflow="fold")
    for each in heads:
        usable = "; ".join(each["problems"]) or ("yes" if _is_finished(each) else _why_not(each))
        ended = each["ended"][:16].replace("T", " ")
        cells = (ended, each["digest"][:8], validation_text(each), _pairs(each["encoders"]))
        table.add_row(str(each["number"]), each["state"], *cells, usable)
    print_table(table)


@app.command()
def show(config: CoordinatorFile, number: Number, as_json: Json = False) -> None:
    """Show one head: its training, evaluation, uploads and releases, and what stops its use.

    xvfl heads show coordinator.toml 2
    """
    with require_extra("federated"):
        from xvfl.model.evaluation import Evaluation
        from xvfl.model.registry import describe_head, head_numbers
        from xvfl.model.run_dir import EVALUATION, RunDir
        from xvfl.service.config import load_coordinator_config

    folder = RunDir(load_coordinator_config(config).state_dir)
    _check_number(number, head_numbers(folder.path))
    head, path = describe_head(folder.path, number), RunDir(folder / f"heads/{number}")
    evaluation = path.read_json(EVALUATION) if path.has(EVALUATION) else None
    if as_json:
        print(json.dumps({**head, "evaluation": evaluation}))
        return
    table = Table("", "", title=f"head {number}", show_header=False)
    for key, label in SHOWN.items():
        if head[key]:
            table.add_row(label, _text(head[key]))
    table.add_row("validation", validation_text(head))
    for name, version in head["encoders"].items():
        table.add_row(f"upload of {name}", f"version {version}, digest {head['uploads'][name]}")
    if head["released_to"]:
        table.add_row("released to", _pairs(head["released_to"]))
    usable = "yes" if _is_finished(head) and not head["problems"] else _why_not(head)
    table.add_row("usable", "; ".join(head["problems"]) or usable)
    print_table(table)
    if evaluation is not None:
        print_evaluation(f"head {number}", Evaluation.from_dict(evaluation))


@app.command()
def use(config: CoordinatorFile, number: Number, anyway: Anyway = False) -> None:
    """Use a finished head from now on, and sign it for the parties that have the current one.

    A coordinator with --serve that is running changes to it within a second, and delivers it to
    the parties; without one, deliver it with `xvfl release`. Heads that were in use after it are
    taken back: `xvfl rollback` does not return to them, `xvfl heads use` does.

    A head that was trained on rows that were withdrawn since, or on the upload of a revoked party,
    is refused.

    xvfl heads use coordinator.toml 2
    """
    _use(config, number, anyway)


@app.command()
def retire(
    config: CoordinatorFile,
    number: Number,
    yes: Annotated[bool, typer.Option("--yes", help="Do not ask.")] = False,
) -> None:
    """Delete the parameters of a head that is not the current one. This cannot be undone.

    Its record stays in the list: state, time, digest, evaluation, encoders. Of a head whose
    training was aborted, nothing stays but its number. Releases that parties have are not
    revoked (`xvfl release --revoke`).

    xvfl heads retire coordinator.toml 1
    """
    with require_extra("federated"):
        from xvfl.model.registry import describe_head, head_numbers
        from xvfl.service.config import load_coordinator_config
        from xvfl.service.head_store import HeadStore
        from xvfl.service.state_dir import open_state_dir
        from xvfl.system.user import user_name

    loaded = load_coordinator_config(config)
    folder, log = open_state_dir(loaded, "coordinator", show=False, create=False)
    _check_number(number, head_numbers(folder.path))
    head, by = describe_head(folder.path, number), user_name()
    if not yes:
        if not sys.stdin.isatty():
            raise InputError("--yes: expected it, because there is no terminal to ask at")
        if not typer.confirm(f"Delete the parameters of head {number} ({head['state']})?"):
            print_line("nothing is deleted")
            return
    HeadStore(folder).retire(number, by)
    event = {"event": "head_retired", "head": number, "run": head["run"], "digest": head["digest"]}
    log({**event, "was": head["state"], "by": by})
    print_line(f"head {number} is retired; its parameters are deleted")


def rollback(config: CoordinatorFile, anyway: Anyway = False) -> None:
    """Return to the coordinator's previous head, and sign it for the parties that hold this one.

    Short for `xvfl heads use` with the number of the head that was in use before. A second
    rollback returns to the head before; --retrain trains another one.

    A head that was trained on rows that were withdrawn since, or on the upload of a revoked party,
    is refused.

    xvfl rollback coordinator.toml
    """
    _use(config, None, anyway)


def _use(path: Path, number: int | None, anyway: bool) -> None:
    """Use a head, by default the previous one, and log who did so."""
    with require_extra("federated"):
        from xvfl.model.registry import describe_head
        from xvfl.service.config import load_coordinator_config
        from xvfl.service.head_store import HeadStore
        from xvfl.service.release_delivery import use_head
        from xvfl.service.state_dir import open_state_dir
        from xvfl.system.user import user_name

    config = load_coordinator_config(path)
    folder, log = open_state_dir(config, "coordinator", show=False, create=False)
    before = HeadStore(folder).current
    if number is not None and before.path == folder / f"heads/{number}":
        print_line(f"head {number} is the current one already")
        return
    head = use_head(config, number, anyway)
    about = describe_head(folder.path, int(head.path.name))
    signed = [name for name, state in about["released_to"].items() if state == "waiting"]
    log(
        {
            "event": "head_used",
            "head": about["number"],
            **{name: about[name] for name in ("run", "digest", "encoders", "problems")},
            "before": before.path.name,
            "signed_for": signed,
            "by": user_name(),
        }
    )
    print_line(f"head {head.path.name} is the current one")
    if signed:
        names = ", ".join(signed)
        print_line(f"signed for {names}: --serve delivers it, or `xvfl release {path}`")


def _check_number(number: int, known: list[int]) -> None:
    if number not in known:
        listed = ", ".join(map(str, reversed(known))) or "none"
        raise InputError(f"NUMBER: expected a head among {listed}, got {number}")


def _is_finished(head: Mapping[str, Any]) -> bool:
    from xvfl.model.registry import FINISHED_STATES

    return head["state"] in FINISHED_STATES


def _why_not(head: Mapping[str, Any]) -> str:
    """Tell why a head that is not finished, or retired, cannot be used."""
    if head["state"] == "retired":
        return f"no: retired {head['retired'][:10]} by {head['retired_by']}"
    if head["state"] == "aborted":
        return f"no: {head['ended_as']}; `xvfl coordinator` continues its training"
    return f"no: {head['progress']:.0%} trained"


def validation_text(head: Mapping[str, Any]) -> str:
    """Write the best validation score of a head as a loss, with its name."""
    if head["best_score"] is None:
        return "–"
    return f"{-head['best_score']:.4g} {head['score_name']}".strip()


def _pairs(values: Mapping[str, Any]) -> str:
    return ", ".join(f"{name} {each}" for name, each in values.items()) or "–"


def _text(value: object) -> str:
    if isinstance(value, Mapping):
        return _pairs(value)
    return ", ".join(map(str, value)) if isinstance(value, list) else str(value)
