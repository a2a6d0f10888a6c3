"""`xvfl inspect`: how tables are read, and what may be wrong."""

import json
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from rich.table import Table

from xvfl.cli.output import print_table
from xvfl.errors import InputError, unknown

if TYPE_CHECKING:
    import pandas as pd

    from xvfl.config import LabelsConfig, TableOptions
    from xvfl.dataset.inspection import Inspection


def inspect(
    tables: Annotated[
        list[str],
        typer.Argument(
            help="Tables, FILE or NAME=FILE, or a configuration file (.toml) with its tables."
        ),
    ],
    id: Annotated[str | None, typer.Option(help="Name of the id column.")] = None,
    label: Annotated[
        str | None,
        typer.Option(
            help="Name of the label column; finds columns that repeat it, in all tables with --id."
        ),
    ] = None,
    task: Annotated[
        str, typer.Option(help="What the label is: classification or regression (a number).")
    ] = "classification",
    kind: Annotated[
        list[str] | None,
        typer.Option(
            help="Kind of a column, COLUMN=KIND or NAME.COLUMN=KIND: number, category, date, "
            "duration or identifier; may be repeated."
        ),
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False,
    page: Annotated[
        Path | None, typer.Option(help="Also write the report to this HTML file.")
    ] = None,
) -> None:
    """Show how the columns of tables are read, and what may be wrong with them.

    For each column: its kind, the share of missing cells, the number of distinct values, its
    encoding and two values. With --id and several tables: how their rows overlap. Then all errors
    and warnings of all tables, such as probable codes of missing values, columns that nearly tell
    the label, numbers that are codes, and ids that differ only in spelling. Errors exit with
    code 2.

    To correct a kind, use `kinds` in the table options of the configuration:
    [parties.bank.options.kinds] zip = "category"

    xvfl inspect bank.csv shop.parquet --id customer --label churned

    xvfl inspect run.toml
    """
    from xvfl.config import check_task
    from xvfl.dataset.inspection import inspect_tables

    values = None
    if len(tables) == 1 and tables[0].endswith(".toml"):
        path = Path(tables[0])
        sources, ids, options, labels = tables_of_config(path)
        if labels.party is None and label is None:
            values = _label_column(labels, path.resolve().parent)
        label = label or (labels.column if labels.party else None)
        task = labels.task
    else:
        sources = _named(tables)
        ids = dict.fromkeys(sources, id)
        options = {}
    options = _with_kinds(options, kind or [], sources)
    found = inspect_tables(sources, ids, label, options, check_task(task), values)
    if page is not None:
        from xvfl.model.report.inspection_page import inspection_page

        try:
            page.write_text(inspection_page(found), encoding="utf-8")
        except OSError as error:
            raise InputError(f"{page}: cannot be written ({error.strerror})") from error
    if as_json:
        print(json.dumps(found.to_dict(), ensure_ascii=False))
    else:
        _print(found)
    if found.errors:
        raise InputError(*found.errors)


def _named(tables: list[str]) -> dict[str, str]:
    named: dict[str, str] = {}
    for each in tables:
        name, equals, table = each.partition("=")
        if not equals or each.startswith("sql:"):
            name, table = Path(each).name.partition(".")[0], each
        if name in named:
            raise InputError(f"two tables are named {name!r}; write NAME=FILE")
        named[name] = table
    return named


def tables_of_config(
    path: Path,
) -> tuple[dict[str, str], dict[str, str | None], dict[str, "TableOptions"], "LabelsConfig"]:
    """Return tables, id columns, options and labels of a configuration."""
    from xvfl.config import parse_config, read_config

    config = parse_config(read_config(path), str(path))
    base = path.resolve().parent
    tables = {
        name: _resolve_path(party.table, base)
        for name, party in config.parties.items()
        if not party.table.endswith(".npz")
    }
    ids = {name: config.parties[name].id_column for name in tables}
    options = {name: config.parties[name].options for name in tables}
    return tables, ids, options, config.labels


def _resolve_path(table: str, base: Path) -> str:
    return table if table.startswith("sql:") else str(base / table)


def _label_column(labels: "LabelsConfig", base: Path) -> "pd.Series":
    """Read the labels from their own table, by id."""
    from xvfl.data.frames import read_frame
    from xvfl.data.labels import require_label_column

    frame = read_frame(_resolve_path(str(labels.table), base), labels.id_column, "labels")
    return frame[require_label_column(labels.column, frame.columns, "labels")]


def _with_kinds(
    options: dict[str, "TableOptions"], kinds: list[str], tables: dict[str, str]
) -> dict[str, "TableOptions"]:
    """Add the kinds given as COLUMN=KIND or NAME.COLUMN=KIND."""
    from dataclasses import replace

    from xvfl.config import TableOptions

    options = {name: options.get(name, TableOptions()) for name in tables}
    for each in kinds:
        column, equals, kind = each.partition("=")
        name, dot, inner = column.partition(".")
        if not equals:
            raise InputError(f"--kind: expected COLUMN=KIND, got {each!r}")
        if dot and name in tables:
            column = inner
        elif len(tables) == 1:
            name = next(iter(tables))
        else:
            raise InputError(f"--kind {each!r}: {unknown('table', name, tables)}")
        own = options[name]
        options[name] = replace(own, kinds={**(own.kinds or {}), column: kind})
    return options


def _print(found: "Inspection") -> None:
    for name, columns in found.columns.items():
        table = Table(title=f"{name}: {found.rows[name]:,} rows")
        for heading in ("column", "kind", "missing", "distinct", "encoding", "values"):
            right = heading in ("missing", "distinct")
            table.add_column(heading, justify="right" if right else "left", overflow="fold")
        for each in columns:
            table.add_row(
                each.name,
                each.kind,
                f"{each.missing:.1%}",
                f"{each.distinct:,}",
                each.encoding,
                ", ".join(each.examples),
            )
        print_table(table)
    if found.overlap:
        table = Table("table", title="rows by table")
        for heading in ("rows", "shared"):
            table.add_column(heading, justify="right")
        for name, counts in found.overlap.items():
            label = "all tables" if name not in found.rows else name
            table.add_row(label, f"{counts['rows']:,}", f"{counts['shared']:,}")
        print_table(table)
    for problem in found.problems():
        if problem.level == "warning":
            print(f"warning: {problem}")
