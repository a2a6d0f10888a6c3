"""Read run folders for the dashboard: a list of runs, and the parts of one run.

Runs are found by listing folders, never by joining a name that a client sent.
"""

import os
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from xvfl.model.completion_examples import COMPLETION
from xvfl.model.dashboard.curves import curves
from xvfl.model.dashboard.json_files import read_json, read_lines
from xvfl.model.dashboard.state_folder import (
    describe_approvals,
    describe_coordinator,
    describe_party,
)
from xvfl.model.missing_map import MISSING
from xvfl.model.missing_rates import MISSING_RATES
from xvfl.model.run_dir import EVALUATION, MANIFEST, RECORDS
from xvfl.model.run_summary import SUMMARY, is_running
from xvfl.model.workflow import ENCODER, HELD_OUT
from xvfl.system.event_log import LOG

MAX_RUNS = 500
"""Runs that are listed."""
DEPTH = 3
"""Levels of folders in which runs are searched."""
MAX_WARNINGS = 50
"""Warnings of a run that are listed, the last ones."""
SPLIT, HEADS = "split.json", "heads"
"""In a coordinator's state folder: shares of held-out rows, and the folder of the heads."""
PANELS = {
    "missing": MISSING,
    "evaluation": EVALUATION,
    "missing_rates": MISSING_RATES,
    "completion": COMPLETION,
}
"""Files of a run that the page requests whole, by the name of their panel."""
WARNING_EVENTS = {
    "upload_suspicious",
    "upload_rejected",
    "upload_expired",
    "upload_suspended",
    "upload_changed",
    "terms_not_enforced",
    "stored_upload_used",
    "upload_late",
    "request_rejected",
    "request_failed",
    "encoder_failed",
    "head_not_changed",
    "release_failed",
    "connection_rejected",
    "connection_dropped",
    "unmatched_rows_claimed",
    "internal_error",
    "log_lines_lost",
    "trail_not_written",
    "trail_differs",
}
"""Events of a process's log that are warnings."""


class RunReader:
    """Reads the runs in a folder, or one run folder."""

    def __init__(self, root: Path) -> None:
        self.root = root

    def folders(self) -> dict[str, Path]:
        """Return the run folders by name, the path relative to the root."""
        root = self.root
        own = root.resolve().name if _is_run(root) else ""
        found = {own: root} if own else {}
        for path in _find_runs(root / HEADS if own else root, DEPTH):
            found[(own / path.relative_to(root)).as_posix()] = path
            if len(found) == MAX_RUNS:
                break
        return found

    def runs(self) -> dict[str, Any]:
        """Describe all runs, the last changed first."""
        listed = [
            _describe(name, path, _describe_state(path)) for name, path in self.folders().items()
        ]
        listed.sort(key=lambda each: -float(each["changed"]))
        return {"folder": self.root.resolve().name, "runs": listed}

    def run(self, name: str) -> dict[str, Any] | None:
        """Describe one run with its curves, warnings and parts; None if there is none."""
        path = self.folders().get(name)
        if path is None:
            return None
        summary, status = read_json(path / SUMMARY), _describe_state(path)
        return {
            **_describe(name, path, status),
            "about": summary,
            "curves": curves(read_lines(path / RECORDS)),
            "events": _warnings(path, summary),
            "files": {panel: _changed(path / file) for panel, file in PANELS.items()},
            "status": status,
        }

    def panel(self, name: str, panel: str) -> dict[str, Any] | None:
        """Read the file of a panel; None if there is none."""
        path = self.folders().get(name)
        if path is None or panel not in PANELS or not (path / PANELS[panel]).is_file():
            return None
        return read_json(path / PANELS[panel])


def _is_run(path: Path) -> bool:
    files = (SUMMARY, MANIFEST, RECORDS, ENCODER, HELD_OUT)
    return _has_uploads(path) or any((path / name).is_file() for name in files)


def _has_uploads(path: Path) -> bool:
    """Return whether a folder is the state folder of a coordinator that stores uploads."""
    return (path / SPLIT).is_file()


def _describe_state(path: Path) -> dict[str, Any]:
    """Describe a state folder; empty for a run folder."""
    if _has_uploads(path):
        return describe_coordinator(path)
    if not (path / HELD_OUT).is_file():
        return {}
    return {**describe_party(path), **describe_approvals(path)}


def _find_runs(folder: Path, depth: int) -> Iterator[Path]:
    """Yield run folders; links are not followed. Of the folders of a run, heads are searched."""
    if folder.name == HEADS and folder.is_symlink():
        return
    try:
        entries = sorted(os.scandir(folder), key=lambda entry: entry.name)
    except OSError:
        return
    for entry in entries:
        if not entry.is_dir(follow_symlinks=False) or entry.name.startswith("."):
            continue
        path = Path(entry.path)
        if found := _is_run(path):
            yield path
        if depth > 1:
            yield from _find_runs(path / HEADS if found else path, depth - 1)


def _describe(name: str, path: Path, status: Mapping[str, Any]) -> dict[str, Any]:
    """Describe a run in one line of the list; `status` describes a state folder."""
    summary, manifest = read_json(path / SUMMARY), read_json(path / MANIFEST)
    records = [each for each in read_lines(path / RECORDS) if each.get("kind") == "epoch"]
    last: Mapping[str, Any] = records[-1] if records else {}
    best = last.get("best_epoch", 0)
    encoders = manifest.get("encoders", {})
    parties = {
        **{
            each: {}
            for each in [*manifest.get("parties", []), *status.get("party_upload_version", [])]
        },
        **summary.get("parties", {}),
    }
    parties = {each: {**about, **encoders.get(each, {})} for each, about in parties.items()}
    return {
        "name": name,
        "kind": _kind(path, summary, manifest),
        "state": status.get("state") or _state(path, summary, manifest),
        "problem": summary.get("problem", ""),
        "method": summary.get("method") or manifest.get("loss", {}).get("method", ""),
        "task": summary.get("task", "regression" if manifest.get("target") else "classification"),
        "label": summary.get("label", ""),
        "rows": summary.get("rows") or manifest.get("rows", {}),
        "parties": parties,
        "epoch": last.get("epoch", 0),
        "epochs": summary.get("epochs", 0),
        "step": last.get("step", 0),
        "best_epoch": best,
        "best_score": next((r.get("score") for r in records if r.get("epoch") == best), None),
        "score_name": summary.get("score_name", "log-loss"),
        "warnings": len(_warnings(path, summary)),
        "changed": max(_changed(path / each) for each in (SUMMARY, RECORDS, MANIFEST, LOG)),
        "started": summary.get("started", ""),
    }


def _kind(path: Path, summary: Mapping[str, Any], manifest: Mapping[str, Any]) -> str:
    if (path / ENCODER).is_file() or (path / HELD_OUT).is_file():
        return "party"
    if _has_uploads(path):
        return "federation"
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
    suspicious = summary.get("suspicious", {}).items()
    uploads = (f"the upload of {name} is suspicious: {reason}" for name, reason in suspicious)
    texts = [*summary.get("warnings", []), *uploads]
    events = [
        {key: value for key, value in each.items() if key != "policy"}
        for each in read_lines(path / LOG)
        if each.get("event") in WARNING_EVENTS
    ]
    return [*({"event": "warning", "reason": str(text)} for text in texts), *events][-MAX_WARNINGS:]


def _changed(path: Path) -> float:
    """Return when a file was written last; 0 if it does not exist."""
    try:
        return path.stat().st_mtime
    except OSError:
        return 0.0
