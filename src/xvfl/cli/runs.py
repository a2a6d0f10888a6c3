"""`xvfl init`, `train`, `evaluate` and `predict`."""

from pathlib import Path
from typing import Annotated

import typer

from xvfl.cli.exit import INTERRUPTED, say
from xvfl.cli.tables import print_evaluation
from xvfl.errors import InputError, unknown


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
    from xvfl.cli.template import template

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
    from xvfl.model.plots import NO_MATPLOTLIB, has_matplotlib, plot_training
    from xvfl.model.progress import progress_bar
    from xvfl.model.run_dir import RunDir
    from xvfl.model.workflow import train_run

    text = read_config(config)
    folder = RunDir(out)
    with progress_bar("auto") as on_progress:
        result = train_run(config, text, folder, resume, on_progress)
    if result is None:
        print(f"{out}: finished already; see `xvfl evaluate {out}`")
        return
    if result.interrupted:
        say(f"stopped; continue with: xvfl train {config} --out {out} --resume")
        raise typer.Exit(INTERRUPTED)
    records = [each for each in folder.records() if each["kind"] == "epoch"]
    if has_matplotlib():
        plot_training(records, folder / "curves.png")
    else:
        say(NO_MATPLOTLIB)
    best = records[records[-1]["best_epoch"] - 1]
    print(
        f"trained {len(records)} epochs, best: epoch {best['epoch']} "
        f"(validation log-loss {-best['score']:.4f}); next: xvfl evaluate {out}"
    )


def evaluate(run: Annotated[Path, typer.Argument(help="A finished run folder.")]) -> None:
    """Evaluate a run on the rows it held out, in every mode.

    `local`: a party alone. `assisted`: a party that has gaps, with the embeddings of parties that
    hold the row in full; `peers` are those parties without it. `collaborative`: all together.
    Writes evaluation.json and evaluation.png into the run folder.

    xvfl evaluate run
    """
    from xvfl.model.plots import NO_MATPLOTLIB, has_matplotlib, plot_evaluation
    from xvfl.model.run_dir import RunDir
    from xvfl.model.workflow import evaluate_run

    result = evaluate_run(RunDir(run))
    print_evaluation(str(run), result)
    if has_matplotlib():
        plot_evaluation(result, run / "evaluation.png")
    else:
        say(NO_MATPLOTLIB)


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
    from xvfl.model.progress import row_bar
    from xvfl.model.run_dir import RunDir
    from xvfl.model.workflow import predict_run

    inputs = _pairs(input, "--input")
    with row_bar() as progress:
        said = predict_run(RunDir(run), inputs, mode, party, output, id, progress)  # type: ignore[arg-type]
    used = ", ".join(f"{count} {name}" for name, count in said.modes.most_common())
    print(f"wrote {said.rows} rows to {output} ({used}; {said.with_notes} with notes)")


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
