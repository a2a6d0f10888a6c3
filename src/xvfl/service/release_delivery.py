"""Sign releases and deliver them: at the end of a run, or at any time by `xvfl release`."""

import errno
import time
from collections.abc import Sequence
from contextlib import suppress
from threading import Event

from xvfl.errors import PartyError, RunError, XVFLError, unknown
from xvfl.federation.remote_party import RemoteParty, request_all
from xvfl.model.registry import head_problems
from xvfl.model.run_dir import RunDir
from xvfl.service.config import CoordinatorConfig
from xvfl.service.head_store import HeadStore
from xvfl.service.listener import listen
from xvfl.service.party_inputs import local_party_config
from xvfl.service.party_release import PartyFolder
from xvfl.service.release import check_releasable
from xvfl.service.release_store import ReleaseStore
from xvfl.service.trained_heads import load_trained_heads
from xvfl.system.event_log import FINISHED, LogFunction
from xvfl.wire.messages import Done, End, Release
from xvfl.wire.request_ids import next_request_id

POLL_S = 0.1


def sign_releases(
    config: CoordinatorConfig, parties: Sequence[str], revocation: str | None = None
) -> ReleaseStore:
    """Sign the head of the finished run for parties, or with a reason its revocation."""
    folder = RunDir(config.state_dir)
    heads = load_trained_heads(HeadStore(folder).current, config)
    check_releasable(heads.loss, parties)
    for name in parties:
        if name not in heads.names:
            raise RunError(f"{folder.path}: {unknown('party of this run', name, heads.names)}")
    store = ReleaseStore(folder, config.signing_key)
    if revocation is None:
        heads.release(store, parties)
    else:
        for name in parties:
            store.revoke(name, revocation)
    return store


def use_head(config: CoordinatorConfig, number: int | None = None, anyway: bool = False) -> RunDir:
    """Use a finished head, by default the one before the current one.

    It is signed for the parties that have the current one. A head that was trained on an upload
    that may not be used any more is refused, unless `anyway`.
    """
    folder = RunDir(config.state_dir)
    heads, store = HeadStore(folder), ReleaseStore(folder, config.signing_key)
    head = heads.previous if number is None else heads.finished(number)
    problems = head_problems(folder.path, int(head.path.name))
    if problems and not anyway:
        raise RunError(
            f"{head.path}: it should not be used any more: {'; '.join(problems)}; train another "
            "head with --retrain, or add --anyway"
        )
    trained, records = load_trained_heads(head, config), store.records()
    run = heads.current_run
    holders = [name for name, each in records.items() if each.run == run and not each.revoked]
    if without := [name for name in holders if name not in trained.names]:
        raise RunError(
            f"{head.path}: it was trained without {', '.join(without)}, which the current head is "
            "released to; revoke this with `xvfl release --revoke` first"
        )
    check_releasable(trained.loss, holders)
    heads.use(head)
    trained.release(store, holders)
    return head


def send_release(
    store: ReleaseStore, party: RemoteParty, log: LogFunction, request_id: int = 0
) -> bool:
    """Send a party its newest release; return whether the party has confirmed it."""
    number, message = store.records()[party.name].number, store.load(party.name)
    request = Release(
        request_id or next_request_id(), message.manifest, message.tensors, message.signature
    )
    try:
        request_all([party], [request], Done)
    except (PartyError, ValueError) as error:
        log({"event": "release_failed", "party": party.name, "reason": str(error)})
        return False
    store.mark_delivered(party.name, number)
    log({"event": "released", "party": party.name, "number": number})
    return True


def serve_releases(
    config: CoordinatorConfig,
    store: ReleaseStore,
    parties: Sequence[str],
    timeout: float,
    stop: Event,
    log: LogFunction,
) -> None:
    """Listen for parties with a pending release, and deliver it, until all have received theirs.

    If a coordinator that predicts (`--serve`) runs at the same address, it delivers them instead.

    Parameters
    ----------
    config : CoordinatorConfig
        The coordinator's configuration.
    store : ReleaseStore
        The signed releases.
    parties : sequence of str
        The parties to wait for.
    timeout : float
        Seconds to wait.
    stop : Event
        Ends the wait.
    log : callable
        Receives log events.
    """
    _install_at_local_party(config, store, parties, log)
    waiting, deadline = store.pending(parties), time.monotonic() + timeout
    if not waiting or not timeout:
        return
    try:
        with listen(config, log) as server:
            log({"event": "listening", "address": config.listen, "parties": waiting})
            remote = {name: RemoteParty(name, server.transports[name]) for name in waiting}
            deliver_releases(remote, store, deadline, stop, log)
    except RunError as error:
        if getattr(error.__cause__, "errno", None) != errno.EADDRINUSE:
            raise
        log({"event": "waiting_for_coordinator", "address": config.listen, "parties": waiting})
        while store.pending(waiting) and time.monotonic() < deadline and not stop.is_set():
            stop.wait(POLL_S)


def deliver_releases(
    remote: dict[str, RemoteParty],
    store: ReleaseStore,
    deadline: float,
    stop: Event,
    log: LogFunction,
) -> None:
    """Send each party its release when it is connected, and that nothing follows.

    Parties that have received theirs are removed from `remote`.
    """
    rejected: set[str] = set()
    while remote and time.monotonic() < deadline and not stop.is_set():
        for name, party in list(remote.items()):
            hello = party.transport.hello()
            if hello is None or hello.instance_id in rejected:
                continue
            party.instance_id = hello.instance_id
            if send_release(store, party, log):
                end_party(party)
                del remote[name]
            elif not party.restarted():
                # It would reject the release again; wait until its operator restarts it.
                rejected.add(hello.instance_id)
        stop.wait(POLL_S if remote else 0)


def end_party(party: RemoteParty) -> None:
    """Tell a party that nothing follows, so that its process exits."""
    with suppress(PartyError):
        request_all([party], [End(next_request_id(), FINISHED)], Done)


def _install_at_local_party(
    config: CoordinatorConfig, store: ReleaseStore, parties: Sequence[str], log: LogFunction
) -> None:
    """Install the release of the party in the coordinator's process, which is on this machine."""
    local = config.local_party
    if local is None or local.name not in store.pending(parties):
        return
    number = store.records()[local.name].number
    own = local_party_config(config, local)
    party = PartyFolder(local.name, own, RunDir(own.state_dir))
    try:
        party.install(store.load(local.name))
    except XVFLError as error:
        raise RunError(f"{local.name}: the release cannot be installed: {error}") from error
    store.mark_delivered(local.name, number)
    log({"event": "released", "party": local.name, "number": number})
