"""Decide requests for the consent of a party's operator, and carry them out."""

from collections.abc import Callable

from xvfl.model.run_dir import RunDir
from xvfl.service.matched_table import SESSIONS
from xvfl.service.prediction.party_prediction import PREDICTION
from xvfl.service.uploads.party_encoder import allow_new_rows, allow_next_version
from xvfl.system.event_log import LogFunction
from xvfl.trail.approvals import Approvals, Request

ALLOW: dict[str, Callable[[RunDir], str]] = {
    "new-version": lambda folder: str(allow_next_version(folder)),
    "new-upload": lambda folder: str(allow_next_version(folder, keep_encoder=True)),
    "new-rows": allow_new_rows,
}
"""Carry out an approval; that of a match is read by the next matching."""
FOLDERS = {"match": ".", "match-prediction": PREDICTION}
"""Folders of the sessions that count against a coordinator until matching is allowed again."""


def decide(folder: RunDir, log: LogFunction, number: int, by: str, approve: bool) -> Request:
    """Approve or reject a request in a party's state folder, and carry it out."""
    approvals = Approvals(folder.path, log)
    request = approvals.find(number)
    if approve and request.kind in ALLOW:
        # An error leaves the request pending.
        version = ALLOW[request.kind](folder)
        decided = approvals.decide(number, by, approve)
        approvals.use(request.kind)
        log({"event": "version_allowed", "version": version, "by": by})
        return decided
    if approve:
        (folder / FOLDERS[request.kind] / SESSIONS).unlink(missing_ok=True)
    return approvals.decide(number, by, approve)
