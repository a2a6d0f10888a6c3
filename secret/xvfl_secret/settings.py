"""Settings of a node, and the public description of a training; JSON files that `xvfl` writes."""

import json
import re
from dataclasses import dataclass
from hashlib import sha256
from pathlib import Path
from typing import Any, TypeVar

from xvfl_secret.errors import SecretError

NODES = 3
MAX_BYTES = 2**20
"""Largest JSON file."""
DIGEST = re.compile(r"[0-9a-f]{64}")
NAME = re.compile(r"[\w.-]{1,64}")
T = TypeVar("T")


@dataclass(frozen=True)
class NodeSettings:
    """A node, and the two others that it talks to; lists are in the order of the nodes."""

    rank: int
    """Which of the three nodes this is, from 0."""
    names: tuple[str, ...]
    addresses: tuple[str, ...]
    """HOST:PORT at which the other nodes reach each node."""
    pins: tuple[str, ...]
    """SHA-256 of each node's certificate (DER), in hexadecimal; no other is accepted."""
    listen: str
    """HOST:PORT to listen on."""
    ca_certificate: str
    certificate: str
    private_key: str
    state_dir: str
    """Folder of inputs, checkpoints and answers."""
    wait: float = 600.0
    """Seconds to wait for the other nodes."""
    timeout: float = 120.0
    """Seconds without an answer of another node after which the connection counts as lost."""
    profile: bool = False
    """Print SPU's statistics of each program."""

    def __post_init__(self) -> None:
        lists = self.names, self.addresses, self.pins
        if any(len(each) != NODES or len(set(each)) != NODES for each in lists):
            raise SecretError("names, addresses, pins: expected three different ones")
        if not 0 <= self.rank < NODES:
            raise SecretError(f"rank: expected 0 to {NODES - 1}, got {self.rank}")
        if not all(map(DIGEST.fullmatch, self.pins)):
            raise SecretError("pins: expected SHA-256 digests of 64 hexadecimal digits")


@dataclass(frozen=True)
class Task:
    """What the nodes train; public."""

    parties: tuple[str, ...]
    sessions: tuple[str, ...]
    """The matching session of each party, to which its handles belong."""
    classification: bool
    """Two classes, else a number."""
    epochs: int
    batch_rows: int
    learning_rate: float
    momentum: float
    seed: int
    """Seed of the order of the rows and the choice of masked copies."""
    checkpoint_interval: int

    def __post_init__(self) -> None:
        ranges = (
            ("epochs", int, 1, 10_000),
            ("batch_rows", int, 1, 65_536),
            ("learning_rate", float, 2**-12, 16),
            ("momentum", float, 0, 1),
            ("seed", int, 0, 2**32),
            ("checkpoint_interval", int, 1, 1_000_000),
        )
        for name, kind, least, most in ranges:
            value = getattr(self, name)
            if type(value) is not kind or not least <= value <= most:
                raise SecretError(f"{name}: expected {least} to {most}")
        names = self.parties
        if not 1 <= len(names) <= 64 or len(set(names)) < len(names):
            raise SecretError("parties: expected 1 to 64 different names")
        if len(self.sessions) != len(names) or not all(map(NAME.fullmatch, names)):
            raise SecretError("parties, sessions: expected names, and a session for each")

    @property
    def digest(self) -> str:
        """Digest of the description."""
        return sha256(json.dumps(self.__dict__, sort_keys=True).encode()).hexdigest()


def read_json(path: Path) -> dict[str, Any]:
    """Read a JSON object of limited size."""
    try:
        with path.open("rb") as file:
            data = file.read(MAX_BYTES + 1)
        content = json.loads(data) if len(data) <= MAX_BYTES else None
    except (OSError, ValueError, RecursionError) as error:
        raise SecretError(f"{path}: cannot be read ({error})") from error
    if not isinstance(content, dict):
        raise SecretError(f"{path}: expected a JSON object of at most {MAX_BYTES} bytes")
    return content


def read(kind: type[T], path: Path) -> T:
    """Read settings from a JSON file; reject unknown and missing keys, and values out of range."""
    content = read_json(path)
    values = {
        name: tuple(value) if isinstance(value, list) else value for name, value in content.items()
    }
    try:
        return kind(**values)
    except (TypeError, ValueError, SecretError) as error:
        raise SecretError(f"{path}: {error}") from error
