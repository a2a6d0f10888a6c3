"""The outcome of a run: who took part, who is missing at the end, and who was told.

Parties that are offline when a run finishes receive the outcome when they come back: while the
coordinator waits for them, or when it is started again in the same state folder.
"""

import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from threading import Event
from typing import Any

from xvfl.federation.elastic import ElasticFederation
from xvfl.federation.membership import EXCLUDED, Contribution
from xvfl.model.evaluation import Evaluation
from xvfl.service.log import FINISHED, LogFunction

POLL_S = 0.1


@dataclass(frozen=True)
class RunOutcome:
    """How a run ended."""

    step: int
    """The last training step."""
    evaluation: Evaluation | None = None
    """None if the run was stopped before it finished."""
    absent: Mapping[str, str] = field(default_factory=dict)
    """Parties that did not take part until the end, and why."""
    uninformed: tuple[str, ...] = ()
    """Parties that have not received the outcome yet."""
    privacy: str = ""
    """Statement on differential privacy, if the run has any."""

    def describe_absent(self) -> str:
        """Describe who did not take part until the end, in one line."""
        each = (f"{name} ({reason})" for name, reason in self.absent.items())
        text = f"finished without {', '.join(each)}"
        if self.uninformed:
            text += f"; not yet informed: {', '.join(self.uninformed)}"
        return text


def participation(federation: ElasticFederation) -> dict[str, dict[str, int]]:
    """Return in how many training batches each party took part, and with how many rows.

    A batch counts if the party has applied its update.
    """
    return {
        member.party.name: {
            "batches": member.batches,
            "of_batches": federation.batches,
            "rows": member.trained_rows,
        }
        for member in federation.members
    }


def save_participation(federation: ElasticFederation) -> dict[str, Any]:
    """Return what `restore_participation` needs; present parties will apply the last update."""
    update = federation.counters.update
    return {
        member.party.name: {
            "of_batches": federation.batches,
            "last_update": update if member.present else member.party.last_update,
            "contributions": member.contributions,
        }
        for member in federation.members
    }


def restore_participation(federation: ElasticFederation, saved: Mapping[str, Any]) -> None:
    """Restore what `save_participation` returned."""
    for member in federation.members:
        counts = saved[member.party.name]
        # Version 0.3.0 saved sums.
        sums = [(0, counts.get("batches", 0), counts.get("rows", 0))]
        member.contributions = [Contribution(*each) for each in counts.get("contributions", sums)]
        member.party.last_update = counts.get("last_update", 0)
        federation.batches = counts["of_batches"]


def restore_exclusions(federation: ElasticFederation, absent: Mapping[str, str]) -> None:
    """Exclude the parties again that a finished run had excluded."""
    for member in federation.members:
        reason = absent.get(member.party.name, "")
        if reason.startswith(EXCLUDED):
            member.exclusion_reason = reason.removeprefix(EXCLUDED)


def absent_parties(federation: ElasticFederation) -> dict[str, str]:
    """Return the parties that are not present, and why."""
    return {
        member.party.name: member.absence
        for member in federation.members
        if member.absence is not None
    }


def uninformed_parties(federation: ElasticFederation) -> tuple[str, ...]:
    """Return the parties that have not confirmed the end of the run."""
    return tuple(member.party.name for member in federation.members if not member.informed)


def deliver_outcome(
    federation: ElasticFederation,
    waiting: tuple[str, ...],
    release: Callable[[list[str]], None],
    timeout: float,
    stop: Event,
    log: LogFunction,
) -> tuple[str, ...]:
    """Wait for parties to come back; send each its head, if it gets one, and the end.

    Return the parties that were not informed in time.
    """
    deadline = time.monotonic() + timeout
    if waiting:
        log({"event": "waiting_for_absent", "parties": list(waiting), "seconds": timeout})
    while waiting and time.monotonic() < deadline and not stop.is_set():
        federation.wait_for(0)
        members = [federation.members[i] for i in federation.present]
        back = [m.party.name for m in members if m.party.name in waiting and not m.informed]
        if back:
            release(back)
            federation.end(FINISHED)
        left = tuple(name for name in waiting if name in uninformed_parties(federation))
        for name in waiting:
            if name not in left:
                log({"event": "outcome_delivered", "party": name})
        waiting = left
        stop.wait(POLL_S if waiting else 0)
    return waiting
