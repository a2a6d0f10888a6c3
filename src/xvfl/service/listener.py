"""The coordinator's listening port: accept the listed parties, log rejected connections."""

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from types import MappingProxyType
from typing import Any

from xvfl.certs import PeerVerifier
from xvfl.certs.clocks import PeerClocks
from xvfl.certs.loaded_tls import LoadedTls
from xvfl.certs.proof import prover
from xvfl.federation.upload.manifest import MAX_WIDTH
from xvfl.matching.session_messages import MAX_MESSAGE_BYTES
from xvfl.methods import method_spec
from xvfl.model.run_dir import RunDir
from xvfl.options import max_embedding_width
from xvfl.service.config import CoordinatorConfig
from xvfl.service.uploads.withdrawals import enforce_terms, remember_certificate, withdraw
from xvfl.system.event_log import LogFunction
from xvfl.trail.acknowledgements import COORDINATOR, Acknowledgements
from xvfl.wire.limits import ReplyLimit, reply_limit
from xvfl.wire.messages import Hello, Message, Withdraw
from xvfl.wire.server import Answer, CoordinatorServer, reject_request

TRAINING, PREDICTION = "training", "prediction"
"""Purposes of a connection. A party has one of each, to train and predict at the same time."""
CheckHello = Callable[[str, Hello], None]


@contextmanager
def listen(
    config: CoordinatorConfig,
    log: LogFunction,
    checks: Mapping[str, CheckHello] = MappingProxyType({}),
    answer: Answer = reject_request,
) -> Iterator[CoordinatorServer]:
    """Listen for the configured parties; `checks`, by purpose, may raise to reject one.

    A connection whose purpose does not apply now waits until it does. `answer` answers requests of
    parties. Withdrawals are carried out, and the terms of uploads enforced, as long as this port is
    open.
    """

    def check(name: str, hello: Hello) -> None:
        if hello.purpose in checks:
            checks[hello.purpose](name, hello)

    tls, clocks = LoadedTls(config.tls, log), PeerClocks(log)
    peers = PeerVerifier(config.tls.ca_certificate, config.revocation_list, log)
    folder = RunDir(config.state_dir)

    def identify(certificate: bytes) -> str:
        name = peers.check(certificate)
        if name in server.transports and folder.path.is_dir():
            remember_certificate(folder, name, certificate, log)
        return name

    def reply(party: str, message: Message) -> Message:
        if isinstance(message, Withdraw):
            return withdraw(folder, config.signing_key, party, message, log)
        return answer(party, message)

    def recheck() -> None:
        tls.read()
        enforce_terms(folder, peers, log)

    def status() -> dict[str, Any]:
        return {
            **tls.status(),
            "party_clock_ahead_seconds": dict(clocks.ahead),
            "clock_warning": clocks.warning,
        }

    recheck()
    server = CoordinatorServer(
        config.listen,
        tls.server_credentials(),
        config.parties,
        identify,
        log,
        check,
        prover(tls),
        _reply_limit(config),
        answer=Acknowledgements(folder.path, COORDINATOR, log).answer_or(reply),
        on_recheck=recheck,
        on_clock=clocks.compare,
        status=status,
        purposes=[PREDICTION],
    )
    try:
        yield server
    finally:
        server.close()


def _reply_limit(config: CoordinatorConfig) -> ReplyLimit:
    """Bound replies by the widest embeddings of this configuration, in float64.

    In prediction, each party's encoder has a width of its own; numbers are float32.
    """
    branches = method_spec(config.loss.method).branches
    row_bytes = 8 * branches * max_embedding_width(config.net)
    training, prediction = (
        reply_limit(config.max_message_bytes, each, MAX_MESSAGE_BYTES)
        for each in (row_bytes, max(row_bytes, 4 * MAX_WIDTH))
    )

    def limit(request: Message, hello: Hello) -> int:
        return (prediction if hello.purpose == PREDICTION else training)(request, hello)

    return limit
