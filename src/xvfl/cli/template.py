"""The commented configuration that `xvfl init` writes, made from the configuration's own fields."""

import ast
import inspect
import re
import textwrap
from collections.abc import Mapping
from dataclasses import fields
from typing import Any

from xvfl.config import LAMBDA_RANGES, LossConfig, NetConfig, TableOptions, TrainConfig

SECTIONS: dict[str, type] = {"net": NetConfig, "loss": LossConfig, "train": TrainConfig}


def field_docs(cls: type) -> dict[str, str]:
    """Read the sentence beneath each field of a configuration class."""
    body = ast.parse(textwrap.dedent(inspect.getsource(cls))).body[0]
    assert isinstance(body, ast.ClassDef)
    found = {}
    for before, after in zip(body.body, body.body[1:], strict=False):
        if isinstance(before, ast.AnnAssign) and isinstance(before.target, ast.Name):
            is_doc = isinstance(after, ast.Expr) and isinstance(after.value, ast.Constant)
            found[before.target.id] = " ".join(str(after.value.value).split()) if is_doc else ""  # type: ignore[attr-defined]
    return found


def template(parties: Mapping[str, str], id_column: str, label_party: str, label: str) -> str:
    """Write a configuration to start from: what must be said, then every default, commented."""
    lines = [
        '# A run of xvfl. Tables are .csv, .parquet, .npz (images) or "sql:SELECT …" (DuckDB);',
        "# file names count from this file's folder. Everything commented out shows its default.",
        "# Start it with:  xvfl train THIS_FILE --out RUN",
        "",
        "# Share of the labelled rows held out for `xvfl evaluate`.",
        "test_fraction = 0.2",
        "# Keep Parquet tables on disk while training: true, false, or those that are large.",
        '# out_of_core = "auto"',
        "",
        "[labels]",
        f"column = {_toml(label)}",
        f"party = {_toml(label_party)}   # the party whose table holds the labels; or instead:",
        '# table = "labels.csv"',
        '# id_column = "id"',
    ]
    for name, table in parties.items():
        key = name if re.fullmatch(r"[A-Za-z0-9_-]+", name) else _toml(name)
        lines += [
            "",
            f"[parties.{key}]",
            f"table = {_toml(table)}",
            f"id_column = {_toml(id_column)}",
        ]
        lines += [f"# [parties.{key}.options]", *_commented(TableOptions, "# ")]
    for section, cls in SECTIONS.items():
        lines += ["", f"[{section}]", *_commented(cls, "# ")]
        if section == "loss":
            lines += ["# The paper's ranges of lambda1 and lambda2, to search by validation:"]
            lines += [
                f"#   {name}: lambda1 = {list(first)}, lambda2 = {list(second)}"
                for name, (first, second) in LAMBDA_RANGES.items()
            ]
    return "\n".join(lines) + "\n"


def _commented(cls: type, prefix: str) -> list[str]:
    docs = field_docs(cls)
    lines = []
    for each in fields(cls):
        lines += [f"#   {line}" for line in textwrap.wrap(docs[each.name], 92)]
        given = "…" if each.default is None else _toml(each.default)
        lines.append(f"{prefix}{each.name} = {given}")
    return lines


def _toml(value: Any) -> str:
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, tuple):
        return "[" + ", ".join(_toml(each) for each in value) + "]"
    if isinstance(value, str):
        return '"' + value.replace("\\", "\\\\").replace('"', '\\"') + '"'
    return str(value)
