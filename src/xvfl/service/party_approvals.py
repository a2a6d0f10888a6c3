"""Requests for consent: the coordinator asks, a party's operator decides."""

from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack

from xvfl.errors import InputError, PartyError, unknown
from xvfl.federation.remote_party import RemoteParty, request_all
from xvfl.model.run_dir import RunDir
from xvfl.service.align import wait_for_party
from xvfl.service.config import CoordinatorConfig
from xvfl.service.coordinator import open_connections
from xvfl.service.matched_table import SESSIONS
from xvfl.service.prediction.party_prediction import PREDICTION
from xvfl.service.uploads.party_encoder import allow_new_rows, allow_next_version
from xvfl.system.event_log import LogFunction
from xvfl.trail.approvals import Approvals, Request
from xvfl.wire.messages import AskApproval, Done
from xvfl.wire.request_ids import next_request_id

ALLOW: dict[str, Callable[[RunDir], str]] = {
    "new-version": lambda folder: str(allow_next_version(folder)),
    "new-upload": lambda folder: str(allow_next_version(folder, keep_encoder=True)),
    "new-rows": allow_new_rows,
}
"""Carry out an approval; matching looks for its own."""
FOLDERS = {"match": ".", "match-prediction": PREDICTION}
"""Folders of the sessions that count against a coordinator until matching is allowed again."""


def decide(folder: RunDir, log: LogFunction, number: int, by: str, approve: bool) -> Request:
    """Approve or reject a request in a party's state folder, and carry it out."""
    approvals = Approvals(folder.path, log)
    request = approvals.find(number)
    if approve and request.kind in ALLOW:
        # An error leaves the request pending.
        version = ALLOW[request.kind](folder)
        approvals.decide(number, by, approve)
        approvals.use(request.kind)
        log({"event": "version_allowed", "version": version})
        return request
    if approve:
        (folder / FOLDERS[request.kind] / SESSIONS).unlink(missing_ok=True)
    return approvals.decide(number, by, approve)


def ask_parties(
    config: CoordinatorConfig,
    names: Sequence[str],
    kind: str,
    reason: str,
    timeout: float,
    log: LogFunction,
) -> Iterator[str]:
    """Ask the operators of parties; yield the name of each one that has the request."""
    if kind not in ALLOW:
        raise InputError(f"KIND: {unknown('request', kind, ALLOW)}")
    for name in names:
        if name not in config.parties:
            raise InputError(f"--party: {unknown('party', name, config.parties)}")
    with ExitStack() as stack:
        transports, _ = open_connections(config, log, {}, stack)
        for name in names:
            wait_for_party(name, transports[name], timeout)
            request = AskApproval(next_request_id(), kind, reason)
            try:
                request_all([RemoteParty(name, transports[name])], [request], Done)
            except PartyError as error:
                raise PartyError(f"{name}: {error}", (name,), error.fault) from error
            yield name
