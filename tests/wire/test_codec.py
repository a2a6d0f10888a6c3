"""The codec: every message comes back as it went, and nothing else comes back as a message."""

import random
from dataclasses import fields, is_dataclass
from typing import Annotated, Any, get_args, get_origin, get_type_hints

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from xvfl.errors import WireError
from xvfl.system.printable import printable
from xvfl.wire.codec import CRC, DTYPES, HEAD, OVERHEAD, decode, encode
from xvfl.wire.messages import KINDS, Done, Embed, Embedded, EmbedRows, Gradient, Instruction
from xvfl.wire.texts import CODE, DOCUMENT, LINE, NAME, NOTE

INTEGERS = st.integers(-(2**63), 2**63 - 1)


@st.composite
def tensors(draw: st.DrawFn) -> Tensor:
    dtype = draw(st.sampled_from(list(DTYPES.values())))
    shape = draw(st.lists(st.integers(0, 4), max_size=4))
    rng = torch.Generator().manual_seed(draw(st.integers(0, 2**31)))
    values = torch.randint(-100, 100, shape, generator=rng)
    return values.to(dtype)


TEXTS = {
    CODE: st.from_regex(CODE.pattern or "", fullmatch=True).filter(lambda text: len(text) <= 128),
    NAME: st.from_regex(NAME.pattern or "", fullmatch=True).filter(lambda text: len(text) <= 100),
    LINE: st.text(max_size=50).map(printable),
    NOTE: st.text(max_size=20).map(printable),
    DOCUMENT: st.text(max_size=50),
}
"""Texts that arrive as they were sent."""


def strategy(hint: Any) -> st.SearchStrategy[Any]:
    """Draw values of a field's type."""
    if get_origin(hint) is tuple:
        return st.lists(strategy(get_args(hint)[0]), max_size=3).map(tuple)
    if get_origin(hint) is Annotated:
        return TEXTS[get_args(hint)[1]]
    if is_dataclass(hint):
        hints = get_type_hints(hint, include_extras=True)
        return st.builds(hint, **{f.name: strategy(hints[f.name]) for f in fields(hint)})
    return {
        int: INTEGERS,
        bool: st.booleans(),
        float: st.floats(allow_nan=False),
        bytes: st.binary(max_size=50),
        Tensor: tensors(),
    }[hint]


@st.composite
def messages(draw: st.DrawFn) -> Any:
    kind = draw(st.sampled_from(list(KINDS.values())))
    hints = get_type_hints(kind, include_extras=True)
    values = {f.name: draw(strategy(hints[f.name])) for f in fields(kind)[1:]}
    return kind(request_id=draw(st.integers(0, 2**64 - 1)), **values)


def same(a: Any, b: Any) -> bool:
    """Compare messages field by field; tensors by type, shape and value."""
    if isinstance(a, Tensor):
        return a.dtype == b.dtype and a.shape == b.shape and torch.equal(a, b)
    if isinstance(a, tuple):
        return len(a) == len(b) and all(same(x, y) for x, y in zip(a, b, strict=True))
    if is_dataclass(a):
        names = [f.name for f in fields(a)]
        return type(a) is type(b) and all(same(getattr(a, n), getattr(b, n)) for n in names)
    return bool(a == b) and type(a) is type(b)


@given(messages())
@settings(max_examples=300)
def test_a_message_comes_back_as_it_went(message: Any) -> None:
    assert same(decode(encode(message)), message)


def test_a_column_of_one_row_is_sent() -> None:
    handles = torch.tensor([[3, 4, 5]], dtype=torch.int32)[:, 1]
    assert handles.stride() == (3,)
    message = EmbedRows(1, "caller", ("plain",), handles)
    assert same(decode(encode(message)), message)


