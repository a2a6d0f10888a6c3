"""Record the messages of two parties of this version: `python -m tests.recorded.record`.

They match ids, upload, and predict, as processes over mutual TLS. With a configuration and a file
as arguments, it is the process of one party.
"""

import json
import subprocess
import sys
import tempfile
import time
import urllib.request
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import is_dataclass
from pathlib import Path
from typing import Annotated, Any, get_args, get_origin

from tests.processes import ENVIRONMENT, ROOT, SOURCES, free_port
from tests.recorded.federation import PARTIES, new_ids, write_federation
from xvfl.federation.request_endpoint import RequestEndpoint
from xvfl.service.config import load_party_config
from xvfl.service.party import serve_party
from xvfl.system.event_log import read_log
from xvfl.version import VERSION
from xvfl.wire import codec, protocol
from xvfl.wire.messages import KINDS, Challenge, Hello, Match, NewestEntries

FOLDER = Path(__file__).parent
SESSION, MESSAGES = FOLDER / "session-0.4.json", FOLDER / "messages-0.4.txt"
ALIGNMENTS = ("alignment.json", "prediction/alignment.json")
"""Files of each side that belong to the recorded matching sessions."""
KIND, BODY = slice(4, 6), 22
"""Where a frame has the number of the message's kind, and where its body begins."""
SENT = (Challenge, Hello, NewestEntries)
"""What a party sends without being asked."""


def take_part(config: str, path: str) -> None:
    """Run a party, and write each of its messages as a line."""
    handle, encode = RequestEndpoint.handle, codec.encode
    file = open(path, "a", buffering=1, encoding="utf-8")  # noqa: SIM115

    def write(**line: str) -> None:
        file.write(json.dumps(line) + "\n")

    def recorded_handle(self: RequestEndpoint, frame: bytes) -> bytes:
        reply = handle(self, frame)
        write(purpose=self.hello.purpose, request=frame.hex(), reply=reply.hex())
        return reply

    def recorded_encode(message: Any, version: int = protocol.BASE) -> bytes:
        frame = encode(message, version)
        if isinstance(message, SENT):
            purpose = message.purpose if isinstance(message, Hello) else ""
            write(kind=type(message).__name__, purpose=purpose, frame=frame.hex())
        return frame

    RequestEndpoint.handle = recorded_handle  # type: ignore[method-assign]
    codec.encode = recorded_encode
    serve_party(load_party_config(Path(config)), show=False)


def record(folder: Path) -> dict[str, Any]:
    """Train and predict; return the messages of the parties and the coordinator's alignments."""
    write_federation(folder, free_port(), port := free_port())
    with process(folder, "xvfl", "coordinator", "coordinator.toml", "--serve", "--quiet"):
        # The second time, ids are matched, as their `Hello` says.
        for times in (1, 2):
            with ExitStack() as stack:
                for name in PARTIES:
                    arguments = "tests.recorded.record", f"{name}.toml", f"{name}.jsonl"
                    stack.enter_context(process(folder, *arguments))
                while not is_ready(folder, times):
                    time.sleep(0.5)
                for each in new_ids():
                    predict(port, [each])
    state = {
        side: {name: (folder / side / name).read_text() for name in ALIGNMENTS}
        for side in ("main", *PARTIES)
    }
    return {"release": VERSION, "state": state, "parties": {n: read(folder, n) for n in PARTIES}}


def write_alignments(folder: Path, recorded: dict[str, Any], side: str) -> None:
    """Write what a side needs to go on after the recorded matching sessions."""
    for name, text in recorded["state"][side].items():
        (folder / side / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / side / name).write_text(text)


@contextmanager
def process(folder: Path, *arguments: str) -> Iterator[None]:
    """Run a module until the end of the block, which a signal ends."""
    environment = {**ENVIRONMENT, "PYTHONPATH": f"{SOURCES}:{ROOT}"}
    command = [sys.executable, "-m", *arguments]
    running = subprocess.Popen(command, cwd=folder, env=environment)
    try:
        yield
        assert running.poll() is None
    finally:
        running.terminate()
        running.wait()


def is_ready(folder: Path, times: int = 1) -> bool:
    """Return whether the coordinator predicts with both parties, for so many times."""
    found = [each["event"] for each in read_log(folder / "main")]
    return found.count("party_available") == times * len(PARTIES)


def predict(port: int, ids: list[str]) -> list[dict[str, Any]]:
    """Predict rows; return the answers."""
    url, body = f"http://127.0.0.1:{port}/predict", json.dumps({"ids": ids}).encode()
    request = urllib.request.Request(url, body, {"Content-Type": "application/json"})
    with urllib.request.urlopen(request, timeout=120) as response:
        found: list[dict[str, Any]] = json.load(response)["predictions"]
    return found


def read(folder: Path, name: str) -> dict[str, Any]:
    """Return the last greetings of a party, and its replies, but those of a matching session."""
    lines = [json.loads(line) for line in (folder / f"{name}.jsonl").read_text().splitlines()]
    said = (each for each in lines if "frame" in each)
    sent = {f"{each['kind']} {each['purpose']}".strip(): each["frame"] for each in said}
    replies: dict[str, dict[str, str]] = {}
    for each in lines:
        if "request" in each and not isinstance(
            codec.decode(bytes.fromhex(each["request"])), Match
        ):
            # Of equal requests the last reply counts: before, the encoder was not trained yet.
            key = content(bytes.fromhex(each["request"])).hex()
            replies.setdefault(each["purpose"], {})[key] = each["reply"]
    return {"sent": sent, "replies": replies}


def content(frame: bytes) -> bytes:
    """Return what distinguishes a request: its kind and its body."""
    return frame[KIND] + frame[BODY:]


def layout(version: int) -> str:
    """Return the fields of all messages of a version as a text, as they are in a frame."""
    lines = (f"{number}: {kind.__name__} {_shape(kind, version)}" for number, kind in KINDS.items())
    return "\n".join(lines) + "\n"


def _shape(hint: Any, version: int) -> str:
    if get_origin(hint) is Annotated:
        return "text"
    if get_origin(hint) is tuple:
        return f"list of {_shape(get_args(hint)[0], version)}"
    if is_dataclass(hint):
        fields = codec.message_fields(hint, version)
        return f"({', '.join(f'{name}: {_shape(inner, version)}' for name, inner in fields)})"
    return str(hint.__name__)


if __name__ == "__main__":
    if len(sys.argv) == 3:
        take_part(*sys.argv[1:])
    else:
        with tempfile.TemporaryDirectory() as made:
            SESSION.write_text(json.dumps(record(Path(made)), indent=1) + "\n")
        MESSAGES.write_text(layout(protocol.BASE))
