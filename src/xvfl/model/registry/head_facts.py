"""Describe the heads of a coordinator's state folder. Status, dashboard and `xvfl heads` show them.

Files that are missing or damaged never end a description; what stops the use of a head then says
so.
"""

from datetime import UTC, datetime
from functools import lru_cache
from hashlib import blake2b
from pathlib import Path
from typing import Any

from xvfl.model.dashboard.json_files import read_json, read_lines
from xvfl.model.run_dir import MANIFEST, MODEL, RECORDS, RunDir
from xvfl.model.run_summary import SUMMARY, is_running
from xvfl.system.locks import is_locked

INDEX, RETIRED = "heads.json", "retired.json"
"""The heads that have been in use; in the folder of a head, when and by whom it was retired."""
VERSIONS, TRAINING_LOCK = "upload_versions.json", "training.lock"
"""The uploads that a training uses, and the lock that it holds."""
RELEASES = "releases.json"
"""The newest release of each party."""
CURRENT, EARLIER, TAKEN_BACK = "current", "earlier", "taken back"
IN_TRAINING, ABORTED, IS_RETIRED = "in training", "aborted", "retired"
FINISHED_STATES = (CURRENT, EARLIER, TAKEN_BACK)
"""States of heads that can be the current one."""


def head_numbers(folder: Path) -> list[int]:
    """Return the numbers of all heads of a state folder, the newest first.

    Parameters
    ----------
    folder : Path
        State folder of the coordinator.

    Returns
    -------
    list of int
        Also those of heads that are not finished, and of retired ones.
    """
    found = (int(path.name) for path in folder.glob("heads/*/") if path.name.isdecimal())
    return sorted(found, reverse=True)


def list_heads(folder: Path, most: int | None = None) -> list[dict[str, Any]]:
    """Describe the heads of a state folder, the newest first.

    Parameters
    ----------
    folder : Path
        State folder of the coordinator.
    most : int, optional
        Number of heads that are described.

    Returns
    -------
    list of dict
        See `describe_head`.
    """
    return [describe_head(folder, number) for number in head_numbers(folder)[:most]]


def describe_head(folder: Path, number: int) -> dict[str, Any]:
    """Describe one head.

    Parameters
    ----------
    folder : Path
        State folder of the coordinator.
    number : int
        Number of the head.

    Returns
    -------
    dict
        Among others `state`, `digest` (of the parameters), `encoders` (by party, version and part
        of the upload), and `problems`, which stop its use.
    """
    path = folder / f"heads/{number}"
    summary, manifest, retired = (read_json(path / n) for n in (SUMMARY, MANIFEST, RETIRED))
    used = read_json(folder / INDEX).get("used", [])
    records = [each for each in read_lines(path / RECORDS) if each.get("kind") == "epoch"]
    epoch, epochs = records[-1]["epoch"] if records else 0, summary.get("epochs", 0)
    scores = [each["score"] for each in records if each.get("score") is not None]
    uploads = manifest.get("encoders") or read_json(path / VERSIONS)
    state, run = _state(path, number, used), summary.get("run", manifest.get("run", ""))
    return {
        "number": number,
        "state": state,
        "run": run,
        "method": summary.get("method", ""),
        "label": summary.get("label", ""),
        "epoch": epoch,
        "epochs": epochs,
        "progress": round(epoch / epochs, 3) if epochs else 0.0,
        "best_score": max(scores, default=None),
        "score_name": summary.get("score_name", ""),
        "started": summary.get("started", ""),
        "ended": "" if state == IN_TRAINING else summary.get("ended", ""),
        "ended_as": _end(state, summary),
        "retired": retired.get("time", ""),
        "retired_by": retired.get("by", ""),
        "digest": retired.get("digest") or file_digest(path / MODEL),
        "versions": {name: each["version"] for name, each in uploads.items()},
        "encoders": encoder_versions(uploads),
        "uploads": {name: each.get("digest", "") for name, each in uploads.items()},
        "released_to": _released_to(folder, run),
        "withdrawn_since": _withdrawn_since(folder, manifest.get("encoders", {})),
        "problems": head_problems(folder, number) if state in FINISHED_STATES else [],
        "suspicious": manifest.get("suspicious", {}),
        "left_out": manifest.get("left_out", []),
    }


def name_head(head: RunDir) -> dict[str, Any]:
    """Return what answers name of the head that they come from.

    Parameters
    ----------
    head : RunDir
        Run folder of a finished head. Interactive training has one head, in the state folder.

    Returns
    -------
    dict
        `head` (its number; 0 with interactive training), `digest` of its parameters, and
        `encoders`: by party, version and part of the upload that it was trained on.
    """
    number = int(head.path.name) if head.path.parent.name == "heads" else 0
    encoders = encoder_versions(head.manifest().get("encoders", {}))
    return {"head": number, "digest": file_digest(head / MODEL), "encoders": encoders}


