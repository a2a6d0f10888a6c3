"""Parties of 0.4 that send what was recorded of them, without the wire code of this version."""

import signal
import struct
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from queue import SimpleQueue
from typing import Any
from zlib import crc32

import grpc

from tests.processes import free_port
from tests.recorded.federation import PARTIES, new_ids, write_federation
from tests.recorded.record import content, is_ready, predict, write_alignments
from tests.service.predicting_federation import Predicting
from tests.wire.transport_helpers import wait_until

JOIN, CALL = "/xvfl.Federation/Join", "/xvfl.Federation/Call"
REQUEST_ID, CRC = slice(6, 14), slice(18, 22)


class RecordedParty:
    """Connects for a purpose, and replies to each request as the recorded party did.

    Parameters
    ----------
    address
        HOST:PORT of the coordinator.
    files
        Authority, private key and certificate of the party.
    recorded
        What was recorded of the party.
    purpose
        `training` or `prediction`.
    """

    def __init__(
        self, address: str, files: tuple[Path, Path, Path], recorded: dict[str, Any], purpose: str
    ) -> None:
        self._address, self._recorded, self._purpose = address, recorded, purpose
        self._credentials = grpc.ssl_channel_credentials(*(each.read_bytes() for each in files))
        self.answered: list[str] = []
        """Requests that the recorded party knows."""
        self.problems: list[str] = []
        """Requests of the coordinator that it does not know, and lost connections."""
        self._stopped = threading.Event()
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()

    def stop(self) -> None:
        """Close the connection."""
        self._stopped.set()

    def _run(self) -> None:
        while not self._stopped.is_set():
            with grpc.secure_channel(self._address, self._credentials) as channel:
                try:
                    self._join(channel)
                except grpc.RpcError as error:
                    code = error.code()  # type: ignore[attr-defined]
                    if code != grpc.StatusCode.UNAVAILABLE:
                        self.problems.append(str(error))
            self._stopped.wait(0.5)

    def _join(self, channel: grpc.Channel) -> None:
        frames = SimpleQueue[bytes]()
        sent = self._recorded["sent"]
        frames.put(bytes.fromhex(sent["Challenge"]))
        replies = channel.stream_stream(JOIN)(self._send(frames))
        proof = next(replies)
        assert proof[:4] == b"XV\4\0", proof
        frames.put(bytes.fromhex(sent[f"Hello {self._purpose}"]))
        # The newest entries of its trail, as soon as it is connected.
        channel.unary_unary(CALL)(bytes.fromhex(sent["NewestEntries"]))
        for request in replies:
            frames.put(self._reply(request))

    def _send(self, frames: "SimpleQueue[bytes]") -> Iterator[bytes]:
        while not self._stopped.is_set():
            yield frames.get()

    def _reply(self, request: bytes) -> bytes:
        """Return the recorded reply, with the id of this request."""
        key = content(request).hex()
        found = self._recorded["replies"].get(self._purpose, {}).get(key)
        if found is None or request[:4] != b"XV\4\0":
            self.problems.append(f"unknown request {request[:200].hex()}")
            found = "00"
        self.answered.append(key)
        return with_request_id(bytes.fromhex(found), request[REQUEST_ID])


def with_request_id(frame: bytes, request_id: bytes) -> bytes:
    """Return a frame with another request id."""
    head = frame[: REQUEST_ID.start] + request_id + frame[REQUEST_ID.stop : CRC.start]
    body = frame[CRC.stop :]
    return head + struct.pack("<I", crc32(body, crc32(head))) + body


def request_frame(key: str, request_id: int) -> bytes:
    """Return the frame of a recorded request, given by its kind and body, with another id."""
    kind, body = bytes.fromhex(key)[:2], bytes.fromhex(key)[2:]
    head = b"XV\4\0" + kind + bytes(8) + struct.pack("<I", len(body))
    return with_request_id(head + bytes(4) + body, struct.pack("<Q", request_id))


@contextmanager
def recorded_parties(
    folder: Path, port: int, recorded: dict[str, Any]
) -> Iterator[list[RecordedParty]]:
    """Connect all recorded parties, for training and for prediction."""
    connections = [
        RecordedParty(
            f"localhost:{port}",
            tuple(folder / "certs" / each for each in ("ca.crt", f"{name}.key", f"{name}.crt")),
            recorded["parties"][name],
            purpose,
        )
        for name in PARTIES
        for purpose in ("training", "prediction")
    ]
    try:
        yield connections
    finally:
        for each in connections:
            each.stop()


def serve_recorded_parties(folder: Path, recorded: dict[str, Any]) -> None:
    """Let this version's coordinator train with parties of 0.4, and predict."""
    write_federation(folder, port := free_port(), address := free_port())
    write_alignments(folder, recorded, "main")
    with (
        Predicting(folder) as federation,
        recorded_parties(folder, port, recorded) as connections,
    ):
        federation.launch("coordinator")
        wait_until(lambda: is_ready(folder) or any(each.problems for each in connections), 600)
        assert [each.problems for each in connections] == [[]] * len(connections)
        for each in new_ids():
            (answer,) = predict(address, [each])
            assert answer["parties"] == [*PARTIES]
        assert all(each.answered for each in connections)
        federation.signal("coordinator", signal.SIGTERM)
        assert federation.running["coordinator"].wait() == 0
    assert [each.problems for each in connections] == [[]] * len(connections)
