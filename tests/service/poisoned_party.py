"""The command line of a party that poisons its answers while the file `attack` exists.

The file has the name of the attack. Everything else of the party, with its connection, is real.
"""

from pathlib import Path

from tests.federation.poisoned_values import ATTACKS, Poisoner
from xvfl.cli.main import main
from xvfl.federation.endpoint import Endpoint
from xvfl.wire import codec

handle = Endpoint.handle
poisoner = Poisoner()
sent: tuple[bytes, bytes] = (b"", b"")


def poisoned_handle(self: Endpoint, frame: bytes) -> bytes:
    global sent
    if frame == sent[0]:
        # The coordinator asks again after a lost connection.
        return sent[1]
    honest = codec.decode(handle(self, frame))
    file = Path("attack")
    attack = ATTACKS[file.read_text()] if file.exists() else None
    sent = frame, codec.encode(poisoner.reply(codec.decode(frame), honest, attack))
    return sent[1]


if __name__ == "__main__":
    Endpoint.handle = poisoned_handle  # type: ignore[method-assign]
    main()
