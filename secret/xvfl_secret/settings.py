"""Settings of a node, and the public description of a training; JSON files that `xvfl` writes."""

import json
import re
from dataclasses import dataclass, fields
from hashlib import sha256
from pathlib import Path
from typing import Any, TypeVar, get_args, get_origin, get_type_hints

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
    """Of the order of the rows and the choice of masked copies."""
    checkpoint_interval: int

    def __post_init__(self) -> None:
        ranges = (
            ("epochs", 1, 10_000),
            ("batch_rows", 1, 65_536),
            ("learning_rate", 2**-12, 16),
            ("momentum", 0, 1),
            ("checkpoint_interval", 1, 1_000_000),
        )
        for name, least, most in ranges:
            if not least <= getattr(self, name) <= most:
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
    """Read settings from a JSON file; check every key and type."""
    content, hints = read_json(path), get_type_hints(kind)
    names = {each.name for each in fields(kind)}  # type: ignore[arg-type]
    if unknown := sorted(content.keys() - names):
        raise SecretError(f"{path}: unknown key {unknown[0]!r}; expected {', '.join(names)}")
    values = {
        name: _value(hints[name], value, f"{path}: {name}") for name, value in content.items()
    }
    try:
        return kind(**values)
    except (TypeError, SecretError) as error:
        raise SecretError(f"{path}: {error}") from error


def _value(hint: Any, value: Any, where: str) -> Any:
    if get_origin(hint) is tuple and isinstance(value, list):
        return tuple(_value(get_args(hint)[0], each, where) for each in value)
    if hint is float and type(value) is int:
        return float(value)
    if not isinstance(hint, type) or type(value) is not hint:
        raise SecretError(f"{where}: expected another type than {type(value).__name__}")
    return value
