"""Every message that crosses between organisations, as a type.

A coordinator asks, a party answers; `(turn, kind)` names a question, and its answer bears the same
turn. Tensors of a batch have only the rows that their comment names.
Shapes: B rows of the batch, H ≤ B of them held by the party, v views, d embedding width.
"""

from dataclasses import dataclass
from typing import Any

from torch import Tensor


@dataclass(frozen=True)
class Hello:
    """A party's first words on a new connection."""

    turn: int
    life: str
    """Drawn when the process started: tells a broken line from a restarted party."""
    image: bool
    """Whether its rows are images; decides the default widths."""
    rows: int
    """How many rows it takes part with: those of its alignment."""
    columns: str
    """Digest of its encoded columns' layout."""
    session: str
    """Name of the id matching that its handles come from."""


@dataclass(frozen=True)
class ErrorReply:
    """What the other side did wrong; nothing changed here."""

    turn: int
    code: str
    text: str


@dataclass(frozen=True)
class Begin:
    """Take part in a run, from its newest own checkpoint at or before a step."""

    turn: int
    run: str
    step: int
    """Where the run is; −1: go on as you are."""
    settings: str
    """The run's settings, JSON."""
    training: Tensor
    """(n,) int32: handles of the rows to train on; encoders are fitted on them alone."""


@dataclass(frozen=True)
class Ready:
    """Where a party stands."""

    turn: int
    step: int
    """Step of the checkpoint it began from."""
    applied: int
    """Number of the last update it made."""
    holdings: Tensor
    """(n,) uint8 of each handle: 0 nothing observed, 1 some, 2 full at the party."""


@dataclass(frozen=True)
class Instruction:
    """An update of the weights, encode_labels so that none is made twice."""

    number: int
    kind: str
    rate: float


@dataclass(frozen=True)
class Gradient:
    """∂L/∂ of what a party sent in an earlier turn."""

    ticket: int
    values: Tensor
    """(H, v, d) of an `Embed`, (B, d) of a `Complete`."""


@dataclass(frozen=True)
class Embed:
    """Finish the last step, then embed rows."""

    turn: int
    gradients: tuple[Gradient, ...]
    instructions: tuple[Instruction, ...]
    step: int
    """Names the random draws."""
    training: bool
    views: tuple[str, ...]
    handles: Tensor
    """(B,) int32; −1 a row the party does not hold."""


@dataclass(frozen=True)
class Embedded:
    """Embeddings of the rows the party holds."""

    turn: int
    applied: int
    values: Tensor
    """(H, v, d)"""


@dataclass(frozen=True)
class Complete:
    """Complete the rows of a ticket from a cue; absent rows carry a cue and no handle."""

    turn: int
    ticket: int
    """The turn of the `Embed`."""
    cue: Tensor
    """(B, d)"""
    whole: Tensor
    """(B,) bool: complete everything, observed or not."""


@dataclass(frozen=True)
class Completed:
    """Embeddings of the completed rows."""

    turn: int
    values: Tensor
    """(B, d)"""


@dataclass(frozen=True)
class Backward:
    """Give the gradient of the cue for that of the completed embeddings."""

    turn: int
    gradient: Gradient


@dataclass(frozen=True)
class CueGradient:
    """∂L/∂cue, the party's own objective included."""

    turn: int
    values: Tensor
    """(B, d)"""


@dataclass(frozen=True)
class Flush:
    """Finish the last step without beginning another; keep a checkpoint where `save` says."""

    turn: int
    gradients: tuple[Gradient, ...]
    instructions: tuple[Instruction, ...]
    save: int
    """Step to name the checkpoint by; −1: none."""


@dataclass(frozen=True)
class Done:
    """It is done."""

    turn: int
    applied: int


@dataclass(frozen=True)
class Match:
    """A message of private id matching, in its own format."""

    turn: int
    body: bytes


@dataclass(frozen=True)
class Matched:
    """The answer to it."""

    turn: int
    body: bytes


@dataclass(frozen=True)
class Release:
    """The head and what prediction needs besides, signed by the coordinator."""

    turn: int
    manifest: str
    """JSON; names the head's tensors."""
    tensors: tuple[Tensor, ...]
    signature: bytes


@dataclass(frozen=True)
class End:
    """The run is over."""

    turn: int
    reason: str


Message = (
    Hello
    | ErrorReply
    | Begin
    | Ready
    | Embed
    | Embedded
    | Complete
    | Completed
    | Backward
    | CueGradient
    | Flush
    | Done
    | Match
    | Matched
    | Release
    | End
)

KINDS: dict[int, type[Any]] = {
    1: Hello,
    2: ErrorReply,
    3: Begin,
    4: Ready,
    5: Embed,
    6: Embedded,
    7: Complete,
    8: Completed,
    9: Backward,
    10: CueGradient,
    11: Flush,
    12: Done,
    13: Match,
    14: Matched,
    15: Release,
    16: End,
}
"""The number of each message in a frame; never given to another one."""

ANSWERS: dict[type[Any], type[Any]] = {
    Begin: Ready,
    Embed: Embedded,
    Complete: Completed,
    Backward: CueGradient,
    Flush: Done,
    Match: Matched,
    Release: Done,
    End: Done,
}
"""What a party answers, unless it refuses."""
