"""Connect to a coordinator as xvfl 0.3.0 does, and print how it ends.

A program: `python old_party.py ADDRESS FOLDER NAME`, with a party's certificates in FOLDER.
"""

import sys
from pathlib import Path

import grpc

CHALLENGE = bytes.fromhex("585603001100000000000000000024000000cd3d799120000000" + 32 * "00")
"""The first message of a party. It was printed by `scripts/version d233049 -c "from xvfl.wire
import codec, messages; print(codec.encode(messages.Challenge(0, bytes(32))).hex())"`."""
PATH = "/xvfl.Federation/Join"


def main(address: str, folder: str, name: str) -> None:
    """Send the first message; print the status of the reply."""
    files = (Path(folder) / each for each in ("ca.crt", f"{name}.key", f"{name}.crt"))
    credentials = grpc.ssl_channel_credentials(*(each.read_bytes() for each in files))
    with grpc.secure_channel(address, credentials) as channel:
        try:
            next(channel.stream_stream(PATH)(iter([CHALLENGE]), timeout=120))
        except grpc.RpcError as error:
            print(error.code(), error.details())


if __name__ == "__main__":
    main(*sys.argv[1:])
