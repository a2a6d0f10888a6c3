"""The command line: `demo`, `init`, `train`, `evaluate`, `predict`, and those in `commands`."""

import sys
import warnings
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.console import Console
from rich.table import Table

from xvfl.commands import align, bench, certs, data, federation
from xvfl.commands import reproduce as figures
from xvfl.errors import DataWarning, InputError, XVFLError, unknown
from xvfl.version import VERSION

app = typer.Typer(
    help="Vertical federated learning for parties whose rows and columns only partly overlap.\n\n"
    "Start with `xvfl demo`, then `xvfl init` writes a configuration for your own tables.",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    rich_markup_mode="rich",
)
app.add_typer(data.app, name="data")
app.add_typer(certs.app, name="certs")
for _command in (
    figures.reproduce,
    bench.bench,
    align.align,
    federation.coordinator,
    federation.party,
    federation.status,
):
    app.command()(_command)
INTERRUPTED = 130


def main() -> None:
    """Run a command; what is wrong with the input is one line and exit code 2."""
    warnings.showwarning = _warn
    warnings.simplefilter("always", DataWarning)
    try:
        app()
    except XVFLError as error:
        _say(f"error: {' '.join(str(error).split())}")
        sys.exit(2)
    except KeyboardInterrupt:
        _say("interrupted")
        sys.exit(INTERRUPTED)


def _say(text: str) -> None:
    print(text, file=sys.stderr)


def _warn(message: Warning | str, *rest: Any, **more: Any) -> None:
    _say(f"warning: {message}")


def _version(wanted: bool) -> None:
    if wanted:
        print(f"xvfl {VERSION}")
        raise typer.Exit


@app.callback()
def _root(
    version: Annotated[
        bool, typer.Option("--version", help="Print the version.", callback=_version, is_eager=True)
    ] = False,
) -> None:
    pass


@app.command()
def demo(
    out: Annotated[Path, typer.Option(help="Folder for report.html and metrics.json.")] = Path(
        "out/demo"
    ),
    seeds: Annotated[int, typer.Option(help="Repeat with this many seeds.", min=1)] = 1,
    first_seed: Annotated[int, typer.Option(help="The first of them.", min=0)] = 0,
    rates: Annotated[
        str, typer.Option(help="Missing rates, separated by commas.")
    ] = "0,0.3,0.5,0.7,0.9",
    workers: Annotated[
        int, typer.Option(help="Processes side by side; 0 = one a core.", min=0)
    ] = 0,
    federated: Annotated[
        bool,
        typer.Option(
            "--federated",
            help="Coordinator and parties as processes of their own; one is killed on the way.",
        ),
    ] = False,
) -> None:
    """Two parties, real data, two minutes: what predicting alone costs and completion gives back.

    Each party sees one half of scanned digits (scikit-learn's own copy); most rows miss features
    at one of them. Trains X-VFL, the paper's loss alone, a standalone model and random-mask
    training, and compares the three ways to predict over missing rates.

    With several seeds it also prints paired differences: `xvfl demo --seeds 5 --rates 0.5,0.9`.
    """
    if federated:
        from xvfl.commands.federation import demo_federated

        demo_federated(out if out != Path("out/demo") else Path("out/federated"))
        return
    from xvfl.experiments.demo import run_demo

    values = tuple(_rate(each) for each in rates.split(","))
    run_demo(out, seeds, first_seed, values, workers, Console())


def _rate(text: str) -> float:
    try:
        value = float(text)
    except ValueError:
        value = -1.0
    if not 0 <= value <= 1:
        raise InputError(f"--rates: expected numbers from 0 to 1 separated by commas, got {text!r}")
    return value


@app.command()
def init(
    path: Annotated[Path, typer.Argument(help="The file to write.")] = Path("xvfl.toml"),
    party: Annotated[
        list[str] | None, typer.Option(help="A party and its table, NAME=TABLE; repeat.")
    ] = None,
    id: Annotated[str, typer.Option(help="The id column.")] = "id",
    label: Annotated[str, typer.Option(help="The label column.")] = "label",
    label_party: Annotated[
        str | None, typer.Option(help="The party that holds it; by default the first.")
    ] = None,
    force: Annotated[bool, typer.Option(help="Overwrite the file.")] = False,
) -> None:
    """Write a commented configuration to start from.

    xvfl init run.toml --party bank=bank.csv --party shop=shop.parquet --id customer --label churned
    """
    from xvfl.template import template

    parties = _pairs(party or ["bank=bank.csv", "shop=shop.parquet"], "--party")
    if path.exists() and not force:
        raise InputError(f"{path}: exists already; choose another name or use --force")
    if label_party is not None and label_party not in parties:
        raise InputError(f"--label-party: {unknown('party', label_party, parties)}")
    text = template(parties, id, label_party or next(iter(parties)), label)
    try:
        path.write_text(text, encoding="utf-8")
    except OSError as error:
        raise InputError(f"{path}: cannot be written ({error.strerror})") from error
    print(f"wrote {path}; next: xvfl train {path} --out RUN")


