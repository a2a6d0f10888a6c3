"""Print the size of the repository: lines of code, parameters, options, commands, words of docs.

`python scripts/size.py` counts this checkout, `python scripts/size.py FOLDER` another one.
A line of code has at least one token that is neither a comment nor a docstring.
"""

import ast
import io
import re
import sys
import tokenize
from pathlib import Path

PROJECTS = {"product": "src", "server": "serve/xvfl_serve", "lab": "lab/xvfl_lab", "tests": "tests"}
PAGES = ("README.md", "docs")
CONFIGURATIONS = (
    "src/xvfl/config.py",
    "src/xvfl/service/config.py",
    "src/xvfl/service/prediction/prediction_config.py",
)
SKIPPED = {
    *(tokenize.COMMENT, tokenize.NL, tokenize.NEWLINE, tokenize.INDENT, tokenize.DEDENT),
    tokenize.ENDMARKER,
}


def lines_of_code(text: str) -> int:
    """Count the lines with code."""
    docstrings = {
        (node.lineno, node.col_offset)
        for node in ast.walk(ast.parse(text))
        if isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant)
        if isinstance(node.value.value, str)
    }
    lines: set[int] = set()
    for token in tokenize.generate_tokens(io.StringIO(text).readline):
        if token.type not in SKIPPED and token.start not in docstrings:
            lines.update(range(token.start[0], token.end[0] + 1))
    return len(lines)


def classes(path: Path) -> dict[str, ast.ClassDef]:
    """Return the classes of a module by name."""
    body = ast.parse(path.read_text(encoding="utf-8")).body if path.exists() else []
    return {node.name: node for node in body if isinstance(node, ast.ClassDef)}


def parameters(root: Path, name: str) -> int:
    """Count the parameters of an estimator's constructor."""
    found = classes(root / f"src/xvfl/estimator/{name}.py")[f"XVFL{name.title()}"]
    (init,) = [
        node for node in found.body if isinstance(node, ast.FunctionDef) and node.name == "__init__"
    ]
    return len(init.args.kwonlyargs)


def options(root: Path) -> int:
    """Count the fields of all configuration classes."""
    return sum(
        isinstance(node, ast.AnnAssign)
        for path in CONFIGURATIONS
        for each in classes(root / path).values()
        for node in each.body
    )


def commands(root: Path) -> str:
    """Count the commands by the table of contents of `xvfl --help`."""
    text = (root / "src/xvfl/cli/main.py").read_text(encoding="utf-8")
    panels = text[text.index("PANELS") : text.index("in the order of `xvfl --help`")]
    groups = re.search(r"GROUPS = \{(.*?)\}", text, re.DOTALL)
    assert groups is not None
    single = len(re.findall(r"^ +(?:\w+\.\w+,? ?)+$", panels, re.MULTILINE))
    return f"{single} commands and {groups[1].count('.app')} groups"


def main(root: Path) -> None:
    """Print all counts."""
    total = 0
    for project, folder in PROJECTS.items():
        files = sorted((root / folder).rglob("*.py"))
        texts = [path.read_text(encoding="utf-8") for path in files]
        lines = sum(len(text.splitlines()) for text in texts)
        code = sum(map(lines_of_code, texts))
        total += code if project in ("product", "server") else 0
        print(f"{project}: {len(files)} files, {lines} lines, {code} of code")
    print(f"product and server: {total} lines of code")
    for name in ("classifier", "regressor"):
        print(f"{name}: {parameters(root, name)} parameters")
    print(f"configuration: {options(root)} options; {commands(root)}")
    pages = [each for page in PAGES for each in [root / page, *(root / page).rglob("*.md")]]
    words = sum(len(each.read_text(encoding="utf-8").split()) for each in pages if each.is_file())
    print(f"docs and README: {words} words")


if __name__ == "__main__":
    main(Path(sys.argv[1]) if len(sys.argv) > 1 else Path(__file__).resolve().parent.parent)
