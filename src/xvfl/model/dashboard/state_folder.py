"""Describe the state folder of a coordinator or party: uploads, heads, withdrawals, receipts.

A running process adds the description to its status; the dashboard shows it for folders. Numbers,
also those by party, become metrics.
"""

import json
from collections.abc import Iterable, Iterator
from dataclasses import asdict
from pathlib import Path
from typing import Any

from xvfl.errors import RunError, WireError
from xvfl.federation.upload.manifest import UploadManifest, parse_manifest
from xvfl.model.dashboard.json_files import MAX_FILE_BYTES, read_json, read_lines
from xvfl.model.registry.head_facts import (
    CURRENT,
    FINISHED_STATES,
    IN_TRAINING,
    is_withdrawn,
    list_heads,
)
from xvfl.system.event_log import LOG
from xvfl.trail.approvals import Approvals
from xvfl.wire import codec
from xvfl.wire.messages import Receipt

UPLOAD = "upload.json"
TRAINING, WAITING = "training a head", "waiting for uploads"
"""States of a coordinator."""
MAX_LISTED = 50
"""Heads, uploads and receipts that are listed, the newest ones."""
LEFT_EVENTS = {"upload_stored": "connection", "upload_exported": "file"}
"""Events in a party's log after which its upload has left it, and the way it took."""


def describe_coordinator(folder: Path, parties: Iterable[str] = ()) -> dict[str, Any]:
    """Describe the newest upload of each party, and the heads.

    Parties are those that are given, and those with a folder of uploads.
    """
    names = dict.fromkeys([*parties, *(path.name for path in sorted(folder.glob("uploads/*/")))])
    if not names:
        return {}
    heads = list_heads(folder, MAX_LISTED)
    current: dict[str, Any] = next((each for each in heads if each["state"] == CURRENT), {})
    training: dict[str, Any] = next((each for each in heads if each["state"] == IN_TRAINING), {})
    uploads = {name: _newest_upload(folder / "uploads" / name) for name in names}
    keys = dict.fromkeys(key for each in uploads.values() for key in each)
    trained = "finished" if current else WAITING
    return {
        "state": TRAINING if training.get("started") else trained,
        **{
            f"party_upload_{key}": {n: each[key] for n, each in uploads.items() if key in each}
            for key in keys
        },
        "party_upload_suspicious": current.get("suspicious", {}),
        "party_head_version": current.get("versions", {}),
        "heads": sum(each["state"] in FINISHED_STATES for each in heads),
        "head": current.get("number", 0),
        "head_digest": current.get("digest", ""),
        "head_in_training": training.get("number", 0),
        "head_in_training_progress": training.get("progress", 0.0),
        "details": {"heads": heads},
    }


def describe_approvals(folder: Path) -> dict[str, Any]:
    """Describe what waits for the consent of a party's operator."""
    try:
        waiting = [asdict(each) for each in Approvals(folder).pending()]
    except RunError as error:
        return {"approvals_pending": 0, "approvals_problem": str(error)}
    return {"approvals_pending": len(waiting), "approvals": waiting}


def describe_party(folder: Path) -> dict[str, Any]:
    """Describe which uploads left a party, what it has withdrawn, and its receipts.

    Empty for a party in interactive training.
    """
    if not (folder / "encoders").is_dir():
        return {}
    withdrawn, receipts = read_json(folder / "withdrawn.json"), list(_receipts(folder))
    left = {
        ((each.get("version"), each.get("part", 0)), LEFT_EVENTS[each["event"]]): each.get(
            "time", ""
        )
        for each in read_lines(folder / LOG)
        if each.get("event") in LEFT_EVENTS
    }
    uploads = [
        {
            **_about(manifest),
            "left": {way: time for (order, way), time in left.items() if order == manifest.order},
            "withdrawn": is_withdrawn(withdrawn, manifest.version),
        }
        for manifest in _manifests(folder / "encoders")
    ]
    return {
        "state": "uploaded" if any(each["left"] for each in uploads) else "not uploaded",
        "withdrawn_rows": sum(len(rows) for rows in withdrawn.get("rows", {}).values()),
        "receipts": len(receipts),
        "details": {"uploads": uploads[:MAX_LISTED], "receipts": receipts[:MAX_LISTED]},
    }


def _manifests(folder: Path) -> list[UploadManifest]:
    """Return the manifests in a folder, the newest version and part first."""
    found = []
    for path in folder.glob(f"*/{UPLOAD}"):
        try:
            manifest = parse_manifest(path.read_text(encoding="utf-8"))
        except (OSError, ValueError, WireError):
            continue
        found.append(manifest)
    return sorted(found, key=lambda each: each.order, reverse=True)


def _about(manifest: UploadManifest) -> dict[str, Any]:
    return {
        "version": manifest.version,
        "part": manifest.part,
        "rows": manifest.rows,
        "appended": manifest.appended,
        "replaced": manifest.replaced,
        "bytes": manifest.n_bytes,
        "created": manifest.created,
        "expires": manifest.terms.expires,
        "stand_in": int(manifest.terms.stand_in),
    }


def _newest_upload(folder: Path) -> dict[str, Any]:
    """Describe a party's newest upload; version 0 if there is none."""
    withdrawn, manifests = read_json(folder / "withdrawn.json"), _manifests(folder)
    deleted = {"deleted_version": newest} if (newest := _newest_withdrawn(withdrawn)) else {}
    if not manifests:
        return {"version": 0, **deleted}
    manifest = manifests[0]
    arrived = read_json(folder / f"{manifest.name}/chunks.json").get("arrived", [])
    revoked = (folder / "revoked.json").is_file()
    rows = withdrawn.get("rows", {}).get(manifest.session, [])
    return {
        **_about(manifest),
        "received": round(len(arrived) / len(manifest.chunks), 3) if manifest.chunks else 1.0,
        "withdrawn_rows": sum(row < manifest.rows for row in rows),
        "suspended": int(revoked and not manifest.terms.keep_after_revocation),
        **deleted,
    }


def _newest_withdrawn(record: dict[str, Any]) -> int:
    return int(max([record.get("until", 0), *record.get("versions", [])]))


def _receipts(folder: Path) -> Iterator[dict[str, Any]]:
    """Describe the receipts of withdrawals, the newest first."""
    found = []
    for path in folder.glob("receipts/*.receipt"):
        try:
            message = codec.decode(path.read_bytes(), MAX_FILE_BYTES)
            statement = json.loads(message.manifest) if isinstance(message, Receipt) else {}
            keys = ("time", "rows", "version", "everything")
            about = {key: statement[key] for key in keys}
            found.append({**about, "heads": [each["run"] for each in statement["heads"]]})
        except (OSError, ValueError, KeyError, TypeError, WireError):
            continue
    yield from sorted(found, key=lambda each: str(each["time"]), reverse=True)
