"""`xvfl secret`: heads that three nodes train and evaluate on secret shares."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from xvfl.cli.extras import require_extra
from xvfl.cli.output import print_error, print_line

if TYPE_CHECKING:
    from xvfl.service.secret_shares.label_holder import LabelHolder

app = typer.Typer(
    help="Train and evaluate a head on secret shares: three nodes compute with SecretFlow's SPU, "
    "and no single one sees an embedding, a label or a prediction.\n\n"
    'All sides set secret = "spu" and name the same three nodes. Ids must have been matched '
    "before with `xvfl align`.",
    no_args_is_help=True,
)
NodeFile = Annotated[Path, typer.Argument(help="The node's configuration.")]
CoordinatorFile = Annotated[Path, typer.Argument(help="The coordinator's configuration.")]
PartyFile = Annotated[Path, typer.Argument(help="The party's configuration.")]
OutFile = Annotated[Path, typer.Option("--out", help="The file to write.")]
OutFolder = Annotated[Path, typer.Option("--out", help="The folder to write the files to.")]


@app.command()
def key(config: NodeFile, out: OutFile) -> None:
    """At a node: write its file, with address, certificate and public key, for all sides.

    The private key stays in the state folder. Every side names the files of the three nodes in its
    configuration, after comparing them with their owners.

    xvfl secret key alpha.toml --out alpha.node
    """
    with require_extra("federated"):
        from xvfl.model.run_dir import RunDir
        from xvfl.service.secret_shares.node import load_node_config
        from xvfl.service.secret_shares.nodes import write_node

    loaded = load_node_config(config)
    write_node(RunDir(loaded.state_dir).create(), loaded.tls, loaded.address, out)
    print_line(f"wrote {out}: give it to all sides, and name it in [secret_options]")


@app.command()
def share(
    config: PartyFile,
    held_out: Annotated[Path, typer.Option(help="The file of `xvfl upload held-out`.")],
    out: OutFolder,
) -> None:
    """At a party: train the encoder if needed, and write shares of the upload, one for each node.

    Each file is signed, and encrypted to its node. Give each node its own file only: two of them
    together reveal the embeddings to who can decrypt both.

    xvfl secret share bank.toml --held-out bank.heldout --out shares
    """
    with require_extra("federated"):
        from xvfl.certs import peer_name
        from xvfl.model.fitting import choose_device
        from xvfl.service.config import load_party_config
        from xvfl.service.party_inputs import PartyInputs
        from xvfl.service.secret_shares.share_upload import share_upload
        from xvfl.service.state_dir import open_state_dir
        from xvfl.service.uploads.upload_party import UploadPartyService
        from xvfl.system.signals import INTERRUPTED, stop_on_signals
        from xvfl.training.threads import limit_threads

    loaded = load_party_config(config)
    name = peer_name(loaded.tls.read()[1])
    folder, log = open_state_dir(loaded, name)
    service = UploadPartyService(PartyInputs.load(name, loaded, folder), log)
    with stop_on_signals() as stop, limit_threads(False, choose_device(loaded.device)):
        try:
            written = share_upload(service, held_out, out, stop)
        finally:
            service.close()
    if written is None:
        print_error("stopped; the same command continues")
        raise typer.Exit(INTERRUPTED)
    agreement, files = written
    print_line(agreement.describe())
    _print_files(files)


@app.command()
def task(config: CoordinatorFile, out: OutFolder) -> None:
    """At the coordinator: write the task and shares of the labels, one file for each node.

    xvfl secret task coordinator.toml --out shares
    """
    holder = _label_holder(config)
    print_line(holder.agreement.describe())
    _print_files(holder.share_labels(out))


@app.command()
def ask(
    config: CoordinatorFile,
    out: OutFolder,
    part: Annotated[
        str, typer.Option(help="Predict the labeled rows of a part: validation or test.")
    ] = "test",
    ids: Annotated[
        Path | None, typer.Option(help="Predict these ids instead: a text file, one in each line.")
    ] = None,
) -> None:
    """At the coordinator: write a request for predictions, one file for each node.

    The nodes see which rows are asked. Their answers are encrypted to this coordinator.

    xvfl secret ask coordinator.toml --part test --out requests
    """
    from xvfl.errors import unknown

    holder = _label_holder(config)
    if part not in (parts := ("training", "validation", "test")):
        raise typer.BadParameter(unknown("part", part, parts))
    lines = None if ids is None else ids.read_text(encoding="utf-8").splitlines()
    rows = holder.rows_of(part) if lines is None else holder.rows_with(lines)
    _print_files(holder.ask(rows, out))


@app.command()
def node(
    config: NodeFile,
    files: Annotated[
        list[Path] | None, typer.Argument(help="Shares and requests for this node.")
    ] = None,
    out: OutFolder = Path("answers"),
) -> None:
    """At a node: open shares and requests, train with the other two nodes, write answers.

    The training starts when the shares of all sides are there, and the other nodes run too. A node
    that was killed is started again; all three continue from their last common checkpoint.

    xvfl secret node alpha.toml *.alpha --out answers
    """
    with require_extra("federated"):
        from xvfl.service.secret_shares.node import SecretNode, load_node_config

    own = SecretNode(load_node_config(config))
    print_line(own.agreement.describe())
    for path in files or ():
        print_line(f"{path}: {own.open(path)}")
    if missing := own.missing:
        print_line(f"shares of {', '.join(missing)} are missing; run this command with their files")
        return
    _print_files(own.run(out))


@app.command()
def result(
    config: CoordinatorFile,
    files: Annotated[list[Path], typer.Argument(help="The answers of the three nodes.")],
    out: OutFile,
) -> None:
    """At the coordinator: combine the answers of the three nodes to predictions.

    xvfl secret result coordinator.toml answers/* --out predictions.csv
    """
    predicted = _label_holder(config).read_answers(files)
    predicted.frame.to_csv(out)
    print_line(f"wrote {out}: {len(predicted.frame)} rows")
    for name, value in predicted.scores.items():
        print_line(f"{name}: {value:.4f}")


def _label_holder(config: Path) -> "LabelHolder":
    with require_extra("federated"):
        from xvfl.service.config import load_coordinator_config
        from xvfl.service.coordinator_service import CoordinatorService
        from xvfl.service.secret_shares.label_holder import LabelHolder

    return LabelHolder(CoordinatorService(load_coordinator_config(config), show=False))


def _print_files(files: list[Path]) -> None:
    for path in files:
        print_line(f"wrote {path}")
