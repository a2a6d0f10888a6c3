"""The commented configuration file that `xvfl init` writes, generated from the dataclasses."""

import ast
import inspect
import json
import re
import textwrap
from collections.abc import Collection, Mapping
from dataclasses import fields
from typing import Any

from xvfl.config import SECTIONS, Config, LabelsConfig, TableOptions, TaskKind


def field_docs(cls: type) -> dict[str, str]:
    """Read the docstring beneath each field of a configuration class."""
    body = ast.parse(textwrap.dedent(inspect.getsource(cls))).body[0]
    assert isinstance(body, ast.ClassDef)
    docs = {}
    for before, after in zip(body.body, body.body[1:], strict=False):
        if isinstance(before, ast.AnnAssign) and isinstance(before.target, ast.Name):
            is_doc = isinstance(after, ast.Expr) and isinstance(after.value, ast.Constant)
            docs[before.target.id] = " ".join(str(after.value.value).split()) if is_doc else ""  # type: ignore[attr-defined]
    return docs


def template(
    parties: Mapping[str, str], id_column: str, label_party: str, label: str, task: TaskKind
) -> str:
    """Return a configuration file with the required keys, and all others commented out."""
    lines = [
        "# Configuration of a training run. Train with:  xvfl train THIS_FILE --out RUN",
        '# Tables are .csv, .csv.gz, .parquet, .xlsx or .npz (images) files, or "sql:SELECT …".',
        "# File names are relative to the folder of this file. Commented keys show their defaults.",
        "",
        *_commented(Config, ("test_fraction", "use_unlabeled", "out_of_core")),
        "",
        "[labels]",
        f"column = {_toml(label)}",
        f"party = {_toml(label_party)}   # the party whose table has the labels; or instead:",
        '# table = "labels.csv"',
        '# id_column = "id"',
        f"task = {_toml(task)}   # or regression, for a number",
        *_commented(LabelsConfig, ("threshold",)),
    ]
    for name, table in parties.items():
        key = name if re.fullmatch(r"[A-Za-z0-9_-]+", name) else _toml(name)
        lines += [
            "",
            f"[parties.{key}]",
            f"table = {_toml(table)}",
            f"id_column = {_toml(id_column)}",
        ]
        lines += [f"# [parties.{key}.options]", *_commented(TableOptions)]
    for section in ("net", "loss", "train", "privacy"):
        lines += ["", f"[{section}]", *_commented(SECTIONS[section])]
    return "\n".join(lines) + "\n"


def _commented(cls: type, names: Collection[str] = ()) -> list[str]:
    docs = field_docs(cls)
    lines = []
    for each in [each for each in fields(cls) if not names or each.name in names]:
        lines += [f"#   {line}" for line in textwrap.wrap(docs[each.name], 92)]
        given = "…" if each.default is None else _toml(each.default)
        lines.append(f"# {each.name} = {given}")
    return lines


def _toml(value: Any) -> str:
    """Write a value as TOML; for these types JSON is the same."""
    return json.dumps(value, ensure_ascii=False)
