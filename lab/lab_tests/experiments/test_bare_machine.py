"""Runs are computed from the two source folders with torch and numpy alone."""

import json
from pathlib import Path

from lab_tests.experiments.test_stacked_runs import small_task
from tests.processes import run_python
from xvfl_lab.task import save_task

BLOCKED = (
    *("pandas", "sklearn", "matplotlib", "PIL", "safetensors", "rich", "typer", "duckdb"),
    *("pyarrow", "polars", "grpc", "cryptography", "rbcl"),
)
COMMAND = f"""
import runpy, sys
for name in {BLOCKED!r}:
    sys.modules[name] = None
runpy.run_module("xvfl_lab.experiments.execute", run_name="__main__")
"""


def test_the_runner_needs_torch_and_numpy_alone(tmp_path: Path) -> None:
    save_task(small_task(), tmp_path / "bank-2.npz")
    options = ["--tasks", str(tmp_path), "--out", str(tmp_path), "--device", "cpu", "--quick"]
    more = ["--methods", "vanilla", "--workers", "1"]
    done = run_python("-c", COMMAND, "mode-gap", "bank", *options, *more)
    assert done.returncode == 0, done.stderr
    assert done.stdout.startswith("bank mode-gap vanilla: 2 runs")
    lines = [json.loads(line) for line in (tmp_path / "bank.jsonl").read_text().splitlines()]
    assert ["key" in line for line in lines] == [False, True, True]
