"""Begin an interactive run: all parties start together, from its first step or a checkpoint."""

import time
from collections.abc import Mapping
from dataclasses import dataclass, field

import torch
from torch import Tensor

from xvfl.errors import PartyError, RunError, WireError
from xvfl.federation.message_checks import check_ready
from xvfl.federation.remote_party import request_all
from xvfl.federation.split import SplitFederation
from xvfl.wire.limited_log import LogEvent
from xvfl.wire.messages import Begin, Ready

POLL_S = 0.02
"""Seconds between two checks whether all parties are connected."""


@dataclass(frozen=True)
class RunTerms:
    """What every party receives when a run begins, and what its reply must match."""

    run: str
    """Name of the run; the parties store their checkpoints under it."""
    settings: str
    """JSON of `RunSettings`."""
    training: Mapping[str, Tensor] = field(default_factory=dict)
    """Each party's handles of the training rows; see `Begin`."""
    rows: Mapping[str, int] = field(default_factory=dict)
    """Number of matched rows of each party, where it is known."""
    join_timeout: float = 600.0
    """Seconds to wait for all parties."""


def begin_run(
    federation: SplitFederation,
    terms: RunTerms,
    step: int = 0,
    update: int = 0,
    log_event: LogEvent = lambda event: None,
) -> dict[str, Tensor]:
    """Wait until all parties are connected and have loaded the checkpoint of a step.

    Parameters
    ----------
    federation
        All parties of the run.
    terms
        What the parties receive.
    step
        The step of a common checkpoint; 0 without one.
    update
        Number of the last update before the checkpoint.
    log_event
        Receives log events.

    Returns
    -------
    dict of str to Tensor
        The status of each party's rows; see `Ready`.

    Raises
    ------
    RunError
        If a party refuses to begin, or is not connected in time.
    """
    deadline = time.monotonic() + terms.join_timeout
    while True:
        offline = [each.name for each in federation.parties if each.transport.hello() is None]
        problem = f"these are offline: {', '.join(offline)}"
        if not offline:
            try:
                return _request_begin(federation, terms, step, update, log_event)
            except PartyError as error:
                problem = str(error)
                if any(each.fault != "away" for each in error.each):
                    raise RunError(f"{problem}; fix it and resume the run") from error
        if time.monotonic() > deadline:
            raise RunError(
                f"expected all parties, but after {terms.join_timeout:.0f} s {problem}; start "
                "them and resume the run"
            )
        time.sleep(POLL_S)


def _request_begin(
    federation: SplitFederation, terms: RunTerms, step: int, update: int, log_event: LogEvent
) -> dict[str, Tensor]:
    request_id = federation.start_at(update)
    requests = []
    for party in federation.parties:
        hello = party.transport.hello()
        party.instance_id = hello.instance_id if hello else ""
        training = terms.training.get(party.name, torch.zeros(0, dtype=torch.int32))
        requests.append(Begin(request_id, terms.run, step, terms.settings, training))
    replies, status = request_all(federation.parties, requests, Ready), {}
    for party, ready in zip(federation.parties, replies, strict=True):
        try:
            check_ready(ready, step, update, terms.rows.get(party.name))
        except WireError as error:
            raise PartyError(f"party {party.name!r}: {error}", (party.name,), "wrong") from error
        status[party.name] = ready.row_status
        log_event({"event": "party_joined", "party": party.name, "step": step})
    return status
