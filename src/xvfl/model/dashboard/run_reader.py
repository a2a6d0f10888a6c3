"""Read run folders for the dashboard: a list of runs, and the parts of one run.

Runs are found by listing folders, never by joining a name that a client sent.
"""

import json
import os
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from xvfl.model.completion_examples import COMPLETION
from xvfl.model.dashboard.curves import curves
from xvfl.model.evaluation import EVALUATION
from xvfl.model.missing_map import MISSING
from xvfl.model.missing_rates import MISSING_RATES
from xvfl.model.run_dir import LOG, MANIFEST, RECORDS
from xvfl.model.run_summary import SUMMARY, is_running
from xvfl.model.workflow import ENCODER
from xvfl.system.files import read_jsonl

MAX_RUNS = 500
"""Runs that are listed."""
DEPTH = 3
"""Levels of folders in which runs are searched."""
MAX_FILE_BYTES = 16 * 2**20
"""Largest file that is read."""
MAX_WARNINGS = 50
"""Warnings of a run that are listed, the last ones."""
PANELS = {
    "missing": MISSING,
    "evaluation": EVALUATION,
    "missing_rates": MISSING_RATES,
    "completion": COMPLETION,
}
"""Files of a run that the page requests whole, by the name of their panel."""
WARNING_EVENTS = {
    "upload_suspicious",
    "party_left",
    "release_failed",
    "connection_rejected",
    "connection_dropped",
    "unmatched_rows_claimed",
    "internal_error",
    "log_lines_lost",
}
"""Events of a process's log that are warnings."""


class RunReader:
    """Reads the runs in a folder, or one run folder."""

    def __init__(self, root: Path) -> None:
        self.root = root

    def folders(self) -> dict[str, Path]:
        """Return the run folders by name, the path relative to the root."""
        root = self.root
        if _is_run(root):
            return {root.resolve().name: root}
        found = {}
        for path in _find_runs(root, DEPTH):
            found[path.relative_to(root).as_posix()] = path
            if len(found) == MAX_RUNS:
                break
        return found

    def runs(self) -> dict[str, Any]:
        """Describe all runs, the last changed first."""
        listed = [_describe(name, path) for name, path in self.folders().items()]
        listed.sort(key=lambda each: -float(each["changed"]))
        return {"folder": self.root.resolve().name, "runs": listed}

    def run(self, name: str) -> dict[str, Any] | None:
        """Describe one run with its curves, warnings and parts; None if there is none."""
        path = self.folders().get(name)
        if path is None:
            return None
        summary = _read_json(path / SUMMARY)
        return {
            **_describe(name, path),
            "about": summary,
            "curves": curves(_read_lines(path / RECORDS)),
            "events": _warnings(path, summary),
            "files": {panel: _changed(path / file) for panel, file in PANELS.items()},
        }

    def panel(self, name: str, panel: str) -> dict[str, Any] | None:
        """Read the file of a panel; None if there is none."""
        path = self.folders().get(name)
        if path is None or panel not in PANELS or not (path / PANELS[panel]).is_file():
            return None
        return _read_json(path / PANELS[panel])


def _is_run(path: Path) -> bool:
    return any((path / name).is_file() for name in (SUMMARY, MANIFEST, RECORDS, ENCODER))


def _find_runs(folder: Path, depth: int) -> Iterator[Path]:
    """Yield run folders; links are not followed, and folders of a run are not searched."""
    try:
        entries = sorted(os.scandir(folder), key=lambda entry: entry.name)
    except OSError:
        return
    for entry in entries:
        if not entry.is_dir(follow_symlinks=False) or entry.name.startswith("."):
            continue
        path = Path(entry.path)
        if _is_run(path):
            yield path
        elif depth > 1:
            yield from _find_runs(path, depth - 1)


def _describe(name: str, path: Path) -> dict[str, Any]:
    """Describe a run in one line of the list."""
    summary, manifest = _read_json(path / SUMMARY), _read_json(path / MANIFEST)
    records = [each for each in _read_lines(path / RECORDS) if each.get("kind") == "epoch"]
    last: Mapping[str, Any] = records[-1] if records else {}
    best = last.get("best_epoch", 0)
    parties = summary.get("parties") or {each: {} for each in manifest.get("parties", [])}
    return {
        "name": name,
        "kind": _kind(path, summary, manifest),
        "state": _state(path, summary, manifest),
        "problem": summary.get("problem", ""),
        "method": summary.get("method") or manifest.get("loss", {}).get("method", ""),
        "task": summary.get("task", "regression" if manifest.get("target") else "classification"),
        "label": summary.get("label", ""),
        "rows": summary.get("rows") or manifest.get("rows", {}),
        "parties": parties,
        "absent": manifest.get("absent", {}),
        "epoch": last.get("epoch", 0),
        "epochs": summary.get("epochs", 0),
        "best_epoch": best,
        "best_score": next((r.get("score") for r in records if r.get("epoch") == best), None),
        "score_name": summary.get("score_name", "log-loss"),
        "warnings": len(_warnings(path, summary)),
        "changed": max(_changed(path / each) for each in (SUMMARY, RECORDS, MANIFEST, LOG)),
        "started": summary.get("started", ""),
    }


def _kind(path: Path, summary: Mapping[str, Any], manifest: Mapping[str, Any]) -> str:
    if (path / ENCODER).is_file():
        return "party"
    if "coordinator" in (summary.get("side"), manifest.get("side")):
        return "coordinator"
    return "run" if summary or (path / RECORDS).is_file() else "model"


def _state(path: Path, summary: Mapping[str, Any], manifest: Mapping[str, Any]) -> str:
    if is_running(summary):
        return "training"
    if summary.get("state") == "failed":
        return "failed"
    if manifest or (path / "bundle" / MANIFEST).is_file():
        return "finished"
    return "stopped"


def _warnings(path: Path, summary: Mapping[str, Any]) -> list[dict[str, Any]]:
    texts = summary.get("warnings", [])
    events = [
        {key: value for key, value in each.items() if key != "policy"}
        for each in _read_lines(path / LOG)
        if each.get("event") in WARNING_EVENTS
    ]
    return [*({"event": "warning", "reason": str(text)} for text in texts), *events][-MAX_WARNINGS:]


def _changed(path: Path) -> float:
    """Return when a file was written last; 0 if it does not exist."""
    try:
        return path.stat().st_mtime
    except OSError:
        return 0.0


def _read_json(path: Path) -> dict[str, Any]:
    """Read a JSON object; empty if there is none, or if it is too large or damaged."""
    try:
        if path.stat().st_size > MAX_FILE_BYTES:
            return {}
        data = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return {}
    return data if isinstance(data, dict) else {}


def _read_lines(path: Path) -> list[dict[str, Any]]:
    try:
        return read_jsonl(path) if path.stat().st_size <= MAX_FILE_BYTES else []
    except OSError:
        return []
