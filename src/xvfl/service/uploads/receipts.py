"""Receipts of withdrawals: the coordinator signs what it has deleted, the party verifies it.

receipts/DIGEST.receipt    in the party's state folder: the signed message
"""

import json
from collections.abc import Mapping
from dataclasses import replace
from hashlib import blake2b
from pathlib import Path
from typing import Any

from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

from xvfl.errors import RunError, WireError
from xvfl.federation.upload.manifest import DIGEST
from xvfl.model.run_dir import RunDir
from xvfl.service.release import verify_release
from xvfl.system.printable import one_line
from xvfl.wire import codec
from xvfl.wire.messages import Receipt, Withdraw
from xvfl.wire.texts import MAX_NAME

MAX_BYTES = 2**21
"""Bytes of the largest receipt."""
MAX_RUNS = 100
"""Heads that are shown; the receipt itself has all."""
FIELDS = ("party", "request", "rows", "version", "everything", "heads", "time")


def request_digest(message: Withdraw) -> str:
    """Identify a withdrawal: the same one has the same digest, whenever and however it is sent."""
    return blake2b(codec.encode(replace(message, request_id=0)), digest_size=16).hexdigest()


def sign_receipt(key: Ed25519PrivateKey, statement: Mapping[str, Any]) -> Receipt:
    """Sign what was deleted."""
    message = Receipt(0, json.dumps(statement), b"")
    return replace(message, signature=key.sign(codec.encode(message)))


def read_receipt(path: Path) -> Receipt:
    """Read a receipt from a file; its signature is not checked."""
    try:
        with path.open("rb") as file:
            message = codec.decode(file.read(MAX_BYTES + 1), MAX_BYTES)
    except (OSError, WireError) as error:
        raise RunError(f"{path}: not a receipt, or damaged ({error})") from error
    if not isinstance(message, Receipt):
        raise RunError(f"{path}: expected a receipt, got {type(message).__name__}")
    return message


def store_receipt(
    folder: RunDir, party: str, receipt: Receipt, public_key: Path | None, request: str = ""
) -> dict[str, Any]:
    """Verify a receipt and store it in the party's folder; return its statement.

    `request` is the digest of the withdrawal, if it is known. Without a key, the receipt is stored
    and not verified.
    """
    statement = _parse(receipt.manifest)
    if public_key is not None:
        verify_release(receipt, public_key)
    if statement["party"] != party or request not in ("", statement["request"]):
        raise WireError(f"Receipt: expected one of party {party!r} for this withdrawal")
    folder.write_bytes(f"receipts/{statement['request']}.receipt", codec.encode(receipt))
    return statement


def _parse(text: str) -> dict[str, Any]:
    """Check the statement of a receipt: its digest names a file."""
    try:
        given = json.loads(text)
        statement = {key: given[key] for key in FIELDS}
        statement["time"] = one_line(str(given["time"]), MAX_NAME)
        statement.update({key: int(given[key]) for key in ("rows", "version")})
        runs = [one_line(str(head["run"]), MAX_NAME) for head in given["heads"]]
        statement["runs"] = runs[:MAX_RUNS]
        valid = DIGEST.fullmatch(given["request"]) is not None
    except (ValueError, KeyError, TypeError, OverflowError, RecursionError) as error:
        raise WireError("Receipt: expected a statement of what was deleted") from error
    if not valid:
        raise WireError("Receipt: expected the digest of a withdrawal")
    return statement
