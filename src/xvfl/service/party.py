"""The process of `xvfl party`: connect to the coordinator, reply to requests.

One process trains and predicts at the same time, on a connection for each. It goes on after a run,
so that nobody needs to start it for the next one.
"""

import threading
from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from functools import partial
from pathlib import Path
from typing import Any

import torch

from xvfl.certs import PeerVerifier, peer_name
from xvfl.certs.clocks import PeerClocks
from xvfl.certs.loaded_tls import LoadedTls
from xvfl.certs.proof import proof_checker
from xvfl.certs.tls_diagnosis import diagnose_tls
from xvfl.errors import ConfigError, PartyError, XVFLError
from xvfl.federation.request_endpoint import RequestEndpoint
from xvfl.model.dashboard.state_folder import describe_approvals, describe_party
from xvfl.model.fitting import choose_device
from xvfl.service.config import PartyProcessConfig
from xvfl.service.listener import PREDICTION, TRAINING
from xvfl.service.party_inputs import PartyInputs
from xvfl.service.party_service import PartyService
from xvfl.service.prediction.assisted_prediction import AssistedPredictor
from xvfl.service.prediction.http_endpoint import start_endpoint
from xvfl.service.prediction.party_prediction import PartyPredictor, require_trained
from xvfl.service.secret_config import refuse_plain
from xvfl.service.state_dir import open_state_dir
from xvfl.service.status_server import serve_status
from xvfl.service.uploads.party_encoder import VERSION
from xvfl.service.uploads.upload_party import UploadPartyService
from xvfl.system.event_log import FINISHED, LogFunction
from xvfl.system.signals import STOP_TIMEOUT_S, stop_on_signals, stopped_event
from xvfl.trail.acknowledgements import exchange_newest
from xvfl.training.threads import limit_threads
from xvfl.wire.client import PartyClient
from xvfl.wire.messages import Message

Party = PartyService | UploadPartyService | PartyPredictor
POLL_S, RETRY_S = 0.5, 10.0
"""Seconds between two looks at what the operator allows, and before another try after an error."""


class Identity:
    """The certificates of a party's process, and the clock of its coordinator."""

    def __init__(self, config: PartyProcessConfig, log: LogFunction) -> None:
        self.tls, self.clocks = LoadedTls(config.tls, log), PeerClocks(log)
        self.peers = PeerVerifier(config.tls.ca_certificate, config.revocation_list, log)

    def status(self) -> dict[str, Any]:
        """Describe certificates and clocks."""
        clocks = self.clocks
        about = {"clock_ahead_seconds": clocks.ahead.get(""), "clock_warning": clocks.warning}
        return {**self.tls.status(), **about}


class PartyConnection:
    """A party's connection for one purpose, and what answers there.

    Unless the process is to end with the run, what answers is loaded again after each run, when the
    operator allows another version, and after an error that concerns this purpose alone, such as a
    table that has changed.

    Parameters
    ----------
    purpose
        `training` or `prediction`.
    config
        The configuration of the party.
    load
        Loads what answers.
    log
        Receives log events.
    identity
        The certificates of this process.
    once
        End with the run, or with any error.
    """

    def __init__(
        self,
        purpose: str,
        config: PartyProcessConfig,
        load: Callable[[], Party],
        log: LogFunction,
        identity: Identity,
        once: bool,
    ) -> None:
        self._identity = identity
        self.purpose, self._config, self._load, self._log = purpose, config, load, log
        self._once, self._stop, self._allowed = once, threading.Event(), self._read_allowed()
        self.party = load()
        self.client = self._connect()
        self.problem = self._told = ""
        """Why nothing of this purpose is answered."""
        self.end_reason: str | None = None
        """Why the coordinator ended the run, if the process ends with it."""

    def run(self) -> None:
        """Reply to requests until the run or the process ends."""
        while not self._stop.is_set():
            try:
                self._serve()
            except XVFLError as error:
                if self._once or (isinstance(error, PartyError) and error.fault != "refused"):
                    raise
                if str(error) != self._told:
                    event = {"event": "not_connected", "purpose": self.purpose}
                    self._log({**event, "reason": str(error)})
                self.problem = self._told = str(error)
                self._stop.wait(RETRY_S)

    def stop(self) -> None:
        """End `run`; callable from any thread."""
        self._stop.set()
        self.client.stop()

    def look(self) -> None:
        """Load what answers again if the operator has allowed another version."""
        if (allowed := self._read_allowed()) != self._allowed:
            self._allowed = allowed
            self.client.stop()

    def _serve(self) -> None:
        """Reply until what answers has to be loaded again; then load it."""
        if not self.problem:
            self.client.run()
        self.party.close()
        if self._once:
            self.end_reason = self.party.endpoint.end_reason
            self._stop.set()
        if not self._stop.is_set():
            self.party = self._load()
            self.client = self._connect()
            self.problem = ""

    def _connect(self) -> PartyClient:
        endpoint, timeout = self.party.endpoint, self._config.reconnect_timeout
        endpoint.end_reason = None
        return connect_party(self._config, endpoint, self._log, timeout, self._identity)

    def _read_allowed(self) -> bytes:
        path = Path(self._config.state_dir) / VERSION
        return path.read_bytes() if path.is_file() and self.purpose == TRAINING else b""


