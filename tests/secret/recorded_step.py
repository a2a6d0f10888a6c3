"""One node of a training step whose incoming messages are recorded; runs where SPU is installed.

    recorded_step.py FOLDER RANK

FOLDER has `share-RANK/x.npy`, `y.npy` and the state, and receives `messages-RANK`. The other nodes
reach this one through a socket that records.
"""

import os
import sys
import threading
import time
from contextlib import suppress
from functools import partial
from pathlib import Path
from socket import AF_UNIX, SHUT_WR, socket

import numpy as np
from spu import libspu

from xvfl_secret import head
from xvfl_secret.program import Engine, compile_program


def record(path: Path, target: Path, out: Path) -> None:
    """Relay connections to a socket, and record what they send."""
    server = socket(AF_UNIX)
    server.bind(str(path))
    server.listen()
    lock = threading.Lock()

    def copy(source: socket, sink: socket, recorded: bool) -> None:
        with suppress(OSError):
            while data := source.recv(2**18):
                if recorded:
                    with lock, out.open("ab") as file:
                        file.write(data)
                sink.sendall(data)
            sink.shutdown(SHUT_WR)

    def accept() -> None:
        while True:
            client, own = server.accept()[0], socket(AF_UNIX)
            try:
                own.connect(str(target))
            except OSError:
                client.close()
                continue
            for pair in ((client, own, True), (own, client, False)):
                threading.Thread(target=copy, args=pair, daemon=True).start()

    threading.Thread(target=accept, daemon=True).start()


def main(folder: Path, rank: int) -> None:
    """Run one step on this node's shares."""
    record(folder / f"r{rank}", folder / f"s{rank}", folder / f"messages-{rank}")
    description = libspu.link.Desc()
    description.recv_timeout_ms = 300_000
    description.connect_retry_times, description.connect_retry_interval_ms = 600, 500
    for each in range(3):
        kind = "s" if each == rank else "r"
        description.add_party(str(each), f"unix:{folder / f'{kind}{each}'}")
    shares = {path.stem: np.load(path) for path in (folder / f"share-{rank}").glob("*.npy")}
    n_rows, present = len(shares["y"]), np.ones((len(shares["y"]), 2), np.float32)
    shapes = {"x": shares["x"].shape[:-1], "present": present.shape, "y": (n_rows, 1)}
    shapes |= {name: shares[name].shape[:-1] for name in head.STATE}
    step = partial(head.step, classification=True, learning_rate=0.5, momentum=0.5)
    program = compile_program(step, shapes, frozenset({"present"}), head.STATE)
    link = libspu.link.create_brpc(description, rank)
    engine = Engine(link)
    for name, share in shares.items():
        engine.set_share(name, share)
    engine.set_public("present", present)
    engine.run(program)
    link.barrier()
    # The other nodes still need replies that pass through this process.
    time.sleep(5)
    os._exit(0)


if __name__ == "__main__":
    main(Path(sys.argv[1]), int(sys.argv[2]))
