"""Limits of a connection: what a peer may send before and after its `Hello`.

A frame travels in chunks, one gRPC message each. gRPC rejects a larger message by its length,
before it arrives; the frame's own header is checked before its second chunk is read.
"""

from collections.abc import Callable, Iterator

from xvfl.errors import WireError
from xvfl.wire import codec
from xvfl.wire.messages import (
    AskChunk,
    AskUpload,
    Backward,
    Begin,
    Complete,
    Embed,
    EmbedRows,
    Hello,
    Match,
    Message,
)
from xvfl.wire.texts import MAX_DOCUMENT_BYTES

CHUNK_BYTES = 2**20
"""Largest gRPC message; a larger frame is sent in several."""
SMALL_BYTES = 2**16
"""Largest frame before `Hello` is accepted, and of replies that carry no tensor."""
UPLOAD_CHUNK_BYTES = 2**23
"""Largest chunk of an upload."""
MAX_STREAMS = 1
"""Concurrent streams of a connection."""
MAX_CALLS = 4
"""Concurrent requests of a party, where the coordinator accepts any."""
MAX_PENDING = 64
"""Default number of connections whose `Hello` is not accepted yet."""
HELLO_TIMEOUT_S = 20.0
"""Seconds from a new connection to its `Hello`."""
RECHECK_S = 10.0
"""Seconds between two checks of the certificates of connected peers."""
ReplyLimit = Callable[[Message, Hello], int]
"""Return the largest reply to a request, in bytes."""


def reply_limit(
    max_bytes: int,
    row_bytes: int = codec.MAX_FRAME_BYTES,
    match_bytes: int = codec.MAX_FRAME_BYTES,
) -> ReplyLimit:
    """Return a function that bounds the reply to a request by the shapes of the request.

    Parameters
    ----------
    max_bytes
        Bound of every frame.
    row_bytes
        Bound of one row's embedding in one view.
    match_bytes
        Bound of the body of `Matched`.
    """

    def limit(request: Message, hello: Hello) -> int:
        needed = 0
        if isinstance(request, Embed | EmbedRows):
            # Five bytes for the status and the observed share of a row of a prediction.
            needed = request.handles.numel() * (len(request.views) * row_bytes + 5)
        elif isinstance(request, Complete):
            needed = request.cue.nbytes
        elif isinstance(request, Backward):
            needed = request.gradient.values.nbytes
        elif isinstance(request, Begin):
            needed = hello.rows
        elif isinstance(request, Match):
            needed = match_bytes
        elif isinstance(request, AskUpload):
            needed = MAX_DOCUMENT_BYTES
        elif isinstance(request, AskChunk):
            needed = UPLOAD_CHUNK_BYTES
        return min(SMALL_BYTES + max(needed, 0), max_bytes)

    return limit


def split_frame(frame: bytes) -> Iterator[bytes]:
    """Split a frame into chunks."""
    view = memoryview(frame)
    for start in range(0, len(frame), CHUNK_BYTES):
        yield bytes(view[start : start + CHUNK_BYTES])


class FrameAssembler:
    """Joins the chunks of one stream to frames."""

    def __init__(self) -> None:
        self._chunks: list[bytes] = []
        self._missing = 0

    @property
    def complete(self) -> bool:
        """Whether no frame has begun and not ended."""
        return not self._chunks

    def add(self, chunk: bytes, limit: Callable[[int], int]) -> bytes | None:
        """Add a chunk; return the frame if it is complete.

        `limit` returns the largest size of the frame for its request id, or raises.
        """
        if not self._chunks:
            size = codec.frame_size(chunk)
            allowed = limit(codec.kind_and_request_id(chunk)[1])
            if size > allowed:
                raise WireError(f"frame: expected at most {allowed} bytes, got {size}")
            self._missing = size
        elif not chunk:
            raise WireError("frame: expected a chunk of 1 byte or more, got none")
        if len(chunk) > self._missing:
            raise WireError(
                f"frame: {len(chunk) - self._missing} bytes more than its header states"
            )
        self._chunks.append(chunk)
        self._missing -= len(chunk)
        if self._missing:
            return None
        chunks, self._chunks = self._chunks, []
        return chunks[0] if len(chunks) == 1 else b"".join(chunks)
