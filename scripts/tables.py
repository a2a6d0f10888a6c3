"""Keep the docs equal to the code: tables of options, results and metrics, names of functions.

`python scripts/tables.py` writes the tables, and the parameters in the estimators' docstrings. As
a hook of mkdocs it fails the build if one is stale or if a page names a function, a test or a file
that does not exist.
"""

import ast
import inspect
import json
import re
import sys
import textwrap
from dataclasses import MISSING, fields
from functools import cache
from importlib import import_module
from pathlib import Path
from typing import Any, Literal, get_args, get_origin, get_type_hints

ROOT = Path(__file__).resolve().parent.parent
sys.path[:0] = [str(ROOT / "src"), str(ROOT / "lab")]

from xvfl import XVFLClassifier, XVFLRegressor  # noqa: E402
from xvfl import config as run_config  # noqa: E402
from xvfl.cli.template import field_docs  # noqa: E402
from xvfl.model.dashboard import status_metrics  # noqa: E402
from xvfl.service import config as service_config  # noqa: E402
from xvfl.service import secret_config  # noqa: E402
from xvfl.service.prediction import prediction_config  # noqa: E402
from xvfl_lab.experiments.figures import FULL, OURS  # noqa: E402

DOCS = ROOT / "docs"
RESULTS = ROOT / "lab" / "results"
CONFIG_MODULES = {
    "configuration.md": run_config,
    "deploy.md": service_config,
    "federated-prediction.md": prediction_config,
    "secret.md": secret_config,
}
"""Each page with option tables, and the module of the classes it shows."""
ESTIMATORS = {
    ROOT / "src" / "xvfl" / "estimator" / "classifier.py": XVFLClassifier,
    ROOT / "src" / "xvfl" / "estimator" / "regressor.py": XVFLRegressor,
}
OWN_TEXT = {"method", "class_weight", "random_state"}
"""Parameters that are documented in the estimators, because they take other values there."""
BLOCK = re.compile(r"<!-- (options|results|metrics): (\S+) -->\n.*?<!-- end -->", re.DOTALL)
MODES = ("local", "assisted", "collaborative")
RATES = (0.0, 0.5, 0.9)

TEST = re.compile(
    r"`(?:tests/|lab/lab_tests/)?((?:\w+/)*test_\w+\.py)(?:::(test_\w+))?`|`(test_D\d_\w+)`"
)
NAME = re.compile(
    r"`((?:maths|primitives|nets|methods|training|federation|wire|data|dataset|matching|certs"
    r"|service|estimator|config|experiments|bench|datasets|scenarios)(?:\.(?!toml)\w+)+)`"
)

PATH = re.compile(r"`((?:src|lab|tests|examples|scripts)/[\w./-]+)(?:::\w+)?`")


def options(page: Path, name: str) -> str:
    """Format a configuration class: each option, its default, its meaning."""
    cls = getattr(CONFIG_MODULES[page.name], name)
    docs, hints = field_docs(cls), get_type_hints(cls)
    lines = ["| option | default | meaning |", "|---|---|---|"]
    for field in fields(cls):
        meaning = docs[field.name].replace("|", "\\|")
        if get_origin(hints[field.name]) is Literal:
            choices = ", ".join(f'`"{choice}"`' for choice in get_args(hints[field.name]))
            meaning = f"{meaning} One of {choices}."
        default = _default(field.default, page.read_text(encoding="utf-8"))
        lines.append(f"| `{field.name}` | {default} | {meaning} |")
    return "\n".join(lines)


def parameters(cls: type, text: str) -> str:
    """Return an estimator's source with the parameters that are options documented as these."""
    documented = {}
    for config in (
        *(run_config.Config, run_config.NetConfig, run_config.LossConfig),
        *(run_config.TrainConfig, run_config.PrivacyConfig),
    ):
        docs, hints = field_docs(config), get_type_hints(config)
        for each in fields(config):
            documented[each.name] = docs[each.name], hints[each.name], each.default
    for name, parameter in inspect.signature(cls).parameters.items():
        if name not in documented or name in OWN_TEXT:
            continue
        meaning, hint, default = documented[name]
        if parameter.default is None and default is not None:
            meaning += f" By default {_word(default)}."
        entry = [f"    {name} : {_type(hint)}, default={_word(parameter.default)}"]
        indent = {"initial_indent": 8 * " ", "subsequent_indent": 8 * " "}
        entry += textwrap.wrap(meaning, 100, break_on_hyphens=False, **indent)
        old = re.compile(rf"^    {name} : .*\n(?:        .*\n)+", re.MULTILINE)
        text = old.sub("\n".join(entry).replace("\\", r"\\") + "\n", text, count=1)
    return text


def _word(value: object) -> str:
    return f'"{value}"' if isinstance(value, str) else str(value)


def _type(hint: Any) -> str:
    """Write a type as numpydoc does."""
    if get_origin(hint) is Literal:
        return "{" + ", ".join(f'"{each}"' for each in get_args(hint)) + "}"
    plain = [each for each in get_args(hint) or (hint,) if each is not type(None)]
    return " or ".join(
        _type(each) if get_origin(each) is Literal else each.__name__ for each in plain
    )


def metrics(page: Path, name: str) -> str:
    """Format the metrics of a side: name, type and labels, meaning."""
    lines = ["| metric | type | meaning |", "|---|---|---|"]
    for key, (text, kind, label) in getattr(status_metrics, name).items():
        by = f"{{{label}}}" if key.startswith("party_") or label != "party" else ""
        total = "_total" if kind == "counter" else ""
        lines.append(f"| `xvfl_{key}{total}{by}` | {kind} | {text} |")
    return "\n".join(lines)