class PartyConnections:
    """The connections of a party's process."""

    def __init__(
        self,
        connections: Sequence[PartyConnection],
        identity: Identity,
        stop: threading.Event | None = None,
    ) -> None:
        self._connections, self._identity = connections, identity
        self._stop = stop or threading.Event()
        self._ended = threading.Event()
        self._error: BaseException | None = None

    @property
    def connected(self) -> bool:
        """Whether the coordinator has proved its certificate on a connection."""
        return any(each.client.connected for each in self._connections)

    def call(self, message: Message, timeout: float) -> Message:
        """Send a request to the coordinator."""
        connected = [each.client for each in self._connections if each.client.connected]
        return (connected or [self._connections[0].client])[0].call(message, timeout)

    def stop(self) -> None:
        """Make `run` return; callable from any thread."""
        for each in self._connections:
            each.stop()
        self._ended.set()

    def run(self) -> None:
        """Reply to requests until one connection has ended for good; raise its error."""
        threads = [threading.Thread(target=self._run, args=(each,)) for each in self._connections]
        for thread in threads:
            thread.daemon = True
            thread.start()
        while not self._ended.wait(POLL_S):
            if self._stop.is_set():
                self.stop()
            for each in self._connections:
                each.look()
        self.stop()
        for thread in threads:
            thread.join()
        if self._error is not None:
            raise self._error

    def _run(self, connection: PartyConnection) -> None:
        try:
            connection.run()
        except BaseException as error:
            self._error = self._error or error
        finally:
            connection.party.close()
            self._ended.set()

    def status(self) -> dict[str, Any]:
        """Describe the connections, and what answers on them."""
        own = self._connections[0].party
        about: dict[str, Any] = {}
        for each in self._connections:
            about |= each.party.status()
        purposes = defaultdict[str, list[str]](list)
        for each in self._connections:
            purposes[each.problem].append(each.purpose)
        problems = [f"{' and '.join(names)}: {why}" for why, names in purposes.items() if why]
        if not self.connected:
            problems = problems or ["no connection to the coordinator"]
        if about.get("encoder_failed"):
            problems.append(about["encoder_problem"])
        return {
            "healthy": not problems,
            "problem": "; ".join(problems),
            "side": "party",
            "name": own.inputs.name,
            "connected": self.connected,
            "matched_rows": own.endpoint.hello.rows,
            "requests_rejected": sum(each.party.endpoint.n_rejected for each in self._connections),
            **describe_party(own.inputs.folder.path),
            **describe_approvals(own.inputs.folder.path),
            **self._identity.status(),
            **about,
        }


def serve_party(
    config: PartyProcessConfig,
    show: bool = True,
    once: bool = False,
    stop: threading.Event | None = None,
) -> bool:
    """Take part in training, and predict if the configuration says so, until a signal.

    Parameters
    ----------
    config : PartyProcessConfig
        The configuration of this party.
    show : bool, default=True
        Print the log on standard error as well.
    once : bool, default=False
        Only train, and return when the coordinator has finished the run.
    stop : threading.Event, default=None
        Return when it is set, instead of at a signal; the caller owns the process (`own_process`).

    Returns
    -------
    bool
        Whether a signal has stopped it.

    Raises
    ------
    PartyError
        If the coordinator does not accept this party, or with `once` ends its part before the run
        is finished.

    """
    predicts = config.prediction is not None and not once
    return _serve(config, show, once=once, predicts=predicts, stop=stop)


