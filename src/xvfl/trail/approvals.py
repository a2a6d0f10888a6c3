"""What waits for the consent of a side's operator, in `approvals.json` of its state folder.

A process asks and goes on without; `xvfl approve` decides, and the process sees the decision. Both
are events of the log and entries of the trail.
"""

import json
from dataclasses import asdict, dataclass, replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Literal

from xvfl.errors import InputError, RunError
from xvfl.system.event_log import LogFunction
from xvfl.system.files import atomic_write
from xvfl.system.locks import file_lock

APPROVALS, LOCK = "approvals.json", "approvals.lock"
Kind = Literal["match", "match-prediction", "new-version", "new-upload", "new-rows"]
KINDS: dict[str, str] = {
    "match": "match the ids of the training table again",
    "match-prediction": "match the ids of the prediction table again",
    "new-version": "train the next version of the encoder, and upload with it",
    "new-upload": "upload all rows once more, with the same encoder",
    "new-rows": "upload new and changed rows, with the same encoder",
}
"""What each kind of request allows."""
PENDING, APPROVED, REJECTED, USED = "pending", "approved", "rejected", "used"
MAX_KEPT = 100
"""Requests in the file; the oldest ones that are decided are dropped."""


class NeedsApproval(RunError):
    """A party waits for the consent of its operator."""

    def __init__(self, kind: Kind, reason: str) -> None:
        super().__init__(f"{reason}; it waits for `xvfl approve`")
        self.kind, self.reason = kind, reason


@dataclass(frozen=True)
class Request:
    """A request for the consent of an operator."""

    number: int
    kind: str
    reason: str
    asked: str
    """ISO 8601, UTC."""
    state: str = PENDING
    decided: str = ""
    by: str = ""
    """Who decided."""


class Approvals:
    """The requests in a state folder.

    Parameters
    ----------
    folder : Path
        The state folder.
    log : callable
        Receives an event for each request and each decision.
    """

    def __init__(self, folder: Path, log: LogFunction = lambda event: None) -> None:
        self._folder, self._log = folder, log

    def all(self) -> list[Request]:
        """Return all requests, the oldest first."""
        path = self._folder / APPROVALS
        try:
            return [Request(**each) for each in json.loads(path.read_text(encoding="utf-8"))]
        except FileNotFoundError:
            return []
        except (OSError, ValueError, TypeError) as error:
            raise RunError(f"{path}: cannot be read ({error}); move it away") from error

    def pending(self) -> list[Request]:
        """Return the requests that wait."""
        return [each for each in self.all() if each.state == PENDING]

    def ask(self, kind: Kind, reason: str) -> bool:
        """Ask for consent, unless a request of this kind waits, or was rejected today.

        Returns whether this is a new request.
        """
        today = _now()[:10]
        with file_lock(self._folder / LOCK):
            known = self.all()
            of_kind = [each for each in known if each.kind == kind]
            if any(
                each.state in (PENDING, APPROVED)
                or (each.state == REJECTED and each.decided[:10] == today)
                for each in of_kind
            ):
                return False
            request = Request(1 + max((e.number for e in known), default=0), kind, reason, _now())
            self._save([*known, request])
        self._log({"event": "approval_requested", **_facts(request)})
        return True

    def decide(self, number: int, by: str, approve: bool) -> Request:
        """Approve or reject a request that waits."""
        with file_lock(self._folder / LOCK):
            known, found = self.all(), self.find(number)
            decided = replace(found, state=APPROVED if approve else REJECTED, decided=_now(), by=by)
            self._save([decided if each == found else each for each in known])
        event = "request_approved" if approve else "request_declined"
        self._log({"event": event, **_facts(decided), "by": by})
        return decided

    def find(self, number: int) -> Request:
        """Return a request that waits; raise `InputError` for another number."""
        waiting = self.pending()
        for each in waiting:
            if each.number == number:
                return each
        numbers = ", ".join(str(each.number) for each in waiting) or "none"
        raise InputError(f"{number}: expected a request that waits; these do: {numbers}")

    def granted(self, kind: Kind) -> bool:
        """Return whether a request of this kind is approved and not used yet."""
        return any(each.kind == kind and each.state == APPROVED for each in self.all())

    def use(self, kind: str) -> None:
        """Record that what was approved is done."""
        with file_lock(self._folder / LOCK):
            known = self.all()
            done = [
                replace(each, state=USED) if each.kind == kind and each.state == APPROVED else each
                for each in known
            ]
            if done != known:
                self._save(done)

    def _save(self, requests: list[Request]) -> None:
        decided = [each for each in requests if each.state in (REJECTED, USED)]
        dropped = decided[: max(len(requests) - MAX_KEPT, 0)]
        kept = [asdict(each) for each in requests if each not in dropped]
        path = self._folder / APPROVALS
        try:
            with atomic_write(path) as temporary:
                temporary.write_text(json.dumps(kept, indent=1), encoding="utf-8")
        except OSError as error:
            raise RunError(f"{path}: cannot be written ({error.strerror})") from error


def _facts(request: Request) -> dict[str, object]:
    return {"number": request.number, "kind": request.kind, "reason": request.reason}


def _now() -> str:
    return datetime.now(UTC).isoformat(timespec="seconds")
