"""Encode messages as bytes and decode them, without pickle; invalid input raises `WireError`.

A frame: magic "XV", version u16, kind u16, request_id u64, body length u32, CRC-32 of all else u32,
then the fields in the order of the message's type. All numbers little-endian:
    int i64 · float f64 · bool u8 · str, bytes u32 length + bytes · tuple u16 count + items ·
    Tensor u8 dtype, u8 dimensions, u32 each, raw values · a type in a type: its fields
"""

import struct
from collections.abc import Callable
from dataclasses import fields, is_dataclass
from math import prod
from typing import Annotated, Any, get_args, get_origin, get_type_hints
from zlib import crc32

import torch
from torch import Tensor

from xvfl.errors import WireError
from xvfl.wire import protocol
from xvfl.wire.messages import KINDS, Message
from xvfl.wire.texts import MAX_DOCUMENT_BYTES, TextRule

MAGIC = b"XV"
HEAD = struct.Struct("<2sHHQI")
CRC = struct.Struct("<I")
OVERHEAD = HEAD.size + CRC.size
MAX_FRAME_BYTES = 256 * 2**20
"""Default limit of the size of a frame."""
MAX_DIMENSIONS, MAX_ITEMS = 4, 4096

DTYPES: dict[int, torch.dtype] = {
    1: torch.float32,
    2: torch.float64,
    3: torch.float16,
    4: torch.bfloat16,
    5: torch.int32,
    6: torch.int64,
    7: torch.uint8,
    8: torch.bool,
}
_CODES = {dtype: code for code, dtype in DTYPES.items()}
_NUMBERS = {kind: number for number, kind in KINDS.items()}


def encode(message: Message, version: int = protocol.BASE) -> bytes:
    """Encode a message as a frame of a version of the protocol."""
    parts: list[bytes] = []
    for name, hint in message_fields(type(message), version)[1:]:
        _write(parts, hint, getattr(message, name), version)
    body = b"".join(parts)
    head = HEAD.pack(MAGIC, version, _NUMBERS[type(message)], message.request_id, len(body))
    return b"".join((head, CRC.pack(crc32(body, crc32(head))), body))


def decode(frame: bytes, max_bytes: int = MAX_FRAME_BYTES) -> Message:
    """Decode a frame; raise `WireError` if it is invalid."""
    if len(frame) > max_bytes:
        raise WireError(f"frame: expected at most {max_bytes} bytes, got {len(frame)}")
    length = frame_size(frame) - OVERHEAD
    if length != len(frame) - OVERHEAD:
        raise WireError(f"frame: expected {length} bytes of body, got {len(frame) - OVERHEAD}")
    number, request_id = kind_and_request_id(frame)
    (crc,) = CRC.unpack_from(frame, HEAD.size)
    if crc != crc32(memoryview(frame)[OVERHEAD:], crc32(frame[: HEAD.size])):
        raise WireError("frame: wrong checksum; it was damaged in transit")
    reader = _Reader(frame, OVERHEAD)
    kind = KINDS[number]
    hints = message_fields(kind, reader.version)[1:]
    values = {name: reader.read(hint, name) for name, hint in hints}
    if reader.at != len(frame):
        raise WireError(f"{kind.__name__}: {len(frame) - reader.at} bytes too many")
    message: Message = kind(request_id=request_id, **values)
    return message


def frame_size(start: bytes) -> int:
    """Check the header at the start of a frame; return the size of the whole frame."""
    if len(start) < OVERHEAD:
        raise WireError(f"frame: expected {OVERHEAD} bytes or more, got {len(start)}")
    magic, version, number, _, length = HEAD.unpack_from(start)
    if magic != MAGIC:
        raise WireError(f"frame: expected it to begin with {MAGIC!r}, got {magic!r}; not xvfl?")
    if not protocol.BASE <= version <= protocol.NEWEST:
        peer = protocol.side_of_version(version)
        raise protocol.ProtocolError(protocol.no_common_version(peer))
    if number not in KINDS:
        raise WireError(f"frame: expected a kind from 1 to {max(KINDS)}, got {number}")
    return OVERHEAD + int(length)


def frame_version(frame: bytes) -> int:
    """Read the version of the protocol of a frame whose header was checked."""
    return int(HEAD.unpack_from(frame)[1])


def kind_and_request_id(frame: bytes) -> tuple[int, int]:
    """Read the message type and request id of a frame, without its body."""
    _, _, number, request_id, _ = HEAD.unpack_from(frame)
    return number, request_id


_FIELDS: dict[Any, list[tuple[str, Any]]] = {}


