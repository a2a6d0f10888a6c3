"""`xvfl coordinator` and `party`: the processes of a federation."""

from pathlib import Path
from typing import Annotated

import typer

from xvfl.cli.ends import logged_end
from xvfl.cli.extras import require_extra
from xvfl.cli.output import print_error, print_evaluation
from xvfl.errors import InputError, RunError
from xvfl.system.signals import stop_code

CoordinatorFile = Annotated[Path, typer.Argument(help="The coordinator's configuration.")]
PartyFiles = Annotated[
    list[Path],
    typer.Argument(help="The party's configuration; one for each federation.", metavar="CONFIG"),
]
Quiet = Annotated[bool, typer.Option("--quiet", help="Write the log only to its file.")]


Serve = Annotated[
    bool,
    typer.Option(
        "--serve",
        help="Train a head if there is none, then predict, as in `prediction`.",
    ),
]
Again = Annotated[
    bool, typer.Option("--again", help="With --serve: match the ids of the table once more.")
]
Retrain = Annotated[
    bool,
    typer.Option(
        "--retrain", help="Train another head on the stored uploads; no party needs to be online."
    ),
]


def coordinator(
    config: CoordinatorFile, quiet: Quiet = False, serve: Serve = False, retrain: Retrain = False
) -> None:
    """Run the coordinator: match ids, receive the parties' uploads, train, evaluate, release.

    A coordinator that was stopped or killed continues where it was when it is started again.
    Parties may stop once their upload is stored; a release waits for those that are offline.

    xvfl coordinator coordinator.toml

    --retrain trains another head on the stored uploads, with other labels or options; it becomes
    the current head when it is finished. `xvfl heads` lists and chooses heads.

    With --serve it goes on after the first training and answers requests for ids over HTTP, with
    the parties that reply before the deadline.
    """
    with require_extra("federated"):
        from xvfl.service.config import load_coordinator_config
        from xvfl.service.coordinator import serve_coordinator

    loaded = load_coordinator_config(config)
    if serve:
        with require_extra("serve"):
            from xvfl.service.prediction.coordinator_process import serve_predictions
        with logged_end(loaded.state_dir):
            serve_predictions(loaded, not quiet)
        raise typer.Exit(stop_code())
    with logged_end(loaded.state_dir):
        outcome = serve_coordinator(loaded, not quiet, retrain)
    if outcome.evaluation is None:
        print_error(f"stopped; continue with: xvfl coordinator {config}")
        raise typer.Exit(stop_code())
    print_evaluation(f"{loaded.state_dir}, {outcome.step} steps", outcome.evaluation)
    for name, reason in outcome.suspicious.items():
        print_error(f"suspicious upload of {name} ({loaded.on_anomaly}): {reason}")
    if outcome.uninformed:
        names = ", ".join(outcome.uninformed)
        print_error(f"the release waits for {names}; deliver it with: xvfl release {config}")


def party(
    config: PartyFiles,
    quiet: Quiet = False,
    serve: Annotated[
        bool, typer.Option("--serve", help="Only predict: refuse every request of a training.")
    ] = False,
    again: Again = False,
    once: Annotated[
        bool, typer.Option("--once", help="Only train, and exit when the run is finished.")
    ] = False,
) -> None:
    """Run a party: match ids, train its encoder, upload, receive releases, and predict.

    One process does all of it, side by side, and goes on after a run. With `prediction` in CONFIG
    it answers prediction requests for the rows that this section opens, within its budgets. What
    needs your consent is in `xvfl status`; decide with `xvfl approve`.

    A party opens no port, and reconnects when the connection breaks. A party that was stopped or
    killed continues where it was when it is started again. With `training = "interactive"` in
    CONFIG it takes part in interactive training instead.

    With several configurations one process takes part in several federations, each with its own
    connections, log, state folder and status address. One that fails is started again after a
    minute, and the others go on; the exit code is 2 if one had failed when the process was stopped.

    xvfl party bank.toml

    xvfl party churn.toml fraud.toml
    """
    with require_extra("federated"):
        from xvfl.service.config import load_party_config
        from xvfl.service.party import serve_party, serve_party_predictions

    if once and serve:
        raise InputError("--once: expected no --serve: it trains, and exits after the run")
    if again and not serve:
        raise InputError("--again: expected --serve as well; see `xvfl align --again` for training")
    if len(config) > 1:
        if once or serve:
            raise InputError("--once, --serve: expected one configuration")
        return _several(config, quiet)
    loaded = load_party_config(config[0])
    with logged_end(loaded.state_dir):
        if serve:
            stopped = serve_party_predictions(loaded, not quiet, again)
        else:
            stopped = serve_party(loaded, not quiet, once)
    if stopped:
        raise typer.Exit(stop_code())


def _several(configs: list[Path], quiet: bool) -> None:
    from xvfl.service.config import load_party_config
    from xvfl.service.several_federations import serve_several

    failed = serve_several([load_party_config(each) for each in configs], not quiet)
    if failed:
        raise RunError("; ".join(f"{folder}: {reason}" for folder, reason in failed.items()))
    raise typer.Exit(stop_code())
