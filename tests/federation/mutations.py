"""Malformed frames: corrupted in transit, or valid frames with invalid content."""

import math
import random
from collections.abc import Sequence
from dataclasses import fields, replace
from typing import Any
from zlib import crc32

import torch
from torch import Tensor

from xvfl.wire import codec
from xvfl.wire.messages import Message


def corrupt_frame(rng: random.Random, valid: Sequence[bytes]) -> bytes:
    """Flip bits of a frame, truncate it, splice two frames, or return random bytes."""
    while True:
        a, b = bytearray(rng.choice(valid)), rng.choice(valid)
        how = rng.choice(("flip", "cut", "splice", "random"))
        if how == "flip":
            _flip_bits(rng, a, 0, len(a))
        elif how == "cut":
            a = a[: rng.randrange(len(a))]
        elif how == "splice":
            a = a[: rng.randrange(len(a))] + b[rng.randrange(len(b)) :]
        else:
            a = bytearray(rng.randbytes(rng.randrange(300)))
        if bytes(a) not in valid:
            return bytes(a)


def forge_frame(rng: random.Random, valid: Sequence[bytes]) -> bytes:
    """Change a frame's body or message type, and correct its length and checksum.

    Half of them are changed byte by byte, mostly in front, where lengths, counts and types are;
    half in a field's meaning, which bytes changed at random rarely reach.
    """
    while True:
        a, b = bytearray(rng.choice(valid)), rng.choice(valid)
        how = rng.choice(("odd", "odd", "odd", "flip", "cut", "splice", "kind"))
        if how == "odd":
            forged = codec.encode(mutate_message(rng, codec.decode(bytes(a))))
        else:
            forged = fix_checksum(_mutate_body(rng, how, a, b))
        if forged not in valid:
            return forged


def _mutate_body(rng: random.Random, how: str, a: bytearray, b: bytes) -> bytes:
    start = codec.OVERHEAD
    if how == "flip" and len(a) > start:
        _flip_bits(rng, a, start, min(len(a), rng.choice((60, 120, len(a)))))
    elif how == "cut":
        a = a[: rng.randrange(start, len(a) + 1)]
    elif how == "splice":
        a = a[: rng.randrange(start, len(a) + 1)] + b[rng.randrange(start, len(b) + 1) :]
    elif how == "kind":
        a[4:6] = b[4:6]
    return bytes(a)


INTEGERS = (-(2**63), -1, 0, 1, 2, 3, 5, 10, 2**31, 2**63 - 1)
FLOATS = (math.nan, math.inf, -1.0, 0.0, 1e-300, 1e308)
WORDS = (
    "",
    "plain",
    "masked",
    "self",
    "fresh",
    "look_back",
    "correct",
    "keep",
    "best",
    "run",
    "{}",
)


def mutate_message(rng: random.Random, message: Message) -> Message:
    """Replace one or two fields of a message by other values of their type."""
    names = [each.name for each in fields(message) if each.name != "request_id"]
    chosen = rng.sample(names, min(len(names), rng.randint(1, 2)))
    return replace(message, **{name: _mutate(rng, getattr(message, name)) for name in chosen})


def _mutate(rng: random.Random, value: Any) -> Any:
    if isinstance(value, bool):
        return not value
    if isinstance(value, int):
        return rng.choice(INTEGERS)
    if isinstance(value, float):
        return rng.choice(FLOATS)
    if isinstance(value, str):
        return rng.choice(WORDS)
    if isinstance(value, bytes):
        return rng.randbytes(rng.randrange(64))
    if isinstance(value, Tensor):
        return _mutate_tensor(rng, value)
    if isinstance(value, tuple):
        drawn = [rng.choice(value) for _ in range(rng.randrange(5))] if value else []
        return tuple(_mutate(rng, each) if rng.random() < 0.5 else each for each in drawn)
    name = rng.choice([each.name for each in fields(value)])
    return replace(value, **{name: _mutate(rng, getattr(value, name))})


def _mutate_tensor(rng: random.Random, value: Tensor) -> Tensor:
    how = rng.choice(("rows", "shape", "type", "values"))
    if how == "rows":
        drawn = [rng.randrange(max(len(value), 1)) for _ in range(rng.randrange(6))]
        return value[drawn] if len(value) else value.new_zeros(rng.randrange(3), *value.shape[1:])
    if how == "shape":
        return rng.choice((value[None], value.flatten(), value[:0], value.new_zeros(())))
    if how == "type":
        return value.to(rng.choice(tuple(codec.DTYPES.values())))
    flat = value.flatten().clone()
    if flat.is_floating_point() and len(flat):
        most = torch.finfo(flat.dtype).max
        flat[rng.randrange(len(flat))] = rng.choice((math.nan, math.inf, most, -most / 2, 0.0))
    elif len(flat):
        flat[rng.randrange(len(flat))] = rng.choice((0, 1, 2, 99))
    return flat.view(value.shape)


def fix_checksum(frame: bytes) -> bytes:
    """Correct a frame's length and checksum."""
    body = frame[codec.OVERHEAD :]
    magic, version, kind, request_id, _ = codec.HEAD.unpack_from(frame)
    head = codec.HEAD.pack(magic, version, kind, request_id, len(body))
    return head + codec.CRC.pack(crc32(body, crc32(head))) + body


def _flip_bits(rng: random.Random, frame: bytearray, start: int, end: int) -> None:
    for _ in range(rng.randint(1, 4)):
        frame[rng.randrange(start, end)] ^= 1 << rng.randrange(8)
