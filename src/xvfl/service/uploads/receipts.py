"""Receipts of withdrawals: the coordinator signs what it has deleted, the party verifies it.

receipts/DIGEST.json    in the party's state folder: the statement and its signature
"""

import json
from collections.abc import Mapping
from dataclasses import replace
from hashlib import blake2b
from pathlib import Path
from typing import Any

from cryptography.exceptions import InvalidSignature
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

from xvfl.errors import RunError, WireError
from xvfl.model.run_dir import RunDir
from xvfl.service.release import load_public_key
from xvfl.upload.manifest import DIGEST
from xvfl.wire import codec
from xvfl.wire.messages import Receipt, Withdraw

FIELDS = {
    "party": str,
    "request": str,
    "rows": int,
    "version": int,
    "everything": bool,
    "heads": list,
    "time": str,
}
MAX_BYTES = 2**21
"""Bytes of the largest file of a receipt."""


def request_digest(message: Withdraw) -> str:
    """Identify a withdrawal: the same one has the same digest, whenever and however it is sent."""
    return blake2b(codec.encode(replace(message, request_id=0)), digest_size=16).hexdigest()


def sign_receipt(key: Ed25519PrivateKey, request_id: int, statement: Mapping[str, Any]) -> Receipt:
    """Sign what was deleted."""
    text = json.dumps(statement)
    return Receipt(request_id, text, key.sign(_signed_bytes(text)))


def verify_receipt(receipt: Receipt, public_key: Path | None) -> dict[str, Any]:
    """Check the signature of a receipt and return its statement."""
    public = load_public_key(public_key, "receipt")
    try:
        public.verify(receipt.signature, _signed_bytes(receipt.statement))
    except InvalidSignature as error:
        raise WireError(
            "receipt: the signature is invalid; it was changed, or `release_key` belongs to "
            "another coordinator"
        ) from error
    return _parse(receipt.statement)


def store_receipt(
    folder: RunDir, party: str, receipt: Receipt, public_key: Path | None, request: str = ""
) -> dict[str, Any]:
    """Verify a receipt and store it in the party's folder; return its statement.

    `request` is the digest of the withdrawal, if it is known. Without a key, the receipt is stored
    and not verified.
    """
    statement = _parse(receipt.statement)
    if public_key is not None:
        verify_receipt(receipt, public_key)
    if statement["party"] != party or request not in ("", statement["request"]):
        raise WireError(f"receipt: expected one of party {party!r} for this withdrawal")
    folder.write_bytes(f"receipts/{statement['request']}.json", receipt_to_json(receipt))
    return statement


def receipt_to_json(receipt: Receipt) -> bytes:
    """Write a receipt as a file."""
    content = {"statement": receipt.statement, "signature": receipt.signature.hex()}
    return json.dumps(content, indent=1).encode()


def read_receipt(path: Path) -> Receipt:
    """Read a receipt from a file; its signature is not checked."""
    try:
        with path.open("rb") as file:
            content = json.loads(file.read(MAX_BYTES))
        return Receipt(0, str(content["statement"]), bytes.fromhex(content["signature"]))
    except OSError as error:
        raise RunError(f"{path}: cannot be read ({error.strerror}); check the path") from error
    except (ValueError, KeyError, TypeError, RecursionError) as error:
        raise RunError(f"{path}: not a receipt, or damaged") from error


def _parse(text: str) -> dict[str, Any]:
    """Check the statement of a receipt: its texts are printed, its digest names a file."""
    try:
        statement: dict[str, Any] = json.loads(text)
        valid = all(isinstance(statement[key], kind) for key, kind in FIELDS.items())
        runs = [str(head["run"]) for head in statement["heads"]]
    except (ValueError, KeyError, TypeError, RecursionError) as error:
        raise WireError("receipt: expected a statement of what was deleted") from error
    if not valid or DIGEST.fullmatch(statement["request"]) is None:
        raise WireError("receipt: its statement is invalid")
    return {**statement, "runs": runs}


def _signed_bytes(statement: str) -> bytes:
    return codec.encode(Receipt(0, statement, b""))