@app.command()
def train(
    config: Annotated[Path, typer.Argument(help="A configuration; `xvfl init` writes one.")],
    out: Annotated[Path, typer.Option(help="The run folder to make.")],
    resume: Annotated[bool, typer.Option("--resume", help="Continue a run cut short.")] = False,
) -> None:
    """Train from a configuration into a run folder.

    xvfl train run.toml --out run

    Ctrl-C stops between two steps and keeps a checkpoint; --resume continues to the very same
    weights. The folder then holds the model (safetensors), each party's encoder, the records of
    every epoch (records.jsonl) and their picture (curves.png).
    """
    from xvfl.config import read_config
    from xvfl.pictures import curves
    from xvfl.progress import progress_bar
    from xvfl.runs import Folder
    from xvfl.workflow import train_run

    text = read_config(config)
    folder = Folder(out)
    with progress_bar("auto") as show:
        fitted = train_run(config, text, folder, resume, show)
    if fitted is None:
        print(f"{out}: finished already; see `xvfl evaluate {out}`")
        return
    if fitted.interrupted:
        _say(f"stopped; continue with: xvfl train {config} --out {out} --resume")
        raise typer.Exit(INTERRUPTED)
    records = [each for each in folder.records() if each["kind"] == "epoch"]
    curves(records, folder / "curves.png")
    best = records[records[-1]["best_epoch"] - 1]
    print(
        f"trained {len(records)} epochs, best: epoch {best['epoch']} "
        f"(validation log-loss {-best['score']:.4f}); next: xvfl evaluate {out}"
    )


@app.command()
def evaluate(run: Annotated[Path, typer.Argument(help="A finished run folder.")]) -> None:
    """Evaluate a run on the rows it held out, in every mode.

    `local`: a party alone. `assisted`: a party that has gaps, with the embeddings of parties that
    hold the row in full; `peers` are those parties without it. `collaborative`: all together.
    Writes evaluation.json and evaluation.png into the run folder.

    xvfl evaluate run
    """
    from xvfl.pictures import modes
    from xvfl.runs import Folder
    from xvfl.workflow import evaluate_run

    result = evaluate_run(Folder(run))
    table = Table(title=f"{run}: {result.rows_are} rows; majority class {result.majority:.3f}")
    for name in (
        "mode",
        "party",
        "rows",
        "accuracy",
        "balanced",
        "AUROC",
        "NLL",
        "ECE",
        "bytes/row",
    ):
        table.add_column(name, justify="left" if name in ("mode", "party") else "right")
    for line in result.lines:
        figures = [f"{value:.3f}" for value in line.metrics.values()]
        table.add_row(line.mode, line.party, str(line.rows), *figures, f"{line.bytes_per_row:.0f}")
    Console(width=None if sys.stdout.isatty() else 110).print(table)
    modes(result, run / "evaluation.png")


@app.command()
def predict(
    run: Annotated[Path, typer.Argument(help="A finished run folder.")],
    input: Annotated[list[str], typer.Option(help="A party's table, NAME=TABLE; repeat.")],
    output: Annotated[Path, typer.Option(help="A .csv or .parquet file to write.")],
    mode: Annotated[
        str | None,
        typer.Option(help="local, assisted or collaborative; by default what the tables allow."),
    ] = None,
    party: Annotated[
        str | None, typer.Option(help="Who predicts, in local and assisted mode.")
    ] = None,
    id: Annotated[
        str | None, typer.Option(help="The id column, where it differs from training.")
    ] = None,
) -> None:
    """Predict rows of new tables, with anything missing.

    Every row answers with its prediction and calibrated probabilities, the mode used, the parties
    that contributed, the share of features completed, and notes: a category never seen, a value
    far outside the training range, a row observed nowhere. Parquet files are read and answered in a
    stream, whatever their size.

    xvfl predict RUN --mode local --party shop --input shop=new.csv --output answers.csv
    """
    from xvfl.progress import row_bar
    from xvfl.runs import Folder
    from xvfl.workflow import predict_run

    inputs = _pairs(input, "--input")
    with row_bar() as progress:
        said = predict_run(Folder(run), inputs, mode, party, output, id, progress)  # type: ignore[arg-type]
    used = ", ".join(f"{count} {name}" for name, count in said.modes.most_common())
    print(f"wrote {said.rows} rows to {output} ({used}; {said.flagged} with notes)")


def _pairs(given: list[str], option: str) -> dict[str, str]:
    pairs = {}
    for each in given:
        name, equals, table = each.partition("=")
        if not equals or not name or not table:
            raise InputError(f"{option}: expected NAME=TABLE, got {each!r}")
        if name in pairs:
            raise InputError(f"{option}: party {name!r} is given twice; keep one table of it")
        pairs[name] = table
    return pairs