def serve_party_predictions(
    config: PartyProcessConfig, show: bool = True, again: bool = False
) -> bool:
    """Only answer the coordinator's prediction requests; tell whether a signal has ended it.

    Parameters
    ----------
    config : PartyProcessConfig
        The configuration of this party, with a section `[prediction]`.
    show : bool, default=True
        Print the log on standard error as well.
    again : bool, default=False
        Match the ids of the prediction table once more.

    """
    if config.prediction is None:
        raise ConfigError(
            "prediction: expected a section [prediction] with the `table` to open for prediction"
        )
    return _serve(config, show, trains=False, predicts=True, again=again)


def open_party(inputs: PartyInputs, log: LogFunction) -> "PartyService | UploadPartyService":
    """Load a party that uploads, or takes part in interactive training, as its inputs say."""
    refuse_plain(inputs.config.secret, "`xvfl party`")
    kind = UploadPartyService if inputs.config.training == "upload" else PartyService
    return kind(inputs, log)


def connect_party(
    config: PartyProcessConfig,
    endpoint: RequestEndpoint,
    log: LogFunction,
    reconnect_timeout: float,
    identity: Identity | None = None,
) -> PartyClient:
    """Build the client that passes a coordinator's requests to an endpoint."""
    own = identity or Identity(config, log)
    return PartyClient(
        config.coordinator,
        own.tls.client_credentials,
        lambda: endpoint.hello,
        endpoint.handle,
        lambda: endpoint.end_reason is not None,
        log,
        config.max_message_bytes,
        reconnect_timeout,
        proof_checker(own.tls, config.coordinator, own.peers),
        diagnose=partial(diagnose_tls, config.coordinator, config.tls),
        on_clock=partial(own.clocks.compare, ""),
    )


@contextmanager
def own_process(device: str, on_stop: Callable[[], None]) -> Iterator[None]:
    """Handle stop signals, limit torch's threads and keep its random state, until the end."""
    with (
        stop_on_signals(on_stop=on_stop, timeout=STOP_TIMEOUT_S),
        limit_threads(False, choose_device(device)),
        torch.random.fork_rng(devices=[]),
    ):
        yield


def _serve(
    config: PartyProcessConfig,
    show: bool,
    trains: bool = True,
    predicts: bool = False,
    again: bool = False,
    once: bool = False,
    stop: threading.Event | None = None,
) -> bool:
    """Reply to requests until the run ends, or until a stop; tell whether it was a stop."""
    name, settings = peer_name(config.tls.read()[1]), config.prediction
    folder, log = open_state_dir(config, name, show)
    connections, rows, identity = list[PartyConnection](), dict[str, int](), Identity(config, log)
    if trains:

        def load() -> Party:
            return open_party(PartyInputs.load(name, config, folder), log)

        connections.append(PartyConnection(TRAINING, config, load, log, identity, once))
        rows["rows"] = len(connections[0].party.table.ids)
    if predicts and settings is not None:
        inputs = PartyInputs.load(name, config, folder, settings.table)
        if not trains:
            require_trained(folder)
        predictor = PartyPredictor(inputs, settings.limits, log, again)
        connections.append(
            PartyConnection(PREDICTION, config, lambda: predictor, log, identity, not trains)
        )
        rows["prediction_rows"] = len(predictor.table.ids)
    every = PartyConnections(connections, identity, stop)
    with ExitStack() as stack:
        serve_status(config, every.status, log, stack)
        if stop is None:
            stack.enter_context(own_process(config.device, every.stop))
        stack.enter_context(exchange_newest(folder.path, name, every, log))
        if predicts and settings is not None and settings.address is not None:
            assisted = AssistedPredictor(inputs, predictor.handles, every.call, log)
            start_endpoint(settings, assisted, {"party": name}, log, stack)
        log({"event": "started", "coordinator": config.coordinator, **rows})
        every.run()
    end = connections[0].end_reason
    if end is None:
        log(stopped_event())
        return True
    if end != FINISHED:
        raise PartyError(f"the coordinator ended the run for this party: {end}")
    log({"event": "stopped", "reason": end, "exit_code": 0})
    return False
