"""A party's side of an exchange: handle a frame, reply with a frame, reject what is invalid.

An invalid request, or an unexpected exception, yields an error reply. The last reply is cached: a
request that is sent again gets the same reply and has no second effect.
"""

import threading
import traceback
from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager
from typing import Any, cast

from xvfl.errors import MatchingError, WireError, XVFLError
from xvfl.system.printable import one_line
from xvfl.wire import codec
from xvfl.wire.limited_log import LimitedLog, LogEvent
from xvfl.wire.messages import Done, End, ErrorReply, Hello, Message
from xvfl.wire.request_ids import RequestOrder

COMPUTE_LOCK = threading.Lock()
"""Torch has one global random stream per process: parties in one process take turns to compute."""

Replies = Mapping[type[Any], Callable[[Any], Message]]
"""Functions that reply to requests, by the type of the request."""


class RequestEndpoint:
    """Handles a coordinator's requests one after the other.

    Parameters
    ----------
    hello
        What the party reports about itself when it connects.
    log_event
        Receives log events.
    replies
        Reply to requests; `End` needs none.
    refusal
        Why other requests are rejected.
    """

    def __init__(
        self,
        hello: Hello,
        log_event: LogEvent,
        replies: Replies,
        refusal: str,
    ) -> None:
        self.hello, self._log_event = hello, log_event
        self._replies, self._refusal = replies, refusal
        self.end_reason: str | None = None
        """Why the coordinator ended the run; None while it has not."""
        self.n_rejected = 0
        """Requests rejected so far."""
        self._lock, self._turns = threading.Lock(), cast(AbstractContextManager[Any], COMPUTE_LOCK)
        self._last: tuple[bytes, bytes] = (b"", b"")
        self._order = RequestOrder()
        # A coordinator can repeat wrong requests at will.
        self._log_problem = LimitedLog(log_event)

    def handle(self, frame: bytes) -> bytes:
        """Handle an encoded request; return the reply, of the same version of the protocol."""
        with self._lock:
            if frame == self._last[0]:
                return self._last[1]
            try:
                message = codec.decode(frame)
                with self._turns:
                    reply = codec.encode(self._dispatch(message), codec.frame_version(frame))
            except (WireError, MatchingError) as error:
                return self._reject(frame, error, str(error))
            except XVFLError as error:
                # The message may name files of this party: it goes to the log alone.
                self._log_problem({"event": "request_failed", "reason": str(error)})
                text = f"the party could not do this ({type(error).__name__}); see the party's log"
                return self._reject(frame, error, text)
            except Exception as error:
                self._discard()
                self._log_problem({"event": "internal_error", "traceback": traceback.format_exc()})
                # The message may contain the party's data: send the type of the error alone.
                text = f"internal error {type(error).__name__} at this party; see the party's log"
                return self._reject(frame, error, text)
            self._last = frame, reply
            self._order.accept(message.request_id)
            return reply

    def _dispatch(self, message: Message) -> Message:
        """Carry out a request and return the reply."""
        kind = type(message)
        self._order.check(message.request_id)
        if isinstance(message, End):
            self.end_reason = message.reason
            return Done(message.request_id, 0)
        if kind not in self._replies:
            raise WireError(f"{kind.__name__}: {self._refusal}")
        return self._replies[kind](message)

    def _discard(self) -> None:
        """Discard partial state after an unexpected exception."""

    def _reject(self, frame: bytes, error: Exception, text: str) -> bytes:
        self.n_rejected += 1
        known = len(frame) >= codec.OVERHEAD
        request_id = codec.kind_and_request_id(frame)[1] if known else 0
        # It may quote the request.
        text = one_line(text)
        self._log_problem({"event": "request_rejected", "request_id": request_id, "reason": text})
        return codec.encode(ErrorReply(request_id, type(error).__name__, text))
