"""A party withdraws rows, a version of its upload, or everything.

The withdrawal is recorded in the party's own folder first: the party does not upload these rows or
versions again, and the next version of its encoder does not learn from these rows.
"""

from collections.abc import Iterator, Sequence
from pathlib import Path

import numpy as np
import torch

from xvfl.errors import InputError, RunError
from xvfl.matching.normalize import RULES, normalize_ids
from xvfl.model.run_dir import CHECKPOINT, RunDir
from xvfl.service.config import ALIGNMENT, PartyProcessConfig
from xvfl.service.matched_table import MatchedTable
from xvfl.service.party_inputs import PartyInputs
from xvfl.service.uploads.encoder_versions import current_version
from xvfl.service.uploads.party_encoder import ENCODER, is_trained
from xvfl.service.uploads.withdrawn import Withdrawn
from xvfl.wire.client import call_coordinator
from xvfl.wire.messages import ErrorReply, Receipt, Withdraw

NO_ROWS = torch.zeros(0, dtype=torch.int32)
MAX_ROWS = 200_000
"""Rows of a request; a larger withdrawal takes several."""
TIMEOUT_S = 15.0


def read_ids(path: Path) -> list[str]:
    """Read ids from a text file, one a line."""
    try:
        lines = path.read_text(encoding="utf-8-sig").splitlines()
    except (OSError, ValueError) as error:
        raise InputError(f"{path}: expected a text file with one id a line ({error})") from error
    return [line for line in lines if line.strip()]


def withdraw_rows(inputs: PartyInputs, ids: Sequence[str]) -> tuple[Withdraw | None, int]:
    """Return the withdrawal of rows by their ids, and how many of them the coordinator has.

    The table must be the one whose ids were matched: delete the rows from it afterwards. Ids that
    are not in the table are an error; those that were not matched were never uploaded.
    """
    rule = inputs.matching.rule
    table = MatchedTable(
        inputs.source, inputs.folder / ALIGNMENT, inputs.matching, lambda event: None, lambda: None
    )
    table.check(f"party {inputs.name!r}")
    if table.match is None:
        raise RunError("ids are not matched yet, so no row was uploaded")
    row_of = {each: row for row, each in enumerate(normalize_ids(table.ids, rule, "table"))}
    rows = [row_of.get(RULES[rule](each), -1) for each in ids]
    if -1 in rows:
        raise InputError(
            f"--ids: the table has no id {ids[rows.index(-1)]!r}; nothing is withdrawn"
        )
    handles = np.flatnonzero(np.isin(table.match.rows, rows))
    if not len(handles):
        return None, 0
    found = torch.from_numpy(handles).int()
    return Withdraw(0, table.match.session.hex(), 0, False, found), len(handles)


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
        withdrawn.add(message)
    if not is_trained(folder, version):
        for name in (CHECKPOINT, ENCODER):
            (folder / f"encoders/{version}/{name}").unlink(missing_ok=True)


def split_request(message: Withdraw) -> Iterator[Withdraw]:
    """Split a withdrawal of many rows into requests that fit a message."""
    for handles in torch.split(message.handles, MAX_ROWS):
        yield Withdraw(0, message.session, message.version, message.everything, handles)


def send_withdrawal(config: PartyProcessConfig, message: Withdraw) -> Receipt:
    """Send a withdrawal to the coordinator, which trains, predicts or listens; return its receipt.

    A process of this party may be connected meanwhile.
    """
    reply = call_coordinator(config.coordinator, config.tls, message, TIMEOUT_S)
    if isinstance(reply, ErrorReply):
        raise RunError(f"the coordinator rejected the withdrawal: {reply.text}")
    if not isinstance(reply, Receipt):
        raise RunError(f"expected a receipt of the coordinator, got {type(reply).__name__}")
    return reply