def results(page: Path, name: str) -> str:
    """Format a method: a row a data set, the scores of a mode at all missing rates in a cell."""
    figures = _figures("missing-rates")
    ways = {number["way"] for each in figures.values() for number in _numbers(each, name)}
    modes = [mode for mode in MODES if mode in ways]
    rivals = [] if name == OURS else [mode for mode in modes if mode != "assisted"]
    head = ["data set", *modes, *(f"{OURS} minus it, {mode}" for mode in rivals)]
    lines = [_row(head), "|---|" + "--:|" * (len(head) - 1)]
    for dataset, figure in figures.items():
        metric = figure["judged"]["metric"]
        scores = {
            (number["way"], number["rate"]): f"{100 * number[metric]['mean']:.1f}"
            for number in _numbers(figure, name)
        }
        cells = [" / ".join(scores[mode, rate] for rate in RATES) for mode in modes]
        gaps = [_gap(figure, name, mode) for mode in rivals]
        lines.append(_row([f"{dataset}, {metric}", *cells, *gaps]))
    return "\n".join(lines)


def _numbers(figure: dict[str, Any], method: str) -> list[dict[str, Any]]:
    return [number for number in figure["numbers"] if number["method"] == method]


def _figures(figure: str) -> dict[str, Any]:
    paths = {name: RESULTS / figure / f"{name}.json" for name in FULL}
    present = {name: path for name, path in paths.items() if path.exists()}
    return {name: json.loads(path.read_text(encoding="utf-8")) for name, path in present.items()}


def _gap(figure: dict[str, Any], rival: str, mode: str) -> str:
    for standing in figure["standing"]:
        if (standing["rival"], standing["mode"]) == (rival, mode):
            gap, error = 100 * standing["gap"]["mean"], 100 * standing["gap"]["error"]
            return f"{gap:+.2f} ± {error:.2f}, {standing['verdict']}"
    return "n/a"


def _row(cells: list[str]) -> str:
    return "| " + " | ".join(cells) + " |"


def _default(value: Any, page: str) -> str:
    if value is MISSING:
        return "required"
    if value is None:
        return ""
    if hasattr(value, "__dataclass_fields__"):
        documented_here = f"<!-- options: {type(value).__name__} -->" in page
        if documented_here:
            return "below"
        if type(value).__module__ == secret_config.__name__:
            return "see [Secret shares](secret.md)"
        return "see [Configuration](configuration.md)"
    if isinstance(value, bool):
        return f"`{str(value).lower()}`"
    if isinstance(value, tuple):
        return f"`{list(value)}`"
    return f'`"{value}"`' if isinstance(value, str) else f"`{value}`"


def refreshed(page: Path) -> str:
    """Return the text of a page with current tables."""

    def block(match: re.Match[str]) -> str:
        make = {"options": options, "results": results, "metrics": metrics}[match[1]]
        return f"<!-- {match[1]}: {match[2]} -->\n\n{make(page, match[2])}\n\n<!-- end -->"

    return BLOCK.sub(block, page.read_text(encoding="utf-8"))


def unknown_names(text: str) -> list[str]:
    """List the functions, tests and files that a page names and that do not exist."""
    missing = []
    text = text.replace("/test_NAME.py", "").replace("/NAME.py", "")
    for file, test, decision in TEST.findall(text):
        if decision and not any(decision in tests for tests in _tests().values()):
            missing.append(decision)
        elif file and file not in _tests():
            missing.append(file)
        elif test and test not in _tests()[file]:
            missing.append(f"{file}::{test}")
    missing += [path for path in PATH.findall(text) if not (ROOT / path).exists()]
    return missing + [name for name in NAME.findall(text) if not _importable(name)]


@cache
def _tests() -> dict[str, set[str]]:
    found = {}
    for folder in (ROOT / "tests", ROOT / "lab" / "lab_tests"):
        for path in folder.rglob("test_*.py"):
            tree = ast.parse(path.read_text(encoding="utf-8"))
            names = {node.name for node in ast.walk(tree) if isinstance(node, ast.FunctionDef)}
            found[path.relative_to(folder).as_posix()] = names
    return found


def _importable(name: str) -> bool:
    parts = name.removesuffix(".py").split(".")
    return any(_resolves(package, parts) for package in ("xvfl", "xvfl_lab"))


def _resolves(package: str, parts: list[str]) -> bool:
    value: Any = import_module(package)
    path = package
    for part in parts:
        path = f"{path}.{part}"
        if hasattr(value, part):
            value = getattr(value, part)
            continue
        if part in getattr(value, "__annotations__", {}):
            return True
        try:
            value = import_module(path)
        except ModuleNotFoundError:
            return False
    return True


def stale_docstrings() -> list[str]:
    """List the estimators whose parameters are documented in other words than the options."""
    sources = ((path, path.read_text(encoding="utf-8"), cls) for path, cls in ESTIMATORS.items())
    return [
        f"{path.name}: stale parameters; run python scripts/tables.py"
        for path, text, cls in sources
        if parameters(cls, text) != text
    ]


def on_pre_build(config: Any) -> None:
    """Fail the build of stale tables and of names that do not exist."""
    problems = []
    for page in sorted(DOCS.rglob("*.md")):
        text = page.read_text(encoding="utf-8")
        if refreshed(page) != text:
            problems.append(f"{page.name}: stale tables; run python scripts/tables.py")
        problems += [f"{page.name}: {name} does not exist" for name in unknown_names(text)]
    problems += stale_docstrings()
    if problems:
        raise SystemExit("\n".join(problems))


if __name__ == "__main__":
    for each in sorted(DOCS.rglob("*.md")):
        each.write_text(refreshed(each), encoding="utf-8")
    for path, estimator in ESTIMATORS.items():
        source = path.read_text(encoding="utf-8")
        path.write_text(parameters(estimator, source), encoding="utf-8")
