"""The coordinator deletes what parties withdraw, and stops using what it may not use any more.

Rows are overwritten with zeros, versions are deleted; withdrawn.json records which, so that they
are not stored again. Checkpoints and heads contain no rows, but were trained on them: an unfinished
training starts again; the receipt lists finished heads that were trained on what the party has
withdrawn so far.
"""

import json
import threading
from collections.abc import Mapping
from dataclasses import replace
from datetime import UTC, datetime
from typing import Any

import torch

from xvfl.certs import PeerVerifier
from xvfl.errors import RunError, WireError, XVFLError
from xvfl.matching import load_coordinator_alignment
from xvfl.model.run_dir import CHECKPOINT, MANIFEST, RunDir
from xvfl.service.config import ALIGNMENT
from xvfl.service.release import load_signing_key
from xvfl.service.uploads.upload_store import REVOKED, party_folder, stored_uploads
from xvfl.service.uploads.withdrawn import NO_ROWS, Withdrawn, request_digest
from xvfl.system.event_log import LogFunction
from xvfl.wire import codec
from xvfl.wire.messages import Receipt, Withdraw

CERTIFICATE_LOCK = threading.Lock()


def withdraw(
    folder: RunDir, signing_key: str | None, party: str, message: Withdraw, log: LogFunction
) -> Receipt:
    """Delete what a party withdraws, and return the signed receipt.

    Parameters
    ----------
    folder
        State folder of the coordinator.
    signing_key
        Path of the key that signs releases; None for the one in the state folder.
    party
        Name of the party, as authenticated.
    message
        The request.
    log
        Receives a log event.
    """
    _check(folder, party, message)
    withdrawn = Withdrawn(party_folder(folder, party))
    with withdrawn.locked():
        before, stored = withdrawn.state, stored_uploads(folder, party)
        withdrawn.add(message)
        deleted = _delete(folder, party)
    if stored and withdrawn.state != before:
        _drop_checkpoints(folder)
    statement = {
        "party": party,
        "request": request_digest(message),
        "session": message.session,
        "version": message.version,
        "everything": message.everything,
        "rows": len(message.handles),
        "deleted_versions": deleted,
        "heads": _trained_heads(folder, party),
        "time": datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%SZ"),
    }
    log({"event": "withdrawn", **{k: v for k, v in statement.items() if k != "session"}})
    receipt, key = Receipt(0, json.dumps(statement), b""), load_signing_key(folder, signing_key)
    signature = key.sign(codec.encode(receipt))
    return replace(receipt, request_id=message.request_id, signature=signature)


def _trained_heads(folder: RunDir, party: str) -> list[dict[str, Any]]:
    """List the heads that were trained on what a party has withdrawn."""
    found, withdrawn = [], Withdrawn(party_folder(folder, party))
    for head in _head_folders(folder):
        manifest = head.read_json(MANIFEST) if head.has(MANIFEST) else {}
        about = manifest.get("encoders", {}).get(party)
        if about is not None and _withdrawn_since(withdrawn, about):
            version, upload = about["version"], about["digest"]
            found.append({"run": manifest["run"], "version": version, "upload": upload})
    return found


def _withdrawn_since(withdrawn: Withdrawn, about: Mapping[str, Any]) -> str:
    """Tell what was withdrawn of an upload since a head was trained on it; empty if nothing."""
    if withdrawn.covers(about["version"]):
        return f"withdrew version {about['version']}, or its terms have ended"
    # Rows are listed in the order of withdrawal: the training left out the first ones.
    n_rows = len(withdrawn.rows(about["session"])) - about["withdrawn"]
    return f"has withdrawn {n_rows} rows since" if n_rows > 0 else ""


def enforce_terms(folder: RunDir, peers: PeerVerifier, log: LogFunction) -> None:
    """Delete expired uploads, finish interrupted withdrawals, record which parties are revoked.

    `find_upload` returns no upload that may not be used; `UploadStore.problem` tells for one that
    is open. An error with one party is logged, and does not protect the uploads of the others.
    """
    for path in sorted((folder / "uploads").glob("*/")):
        try:
            _enforce(folder, path.name, peers, log)
        except Exception as error:
            reason = str(error) if isinstance(error, XVFLError) else repr(error)
            log({"event": "terms_not_enforced", "party": path.name, "reason": reason})


