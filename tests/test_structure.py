"""The layout of the source tree and the import contracts."""

import tomllib
from collections import Counter

from tests.processes import ROOT, run_python

SOURCE = ROOT / "src" / "xvfl"
SHARED_NAMES = {"__init__", "config"}
"""Names of several modules: `xvfl.config` and `xvfl.service.config` are both configuration."""


def test_few_modules_outside_packages() -> None:
    assert len(list(SOURCE.glob("*.py"))) <= 9


def test_at_most_nine_import_layers() -> None:
    settings = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))
    contracts = settings["tool"]["importlinter"]["contracts"]
    (layers,) = [each["layers"] for each in contracts if each["type"] == "layers"]
    assert len(layers) <= 9


def test_module_names_are_unique() -> None:
    counts = Counter(path.stem for path in SOURCE.rglob("*.py"))
    assert {name for name, count in counts.items() if count > 1} <= SHARED_NAMES


def test_encoders_and_schema_import_without_torch() -> None:
    code = "import sys; sys.modules['torch'] = None; "
    done = run_python("-c", code + "import xvfl.data, xvfl.data.encoder, xvfl.config")
    assert done.returncode == 0, done.stderr
