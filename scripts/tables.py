"""Keep the tables of the docs equal to the configuration classes and to the results.

`python scripts/tables.py` writes them; as a hook of mkdocs it refuses to build stale ones.
"""

import json
import re
import sys
from dataclasses import MISSING, fields
from pathlib import Path
from typing import Any, Literal, get_args, get_origin, get_type_hints

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT / "src"))

from xvfl_lab.experiments.jobs import FULL, OURS  # noqa: E402

from xvfl import config as xc  # noqa: E402
from xvfl.cli.template import field_docs  # noqa: E402
from xvfl.service import config as sides  # noqa: E402

PAGES = sorted((ROOT / "docs").rglob("*.md"))
MODULES = {"configuration.md": xc, "federation.md": sides}
"""Each page of options, and the module whose classes it shows."""
BLOCK = re.compile(r"<!-- (options|results): (\S+) -->\n.*?<!-- end -->", re.DOTALL)
MODES = ("local", "assisted", "collaborative")
RATES = (0.0, 0.5, 0.9)


def options(page: Path, name: str) -> str:
    """Lay out a class: each option, its default, its meaning."""
    if name == "LAMBDA_RANGES":
        return ranges()
    cls = getattr(MODULES[page.name], name)
    docs, hints = field_docs(cls), get_type_hints(cls)
    lines = ["| option | default | meaning |", "|---|---|---|"]
    for each in fields(cls):
        meaning = docs[each.name].replace("|", "\\|")
        if get_origin(hints[each.name]) is Literal:
            choices = ", ".join(f'`"{choice}"`' for choice in get_args(hints[each.name]))
            meaning = f"{meaning} One of {choices}."
        lines.append(f"| `{each.name}` | {_default(each.default)} | {meaning} |")
    return "\n".join(lines)


def ranges() -> str:
    """Lay out the paper's ranges of λ1 and λ2."""
    lines = ["| data | `lambda1` | `lambda2` |", "|---|---|---|"]
    for name, pair in xc.LAMBDA_RANGES.items():
        first, second = (", ".join(f"{value:g}" for value in each) for each in pair)
        lines.append(f"| {name} | {first} | {second} |")
    return "\n".join(lines)


def results(page: Path, name: str) -> str:
    """Lay out what a method did over missing rates, or what each ablation costs."""
    return ablations() if name == "ablations" else method(name)


def method(name: str) -> str:
    """Lay out a method: data sets and modes down, rates across, and `xvfl+` minus it."""
    minus = [] if name == OURS else [f"{OURS} minus it"]
    head = ["data set", "mode", *(f"R_miss {rate:g}" for rate in RATES), *minus]
    lines = [_row(head), "|---|---|" + "--:|" * (len(head) - 2)]
    for dataset, found in _figures("missing-rates").items():
        metric = found["judged"]["metric"]
        for mode in MODES:
            values = {
                each["rate"]: each[metric]
                for each in found["numbers"]
                if (each["method"], each["way"]) == (name, mode)
            }
            if values:
                cells = [_mean(values[rate]) for rate in RATES]
                gap = [_gap(found, name, mode)] if minus else []
                lines.append(_row([f"{dataset}, {metric}", mode, *cells, *gap]))
    return "\n".join(lines)


def ablations() -> str:
    """Lay out what `xvfl+` is ahead of itself without one of its parts."""
    lines = []
    for dataset, found in _figures("ablations").items():
        lines += ["", _row([f"{dataset}: xvfl+ minus itself", *MODES]), "|---|" + "--:|" * 3]
        rivals = dict.fromkeys(each["rival"] for each in found["standing"])
        for rival in [each for each in rivals if each != "peers alone"]:
            lines.append(_row([rival, *(_gap(found, rival, mode) for mode in MODES)]))
    return "\n".join(lines[1:])


def _figures(figure: str) -> dict[str, Any]:
    paths = {name: ROOT / "results" / figure / f"{name}.json" for name in FULL}
    there = {name: path for name, path in paths.items() if path.exists()}
    return {name: json.loads(path.read_text(encoding="utf-8")) for name, path in there.items()}


def _gap(found: dict[str, Any], rival: str, mode: str) -> str:
    for each in found["standing"]:
        if (each["rival"], each["mode"]) == (rival, mode):
            gap, error = 100 * each["gap"]["mean"], 100 * each["gap"]["error"]
            return f"{gap:+.2f} ± {error:.2f}, {each['verdict']}"
    return "n/a"


def _mean(value: dict[str, float]) -> str:
    return f"{100 * value['mean']:.1f} ± {100 * value['deviation']:.1f}"


def _row(cells: list[str]) -> str:
    return "| " + " | ".join(cells) + " |"


def written(page: Path) -> str:
    """Give a page with every table made anew."""

    def block(found: re.Match[str]) -> str:
        make = {"options": options, "results": results}[found[1]]
        return f"<!-- {found[1]}: {found[2]} -->\n\n{make(page, found[2])}\n\n<!-- end -->"

    return BLOCK.sub(block, page.read_text(encoding="utf-8"))


def on_pre_build(config: Any) -> None:
    """Refuse to build a page that no longer says what the classes and the results say."""
    for page in PAGES:
        if written(page) != page.read_text(encoding="utf-8"):
            raise SystemExit(f"{page.name}: its tables are stale; run python scripts/tables.py")


def _default(value: Any) -> str:
    if value is MISSING:
        return "required"
    if value is None:
        return ""
    if hasattr(value, "__dataclass_fields__"):
        return "below"
    if isinstance(value, bool):
        return f"`{str(value).lower()}`"
    if isinstance(value, tuple):
        return f"`{list(value)}`"
    return f'`"{value}"`' if isinstance(value, str) else f"`{value}`"


if __name__ == "__main__":
    for each in PAGES:
        each.write_text(written(each), encoding="utf-8")