def message_fields(cls: Any, version: int) -> list[tuple[str, Any]]:
    """Return names and types of the fields of a message in a version of the protocol."""
    if (cls, version) not in _FIELDS:
        hints = get_type_hints(cls, include_extras=True)
        _FIELDS[cls, version] = [
            (field.name, hints[field.name])
            for field in fields(cls)
            if field.metadata.get("since", protocol.BASE) <= version
        ]
    return _FIELDS[cls, version]


def _write(parts: list[bytes], hint: Any, value: Any, version: int) -> None:
    if hint is Tensor:
        _write_tensor(parts, value)
    elif hint is bytes:
        parts += (struct.pack("<I", len(value)), value)
    elif get_origin(hint) is Annotated:
        _write(parts, bytes, value.encode(), version)
    elif get_origin(hint) is tuple:
        parts.append(struct.pack("<H", len(value)))
        for each in value:
            _write(parts, get_args(hint)[0], each, version)
    elif is_dataclass(hint):
        for name, inner in message_fields(hint, version):
            _write(parts, inner, getattr(value, name), version)
    else:
        parts.append(_SCALARS[hint].pack(value))


def _write_tensor(parts: list[bytes], value: Tensor) -> None:
    value = value.detach().cpu().contiguous()
    parts.append(struct.pack("<BB", _CODES[value.dtype], value.dim()))
    parts.append(struct.pack(f"<{value.dim()}I", *value.shape))
    flat = value.reshape(-1)
    if flat.stride(0) != 1:
        # A tensor of one element counts as contiguous with any stride.
        flat = flat.new_empty(flat.shape).copy_(flat)
    parts.append(flat.view(torch.uint8).numpy().tobytes())


_SCALARS = {int: struct.Struct("<q"), float: struct.Struct("<d"), bool: struct.Struct("<B")}


class _Reader:
    """Read values from a frame, never past its end."""

    def __init__(self, frame: bytes, at: int) -> None:
        self.frame, self.at = memoryview(frame), at
        self.version = frame_version(frame)

    def read(self, hint: Any, where: str) -> Any:
        """Read a value; `where` is the name of its field, for errors."""
        if hint is Tensor:
            return self._tensor()
        if hint is bytes:
            return self._bytes()
        if get_origin(hint) is Annotated:
            return self._text(get_args(hint)[1], where)
        if get_origin(hint) is tuple:
            (count,) = self._unpack("<H")
            if count > MAX_ITEMS:
                raise WireError(f"tuple: expected at most {MAX_ITEMS} items, got {count}")
            return tuple(self.read(get_args(hint)[0], where) for _ in range(count))
        if is_dataclass(hint):
            make: Callable[..., Any] = hint  # type: ignore[assignment]
            inner = message_fields(hint, self.version)
            return make(**{name: self.read(each, name) for name, each in inner})
        value = self._unpack(_SCALARS[hint].format)[0]
        if hint is bool and value > 1:
            raise WireError(f"bool: expected 0 or 1, got {value}")
        return bool(value) if hint is bool else value

    def _unpack(self, form: str) -> tuple[Any, ...]:
        return struct.unpack(form, self._take(struct.calcsize(form)))

    def _take(self, count: int) -> memoryview:
        if count > len(self.frame) - self.at:
            raise WireError(
                f"frame: expected {count} more bytes, got {len(self.frame) - self.at}: truncated"
            )
        self.at += count
        return self.frame[self.at - count : self.at]

    def _bytes(self, max_length: int | None = None) -> bytes:
        (length,) = self._unpack("<I")
        if max_length is not None and length > max_length:
            raise WireError(f"text: expected at most {max_length} bytes, got {length}")
        return bytes(self._take(length))

    def _text(self, rule: TextRule, where: str) -> str:
        try:
            return rule.read(self._bytes(MAX_DOCUMENT_BYTES).decode(), where)
        except UnicodeDecodeError as error:
            raise WireError(f"text: expected UTF-8 ({error.reason})") from error

    def _tensor(self) -> Tensor:
        code, dimensions = self._unpack("<BB")
        if code not in DTYPES or dimensions > MAX_DIMENSIONS:
            raise WireError(
                f"tensor: expected a known dtype and at most {MAX_DIMENSIONS} dimensions, "
                f"got dtype {code} and {dimensions}"
            )
        shape = self._unpack(f"<{dimensions}I")
        dtype = DTYPES[code]
        data = self._take(prod(shape) * dtype.itemsize)
        if not data:
            # An empty tensor may have any size in its other dimensions: it needs no memory.
            if prod(max(size, 1) for size in shape) >= 2**62:
                raise WireError(f"tensor: expected a shape that fits in memory, got {shape}")
            return torch.empty(shape, dtype=dtype)
        if dtype == torch.bool and max(data) > 1:
            raise WireError("tensor: expected bool values 0 or 1")
        return torch.frombuffer(bytearray(data), dtype=dtype).view(shape)
