"""`xvfl init`, `train`, `evaluate`, `explain` and `predict`."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from xvfl.cli.extras import require_extra
from xvfl.cli.inspect_command import tables_of_config
from xvfl.cli.output import (
    print_error,
    print_evaluation,
    print_line,
    print_table,
    print_trees,
)
from xvfl.errors import InputError, unknown

if TYPE_CHECKING:
    from xvfl.model.run_dir import RunDir
    from xvfl.model.tree_comparison import TreeComparison
    from xvfl.system.report import Report


Tables = Annotated[
    list[str] | None,
    typer.Argument(help="A party and its table, NAME=TABLE; one for each party.", metavar="TABLES"),
]


def init(
    path: Annotated[Path, typer.Argument(help="The file to write.")] = Path("xvfl.toml"),
    tables: Tables = None,
    id: Annotated[str, typer.Option(help="Name of the id column.")] = "id",
    label: Annotated[str, typer.Option(help="Name of the label column.")] = "label",
    label_party: Annotated[
        str | None,
        typer.Option(help="The party whose table has the label column. Default: the first."),
    ] = None,
    task: Annotated[
        str, typer.Option(help="What the label is: classification or regression (a number).")
    ] = "classification",
    force: Annotated[bool, typer.Option(help="Overwrite an existing file.")] = False,
    party: Annotated[list[str] | None, typer.Option(hidden=True)] = None,
) -> None:
    """Write a configuration file with all options, commented.

    xvfl init run.toml bank=bank.csv shop=shop.parquet --id customer --label churned
    """
    _reject_old("--party", party, "xvfl init FILE NAME=TABLE …")
    from xvfl.cli.template import template
    from xvfl.config import check_task

    parties = name_tables(tables or ["bank=bank.csv", "shop=shop.parquet"])
    if path.exists() and not force:
        raise InputError(f"{path}: already exists; choose another name or use --force")
    if label_party is not None and label_party not in parties:
        raise InputError(f"--label-party: {unknown('party', label_party, parties)}")
    text = template(parties, id, label_party or next(iter(parties)), label, check_task(task))
    try:
        path.write_text(text, encoding="utf-8")
    except OSError as error:
        raise InputError(f"{path}: cannot be written ({error.strerror})") from error
    print(f"wrote {path}; next: xvfl train {path} --out RUN")


def train(
    config: Annotated[Path, typer.Argument(help="A configuration; `xvfl init` writes one.")],
    out: Annotated[Path, typer.Option(help="The run folder to create.")],
    resume: Annotated[bool, typer.Option("--resume", help="Continue an interrupted run.")] = False,
) -> None:
    """Train a model and save it in a run folder.

    xvfl train run.toml --out run

    The folder contains the model (safetensors), the encoder of each party, one record per epoch
    (records.jsonl) and the training curves (curves.png). Ctrl-C saves a checkpoint and stops;
    --resume continues, and ends with the same weights as an uninterrupted run.
    """
    from xvfl.config import read_config
    from xvfl.dataset.inspection import every_problem
    from xvfl.model.progress import epochs_text, overlap_table, progress_bar
    from xvfl.model.report.charts import NO_MATPLOTLIB, has_matplotlib
    from xvfl.model.report.run_plots import plot_training
    from xvfl.model.run_dir import RunDir
    from xvfl.model.workflow import train_run
    from xvfl.system.signals import INTERRUPTED

    text = read_config(config)
    folder = RunDir(out)
    with progress_bar(True, summary=False) as on_progress:
        try:
            result = train_run(
                config,
                text,
                folder,
                resume,
                on_progress,
                lambda overlap: print_table(overlap_table(overlap)),
            )
        except InputError as error:
            tables, ids, options, labels = tables_of_config(config)
            label = labels.column if labels.party else None
            raise every_problem(error, tables, ids, options, label) from error
    if result is None:
        print(f"{out}: already finished; see `xvfl evaluate {out}`")
        return
    if result.interrupted:
        print_error(f"stopped; continue with: xvfl train {config} --out {out} --resume")
        raise typer.Exit(INTERRUPTED)
    records = [each for each in folder.records() if each["kind"] == "epoch"]
    if has_matplotlib():
        plot_training(records, folder / "curves.png", result.model.task.score_name)
    else:
        print_error(NO_MATPLOTLIB)
    if result.model.differential_privacy is not None:
        print(result.model.differential_privacy)
    if result.report is not None:
        print(result.report)
    best = records[result.best_epoch - 1]
    score = f"validation {result.model.task.score_name} {-best['score']:.4f}"
    ended = epochs_text(len(records), result.epochs, best["epoch"], score)
    print(f"{ended}, on {result.rows}; next: xvfl evaluate {out}")


def evaluate(
    run: Annotated[Path, typer.Argument(help="A finished run folder.")],
    compare: Annotated[
        str | None,
        typer.Option(help="`trees`: also fit gradient-boosted trees on the same training rows."),
    ] = None,
) -> None:
    """Evaluate a run on its held-out rows, in every mode.

    `local`: one party alone. `assisted`: one party with missing features, helped by the
    embeddings of other parties. `peers`: only the other parties that hold the full row.
    `collaborative`: all parties together. Writes evaluation.json and evaluation.png into the run
    folder.

    --compare trees fits LightGBM on the run's training rows, with the same validation rows, and
    tests it on the same held-out rows: one party alone, the mean of the parties' logits, and all
    columns pooled in one place, without privacy.

    xvfl evaluate run --compare trees
    """
    from xvfl.model.fit_report import read_report
    from xvfl.model.progress import work_bar
    from xvfl.model.report.charts import NO_MATPLOTLIB, has_matplotlib
    from xvfl.model.report.run_plots import plot_evaluation
    from xvfl.model.run_dir import RunDir
    from xvfl.model.workflow import evaluate_run

    with work_bar("evaluating") as report:
        comparison = None if compare is None else _compare(RunDir(run), compare, report)
        result = evaluate_run(RunDir(run), report) if comparison is None else comparison.evaluation
    print_evaluation(str(run), result)
    if trained := read_report(RunDir(run)):
        print("\n".join(trained.lines))
    if comparison is not None:
        print_trees(str(run), comparison)
    if has_matplotlib():
        trees = () if comparison is None else comparison.lines
        plot_evaluation(result, run / "evaluation.png", trees)
    else:
        print_error(NO_MATPLOTLIB)


def _compare(folder: "RunDir", rival: str, report: "Report") -> "TreeComparison":
    from xvfl.model.tree_comparison import compare_with_trees

    if rival != "trees":
        raise InputError(f"--compare: {unknown('rival', rival, ['trees'])}")
    with require_extra("trees"):
        return compare_with_trees(folder, report)


def explain(
    run: Annotated[Path, typer.Argument(help="A finished run folder.")],
    metric: Annotated[
        str | None,
        typer.Option(
            help="auroc, accuracy or log_loss; for regression r2, squared_error or absolute_error. "
            "Default: AUROC for two classes, accuracy for more, R² for numbers."
        ),
    ] = None,
    shared: Annotated[
        bool, typer.Option("--shared", help="Only rows that every party observes.")
    ] = False,
    id: Annotated[
        list[str] | None,
        typer.Option(help="A row whose completion to describe; repeat for more."),
    ] = None,
    repeats: Annotated[
        int, typer.Option(help="Permutations of each feature; 0: no features.", min=0)
    ] = 5,
    rows: Annotated[
        int, typer.Option(help="Largest number of rows; more are sampled.", min=10)
    ] = 1_500,
    completion: Annotated[
        bool, typer.Option("--completion/--no-completion", help="Show what completion changed.")
    ] = True,
) -> None:
    """Explain a run: what each party and feature is worth, and what completion changed.

    Parties are compared on the same held-out rows, by predictions of the trained model with every
    subset of them: each alone, all without it, and its Shapley value, with 95 % intervals that hold
    jointly for all parties. The importance of a feature is the decrease of the metric when its
    cells are permuted. Writes explanation.html, explanation.json and explanation.png into the run
    folder.

    xvfl explain run
    """
    from xvfl.cli.output import print_explanation
    from xvfl.model.explain.explain_model import ExplainOptions
    from xvfl.model.progress import work_bar
    from xvfl.model.report.charts import NO_MATPLOTLIB, has_matplotlib, save_figure
    from xvfl.model.run_dir import RunDir
    from xvfl.model.workflow import explain_run

    options = ExplainOptions(
        metric,
        "shared" if shared else "all",
        repeats,
        max_rows=rows,
        ids=id or None,
        completion=completion,
    )
    with work_bar("explaining") as report:
        result = explain_run(RunDir(run), options, report)
    print_explanation(str(run), result)
    if has_matplotlib():
        save_figure(result.plot(), run / "explanation.png")
    else:
        print_error(NO_MATPLOTLIB)
    print(f"wrote {run / 'explanation.html'} and {run / 'explanation.json'}")


def _reject_federation(given: str | None) -> None:
    # A callback: the old form has no RUN, whose absence would be the first error.
    _reject_old("--federation", given, "xvfl predict-federation CONFIG --out FILE")


def predict(
    run: Annotated[
        Path,
        typer.Argument(
            help="A finished run folder, or a party's state folder with a released head."
        ),
    ],
    tables: Tables = None,
    out: Annotated[Path | None, typer.Option(help="Output file, .csv or .parquet.")] = None,
    mode: Annotated[
        str | None,
        typer.Option(
            help="local, assisted, collaborative or peers. Default: depends on the given tables."
        ),
    ] = None,
    party: Annotated[
        str | None, typer.Option(help="The party, in local, assisted and peers mode.")
    ] = None,
    id: Annotated[
        str | None, typer.Option(help="Name of the id column, if it differs from training.")
    ] = None,
    strict: Annotated[
        bool,
        typer.Option(
            "--strict", help="Refuse tables without rows, or without a column used in training."
        ),
    ] = False,
    input: Annotated[list[str] | None, typer.Option(hidden=True)] = None,
    output: Annotated[str | None, typer.Option(hidden=True)] = None,
    federation: Annotated[
        str | None, typer.Option(hidden=True, is_eager=True, callback=_reject_federation)
    ] = None,
) -> None:
    """Predict the rows of new tables, with any features missing.

    The output has one line per row: the prediction, calibrated probabilities of classes, the mode
    used, the parties that contributed, the fraction of completed features, and notes (an unseen
    category, a value far outside the training range, a row without any observed feature, columns
    that are not given and count as missing; in assisted mode, a row without a gap, which its party
    decides alone). Parquet files of any size are streamed.

    xvfl predict RUN shop=new.csv --mode local --party shop --out answers.csv
    """
    _reject_old("--input", input, "xvfl predict RUN NAME=TABLE … --out FILE")
    _reject_old("--output", output, "--out")
    if not tables or out is None:
        raise InputError("expected NAME=TABLE for each party, and --out FILE")
    from xvfl.model.progress import work_bar
    from xvfl.model.run_dir import RunDir
    from xvfl.model.workflow import predict_run

    inputs = name_tables(tables)
    with work_bar("predicting") as report:
        summary = predict_run(
            RunDir(run),
            inputs,
            mode,  # type: ignore[arg-type]
            party,
            out,
            id,
            report,
            strict,
        )
    used = ", ".join(f"{count} {name}" for name, count in summary.modes.most_common())
    notes = f"{summary.with_notes} with notes"
    if summary.decided_alone:
        notes = f"{summary.decided_alone} decided alone; {summary.with_notes} with other notes"
    print(f"wrote {summary.rows} rows to {out} ({used}; {notes})")


def predict_federation(
    config: Annotated[
        Path,
        typer.Argument(
            help="The configuration of a coordinator (mode collaborative) or of a party (mode "
            "assisted) that runs with --serve."
        ),
    ],
    out: Annotated[Path, typer.Option(help="Output file, .csv or .parquet.")],
    ids: Annotated[
        str | None, typer.Option(help="A table with the ids. Default: all ids of CONFIG.")
    ] = None,
    id: Annotated[str | None, typer.Option(help="Name of the id column of that table.")] = None,
) -> None:
    """Predict ids with the parties that are online.

    xvfl predict-federation coordinator.toml --ids new.csv --out answers.csv
    """
    with require_extra("federated"):
        from xvfl.cli.predict_client import predict_federated
    from xvfl.model.progress import work_bar

    with work_bar("predicting") as report:
        summary = predict_federated(config, ids, id, out, report)
    used = ", ".join(f"{count} {name}" for name, count in summary.modes.most_common())
    print_line(f"wrote {summary.rows} rows to {out} ({used})")
    for head, count in summary.heads.items():
        print_line(f"{count} rows by {head}")
    if not summary.complete:
        print_error("warning: a budget has refused rows; the same command requests them again")
    for name, reason in summary.unreachable.items():
        print_error(f"warning: {name} did not take part in all answers: {reason}")


def _reject_old(option: str, given: object, new: str) -> None:
    if given:
        raise InputError(f"{option}: replaced in version 0.4; use {new}")


def name_tables(given: list[str]) -> dict[str, str]:
    """Split NAME=TABLE arguments."""
    pairs = {}
    for each in given:
        name, equals, table = each.partition("=")
        if not equals or not name or not table:
            raise InputError(f"tables: expected NAME=TABLE, got {each!r}")
        if name in pairs:
            raise InputError(f"tables: party {name!r} is given twice; give one table per party")
        pairs[name] = table
    return pairs
