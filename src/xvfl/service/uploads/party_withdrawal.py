"""A party withdraws rows, a version of its upload, or everything.

The withdrawal is recorded in the party's own folder first: the party does not upload these rows or
versions again, and later versions of its encoder do not learn from these rows.

withdrawn.json        handles of withdrawn rows by alignment, and withdrawn versions
withdrawn_ids.json    digests of the ids of withdrawn rows, keyed with the party's secret: a new
                      alignment gives them other handles
receipts/DIGEST.receipt    the coordinator's signed statement of what it has deleted
"""

import json
from collections.abc import Iterator, Sequence
from hashlib import blake2b
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from xvfl.certs import PeerVerifier
from xvfl.certs.proof import proof_checker
from xvfl.errors import InputError, RunError, WireError
from xvfl.federation.upload.manifest import DIGEST
from xvfl.matching.normalize import RULES, normalize_ids
from xvfl.model.run_dir import CHECKPOINT, RunDir
from xvfl.service.config import PartyProcessConfig
from xvfl.service.matched_table import MatchedTable, load_matched_table
from xvfl.service.party_inputs import PartyInputs
from xvfl.service.release import verify_release
from xvfl.service.secret import load_secret
from xvfl.service.uploads.party_encoder import ENCODER, current_version, is_trained
from xvfl.service.uploads.withdrawn import NO_ROWS, Withdrawn
from xvfl.system.printable import one_line
from xvfl.wire import codec
from xvfl.wire.client import call_coordinator
from xvfl.wire.messages import ErrorReply, Receipt, Withdraw
from xvfl.wire.texts import MAX_NAME

IDS = "withdrawn_ids.json"
MAX_ROWS = 200_000
"""Rows of a request; a larger withdrawal takes several."""
TIMEOUT_S = 15.0
MAX_BYTES = 2**21
"""Bytes of the largest receipt."""
MAX_RUNS = 100
"""Heads that are shown; the receipt itself has all."""


def withdraw_rows(inputs: PartyInputs, ids: Sequence[str]) -> Withdraw | None:
    """Record the withdrawal of rows by their ids; return it with all rows withdrawn so far.

    The table must be the one whose ids were matched: delete the rows from it afterwards. Ids that
    are not in the table are an error. Return None if none of the rows was matched: such rows are
    never uploaded.
    """
    folder, rule, table = inputs.folder, inputs.config.matching.rule, load_matched_table(inputs)
    if table.match is None:
        raise RunError("ids are not matched yet, so no row was uploaded")
    given = {RULES[rule](each) for each in ids}
    if missing := given - set(normalize_ids(table.ids, rule, "table")):
        raise InputError(f"--ids: the table has no id {min(missing)!r}; nothing is withdrawn")
    key = load_secret(folder)
    digests = {*_withdrawn_ids(folder), *(_digest(each, key) for each in given)}
    folder.write_json(IDS, {"digests": sorted(digests)})
    return record_withdrawn_rows(inputs, table)


def record_withdrawn_rows(inputs: PartyInputs, table: MatchedTable) -> Withdraw | None:
    """Record which rows of the current alignment were withdrawn, now or in an earlier alignment."""
    if table.match is None:
        return None
    gone = find_withdrawn(inputs.folder, table.ids, inputs.config.matching.rule)
    handles = torch.from_numpy(np.flatnonzero(gone[table.match.rows])).int()
    if not len(handles):
        return None
    message = Withdraw(0, table.match.session.hex(), 0, False, handles)
    record_withdrawal(inputs.folder, message)
    return message


def find_withdrawn(folder: RunDir, ids: Sequence[str], rule: str) -> NDArray[np.bool_]:
    """Return which of these ids the party has withdrawn. (n,)"""
    digests, key = _withdrawn_ids(folder), load_secret(folder)
    if not digests:
        return np.zeros(len(ids), dtype=np.bool_)
    return np.array([_digest(each, key) in digests for each in normalize_ids(ids, rule, "table")])


def withdraw_version(folder: RunDir, version: int | None = None) -> Withdraw:
    """Return the withdrawal of a version, or of everything that was uploaded so far."""
    newest = current_version(folder)
    if version is not None and not 1 <= version <= newest:
        raise InputError(f"--version: expected a version from 1 to {newest}, got {version}")
    return Withdraw(0, "", version or newest, version is None, NO_ROWS)


def record_withdrawal(folder: RunDir, message: Withdraw) -> None:
    """Record a withdrawal at the party; discard an unfinished training that learned from rows."""
    withdrawn, version = Withdrawn(folder), current_version(folder)
    with withdrawn.locked():
        before = withdrawn.state
        withdrawn.add(message)
    if withdrawn.state != before and not is_trained(folder, version):
        for name in (CHECKPOINT, ENCODER):
            (folder / f"encoders/{version}/{name}").unlink(missing_ok=True)


def _withdrawn_ids(folder: RunDir) -> set[str]:
    return set(folder.read_json(IDS)["digests"]) if folder.has(IDS) else set()


def _digest(text: str, key: bytes) -> str:
    return blake2b(text.encode(errors="surrogatepass"), key=key, digest_size=16).hexdigest()


def split_request(message: Withdraw) -> Iterator[Withdraw]:
    """Split a withdrawal of many rows into requests that fit a message."""
    for handles in torch.split(message.handles, MAX_ROWS):
        yield Withdraw(0, message.session, message.version, message.everything, handles)


def send_withdrawal(config: PartyProcessConfig, message: Withdraw) -> Receipt:
    """Send a withdrawal to a running coordinator whose certificate is valid; return its receipt.

    Another process of this party may be connected at the same time.
    """
    address, tls = config.coordinator, config.tls
    check = proof_checker(tls, address, PeerVerifier(tls.ca_certificate, config.revocation_list))
    reply = call_coordinator(address, tls, message, TIMEOUT_S, check)
    if not isinstance(reply, Receipt):
        reason = reply.text if isinstance(reply, ErrorReply) else type(reply).__name__
        raise RunError(f"the coordinator rejected the withdrawal: {reason}")
    return reply


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
    folder: RunDir, party: str, receipt: Receipt, public_key: Path | str | None, request: str = ""
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
        runs = [one_line(str(head["run"]), MAX_NAME) for head in given["heads"]]
        statement = {key: given[key] for key in ("party", "request", "everything")}
        statement |= {key: int(given[key]) for key in ("rows", "version")}
        statement |= {"time": one_line(str(given["time"]), MAX_NAME), "runs": runs[:MAX_RUNS]}
        if DIGEST.fullmatch(given["request"]) is None:
            raise ValueError(given["request"])
    except (ValueError, KeyError, TypeError, OverflowError, RecursionError) as error:
        raise WireError("Receipt: expected a statement of what was deleted") from error
    return statement