def _enforce(folder: RunDir, party: str, peers: PeerVerifier, log: LogFunction) -> None:
    uploads = party_folder(folder, party)
    withdrawn = Withdrawn(uploads)
    with withdrawn.locked():
        for store in stored_uploads(folder, party):
            if store.expired:
                version = store.manifest.version
                withdrawn.add(Withdraw(0, "", version, False, NO_ROWS))
                event = {"event": "upload_expired", "party": party, "version": version}
                log({**event, "reason": f"its terms ended on {store.manifest.terms.expires}"})
                _drop_checkpoints(folder)
        _delete(folder, party)
    known = folder / f"peers/{party}.pem"
    revoked = known.is_file() and peers.is_revoked(known.read_bytes())
    if revoked and not uploads.has(REVOKED):
        reason = "its certificate is revoked; its uploads are not used from now on"
        log({"event": "upload_suspended", "party": party, "reason": reason})
        uploads.write_json(REVOKED, {"reason": reason})
    elif not revoked and uploads.has(REVOKED):
        (uploads / REVOKED).unlink()
        log({"event": "upload_resumed", "party": party})


def remember_certificate(folder: RunDir, party: str, certificate: bytes, log: LogFunction) -> None:
    """Keep the newest certificate of a party, to look it up in revocation lists later."""
    name = f"peers/{party}.pem"
    with CERTIFICATE_LOCK:
        if folder.has(name) and (folder / name).read_bytes() == certificate:
            return
        try:
            folder.write_bytes(name, certificate)
        except RunError as error:
            log({"event": "certificate_not_kept", "party": party, "reason": str(error)})


def _check(folder: RunDir, party: str, message: Withdraw) -> None:
    """Reject a withdrawal that names nothing, or rows of an unknown alignment."""
    handles, version = message.handles, message.version
    valid = handles.dtype == torch.int32 and handles.dim() == 1 and 0 <= version <= 2**31
    if not valid or bool(version) == bool(len(handles)) or (message.everything and not version):
        raise WireError("Withdraw: expected either handles (n,) int32 or a version from 1")
    if version:
        return
    sessions = {each.manifest.session: each.manifest.rows for each in stored_uploads(folder, party)}
    if message.session not in sessions and (folder / ALIGNMENT).is_file():
        match = load_coordinator_alignment(folder / ALIGNMENT).matches.get(party)
        if match is not None:
            sessions[match.session.hex()] = int((match.handles >= 0).sum())
    rows = sessions.get(message.session)
    if rows is None:
        raise WireError(
            f"Withdraw: expected the current alignment or one with a stored upload, got "
            f"{message.session!r}; withdraw a version, or everything"
        )
    if int(handles.min()) < 0 or int(handles.max()) >= rows:
        raise WireError(f"Withdraw: expected handles from 0 to {rows - 1}")


def _delete(folder: RunDir, party: str) -> list[int]:
    """Delete what is recorded as withdrawn; return the versions that were deleted as a whole."""
    deleted, withdrawn = [], Withdrawn(party_folder(folder, party))
    for store in stored_uploads(folder, party):
        if withdrawn.covers(store.manifest.version):
            store.delete()
            deleted.append(store.manifest.version)
        else:
            store.erase()
    return sorted(deleted)


def _drop_checkpoints(folder: RunDir) -> None:
    """Delete the checkpoints of unfinished heads: they were trained on what is deleted."""
    for head in _head_folders(folder):
        if not head.has(MANIFEST):
            (head / CHECKPOINT).unlink(missing_ok=True)


def _head_folders(folder: RunDir) -> list[RunDir]:
    """Return the folders of all heads, finished or not."""
    return [RunDir(path) for path in sorted(folder.path.glob("heads/*/"))]
