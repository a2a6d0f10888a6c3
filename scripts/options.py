"""Keep the tables of the docs equal to the configuration classes.

`python scripts/options.py` writes them; as a hook of mkdocs it refuses to build stale ones.
"""

import re
import sys
from dataclasses import MISSING, fields
from pathlib import Path
from typing import Any, Literal, get_args, get_origin, get_type_hints

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT / "src"))

from xvfl import config as xc  # noqa: E402
from xvfl import sides  # noqa: E402
from xvfl.template import field_docs  # noqa: E402

PAGES = {ROOT / "docs" / "configuration.md": xc, ROOT / "docs" / "federation.md": sides}
"""Each page, and the module whose classes it shows."""
BLOCK = re.compile(r"<!-- options: (\w+) -->\n.*?<!-- end -->", re.DOTALL)


def table(cls: type) -> str:
    """Lay out a class: each option, its default, its meaning."""
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


def written(page: Path) -> str:
    """Give a page with every table made anew."""

    def block(found: re.Match[str]) -> str:
        name = found[1]
        body = ranges() if name == "LAMBDA_RANGES" else table(getattr(PAGES[page], name))
        return f"<!-- options: {name} -->\n\n{body}\n\n<!-- end -->"

    return BLOCK.sub(block, page.read_text(encoding="utf-8"))


def on_pre_build(config: Any) -> None:
    """Refuse to build a page that no longer says what the classes say."""
    for page in PAGES:
        if written(page) != page.read_text(encoding="utf-8"):
            raise SystemExit(f"{page.name}: its tables are stale; run python scripts/options.py")


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