def test_the_numbers_of_the_messages_are_part_of_the_protocol() -> None:
    assert {number: kind.__name__ for number, kind in KINDS.items()} == {
        1: "Hello",
        2: "ErrorReply",
        3: "Begin",
        4: "Ready",
        5: "Embed",
        6: "Embedded",
        7: "Complete",
        8: "Completed",
        9: "Backward",
        10: "CueGradient",
        11: "Flush",
        12: "Done",
        13: "Match",
        14: "Matched",
        15: "Release",
        16: "End",
        17: "Challenge",
        18: "Proof",
        19: "OpenPrediction",
        20: "PredictionOpened",
        21: "EmbedRows",
        22: "RowEmbeddings",
        23: "Assist",
        24: "Assistance",
        25: "HeldOut",
        26: "AskUpload",
        27: "UploadOffer",
        28: "AskChunk",
        29: "UploadChunk",
        30: "UploadStored",
        31: "Withdraw",
        32: "Receipt",
        33: "NewestEntries",
        34: "AskApproval",
    }


def a_step() -> bytes:
    update = Instruction(3, "step", 0.1)
    gradient = Gradient(6, torch.randn(5, 2, 4))
    return encode(Embed(7, (gradient,), (update,), 2, True, ("plain", "self"), torch.arange(5)))


def test_ten_thousand_random_and_mutated_frames_end_in_an_error() -> None:
    rng = random.Random(0)
    whole = a_step()
    for turn in range(10_000):
        if turn % 2:
            frame = rng.randbytes(rng.randrange(120))
        else:
            damaged = bytearray(whole)
            for _ in range(rng.randint(1, 4)):
                damaged[rng.randrange(len(damaged))] ^= 1 << rng.randrange(8)
            frame = bytes(damaged[: rng.choice([len(damaged), rng.randrange(len(damaged))])])
        if frame == whole:
            continue
        with pytest.raises(WireError):
            decode(frame)


def with_checksum(frame: bytes) -> bytes:
    """Put the right checksum on a forged frame, so that its body is looked at."""
    import zlib

    head, body = frame[: HEAD.size], frame[OVERHEAD:]
    head = HEAD.pack(*HEAD.unpack(head)[:4], len(body))
    return head + CRC.pack(zlib.crc32(body, zlib.crc32(head))) + body


def test_forged_bodies_with_a_right_checksum_end_in_an_error_or_a_message() -> None:
    rng = random.Random(1)
    whole, refused = a_step(), 0
    for _ in range(10_000):
        damaged = bytearray(whole)
        for _ in range(rng.randint(1, 6)):
            damaged[rng.randrange(OVERHEAD, len(damaged))] = rng.randrange(256)
        cut = rng.choice([len(damaged), rng.randrange(OVERHEAD, len(damaged))])
        try:
            decode(with_checksum(bytes(damaged[:cut])))
        except WireError:
            refused += 1
    assert refused > 5_000


def test_a_huge_claim_takes_no_memory() -> None:
    frame = bytearray(encode(Embedded(1, torch.zeros(1, 1, 1))))
    at = OVERHEAD + 2
    frame[at : at + 12] = b"\xff" * 12
    with pytest.raises(WireError, match="truncated"):
        decode(with_checksum(bytes(frame)))
    frame[at : at + 12] = b"\xff" * 8 + b"\0" * 4
    with pytest.raises(WireError, match="fits in memory|too many"):
        decode(with_checksum(bytes(frame[:-4])))


@pytest.mark.parametrize(
    ("change", "said"),
    [
        (lambda f: b"GET / HTTP/1.1\r\n\r\n" + f, "not xvfl"),
        (lambda f: f[:2] + b"\x09\0" + f[4:], "no common protocol version"),
        (lambda f: f[:4] + b"\x63\0" + f[6:], "kind"),
        (lambda f: f + b"\0", "body"),
        (lambda f: f[:-1] + b"\x01", "checksum"),
        (lambda f: b"", "or more, got 0"),
    ],
)
def test_what_is_wrong_is_said(change: Any, said: str) -> None:
    with pytest.raises(WireError, match=said):
        decode(change(encode(Done(1, 2))))


def test_too_large() -> None:
    with pytest.raises(WireError, match="at most 20 bytes"):
        decode(encode(Done(1, 2)), max_bytes=20)