def head_problems(folder: Path, number: int) -> list[str]:
    """Tell why a finished head should not be used.

    Parameters
    ----------
    folder : Path
        State folder of the coordinator.
    number : int
        Number of the head.

    Returns
    -------
    list of str
        Files that are missing or damaged, and uploads that may not be used any more.
    """
    path, problems = folder / f"heads/{number}", []
    manifest = read_json(path / MANIFEST)
    if not manifest:
        problems.append(f"its {MANIFEST} cannot be read")
    if not (path / MODEL).is_file():
        problems.append(f"its {MODEL} is missing")
    for party, about in manifest.get("encoders", {}).items():
        problems += _upload_problems(folder, party, about)
    return problems


def encoder_versions(uploads: dict[str, Any]) -> dict[str, str]:
    """Return version and part of each party's upload, as `2` or `2.1`."""
    return {
        name: f"{each['version']}.{part}" if (part := each.get("part")) else str(each["version"])
        for name, each in uploads.items()
    }


def file_digest(path: Path) -> str:
    """Return the digest of a file, as hexadecimal digits; empty if it cannot be read."""
    try:
        found = path.stat()
        return _file_digest(path, found.st_ino, found.st_mtime_ns, found.st_size)
    except OSError:
        return ""


@lru_cache(maxsize=256)
def _file_digest(path: Path, *_state: int) -> str:
    digest = blake2b(digest_size=16)
    with path.open("rb") as file:
        while part := file.read(2**20):
            digest.update(part)
    return digest.hexdigest()


def _state(path: Path, number: int, used: list[int]) -> str:
    if (path / RETIRED).is_file():
        return IS_RETIRED
    if number in used:
        return CURRENT if number == used[-1] else EARLIER
    if (path / MANIFEST).is_file():
        return TAKEN_BACK
    running = is_locked(path / TRAINING_LOCK) or is_running(read_json(path / SUMMARY))
    return IN_TRAINING if running else ABORTED


def _end(state: str, summary: dict[str, Any]) -> str:
    """Tell how the training of an aborted head ended."""
    if state != ABORTED:
        return ""
    if summary.get("state") == "failed":
        return str(summary.get("problem") or "failed")
    return "stopped" if summary.get("state") == "stopped" else "its process was killed"


def _released_to(folder: Path, run: str) -> dict[str, str]:
    """Return the parties whose newest release is of a run, and whether they have received it."""
    return {
        party: "delivered" if each.get("delivered") else "waiting"
        for party, each in read_json(folder / RELEASES).items()
        if each.get("run") == run and not each.get("revoked")
    }


def _upload_problems(folder: Path, party: str, about: dict[str, Any]) -> list[str]:
    """Tell why the upload that a head was trained on may not be used any more."""
    problems, uploads, terms = list[str](), folder / f"uploads/{party}", about.get("terms", {})
    record = read_json(uploads / "withdrawn.json")
    if (uploads / "withdrawn.json").is_file() and not record:
        problems.append(f"the withdrawals of {party} cannot be read")
    expires = terms.get("expires") or ""
    if is_withdrawn(record, about["version"]):
        problems.append(f"{party} withdrew version {about['version']}, or its terms have ended")
    elif expires and expires < datetime.now(UTC).date().isoformat():
        problems.append(f"the terms of the upload of {party} ended on {expires}")
    elif rows := _rows_withdrawn_since(record, about):
        problems.append(f"{party} has withdrawn {rows} rows since")
    if (uploads / "revoked.json").is_file() and not terms.get("keep_after_revocation"):
        problems.append(f"the certificate of {party} is revoked")
    return problems


def _withdrawn_since(folder: Path, encoders: dict[str, Any]) -> dict[str, int]:
    """Count the rows that a head was trained on and that were withdrawn since, by party."""
    found = {}
    for name, about in encoders.items():
        record = read_json(folder / f"uploads/{name}/withdrawn.json")
        if rows := _rows_withdrawn_since(record, about):
            found[name] = rows
    return found


def _rows_withdrawn_since(record: dict[str, Any], about: dict[str, Any]) -> int:
    rows, before = about.get("rows", 0), about.get("withdrawn", 0)
    if is_withdrawn(record, about["version"]):
        return int(max(rows - before, 0))
    # Rows are listed in the order of withdrawal: the training left out the first ones.
    listed = record.get("rows", {}).get(about.get("session"), [])
    return int(max(sum(row < rows for row in listed) - before, 0))


def is_withdrawn(record: dict[str, Any], version: int) -> bool:
    """Return whether the record of a party's withdrawals covers a version."""
    return version <= record.get("until", 0) or version in record.get("versions", [])
