"""The messages between coordinator and parties.

The coordinator sends requests, a party replies; a reply carries the id of its request. `Assist`,
`Withdraw` and `NewestEntries` are requests of a party.
Shapes: B rows of the batch, H ≤ B of them held by the party, v views, M members, d embedding width
of a member. Texts are of the kinds in `texts`, which say what a receiver accepts.
"""

from dataclasses import dataclass, field
from time import time
from typing import Any, get_args

from torch import Tensor

from xvfl.wire.protocol import Side, own_side
from xvfl.wire.texts import Code, Document, Line, Name, Note


@dataclass(frozen=True)
class Numbered:
    """A request, or a reply with the id of its request."""

    request_id: int


@dataclass(frozen=True)
class Hello(Numbered):
    """A party describes itself, after it has checked the coordinator's `Proof`."""

    instance_id: Code
    """Random id of the process: tells a reconnecting party from a restarted one."""
    image: bool
    """Whether the party holds images; decides the default widths."""
    rows: int
    """Number of aligned rows."""
    columns: Code
    """Digest of the column names."""
    session: Code
    """Id of the matching session that assigned the handles."""
    purpose: Code = "training"
    """What the party does: `training`, or `prediction` after training."""


@dataclass(frozen=True)
class ErrorReply(Numbered):
    """The request was rejected and had no effect."""

    code: Code
    text: Line


@dataclass(frozen=True)
class Begin(Numbered):
    """Begin a run, from the party's newest checkpoint at or before a step."""

    run: Name
    step: int
    """The step of the last common checkpoint; 0 without one."""
    settings: Document
    """JSON of `RunSettings`."""
    training: Tensor
    """(n,) int32 handles of the training rows; encoders are fitted on them only."""


@dataclass(frozen=True)
class Ready(Numbered):
    """Reply to `Begin`: the state of the party."""

    step: int
    """Step of the checkpoint that was loaded."""
    last_update: int
    """Number of the last update applied."""
    row_status: Tensor
    """(n,) uint8 by handle: 0 nothing observed, 1 partly observed, 2 full."""


@dataclass(frozen=True)
class Instruction:
    """A numbered weight update, so that none is applied twice."""

    number: int
    kind: Code
    rate: float


@dataclass(frozen=True)
class Gradient:
    """Gradient of the loss with respect to a tensor that the party sent."""

    tensor_id: int
    """Id of the request that the tensor replied to."""
    values: Tensor
    """(H, v, M·d) for `Embedded`, (B, M·d) for `Completed`."""


@dataclass(frozen=True)
class FinishStep(Numbered):
    """What finishes the last step: the gradients of its tensors, then weight updates."""

    gradients: tuple[Gradient, ...]
    instructions: tuple[Instruction, ...]


@dataclass(frozen=True)
class Embed(FinishStep):
    """Finish the last step, then embed rows; the reply is `Embedded`."""

    step: int
    """Determines the random numbers."""
    training: bool
    views: tuple[Code, ...]
    handles: Tensor
    """(B,) int32; −1 for a row that the party does not hold."""


@dataclass(frozen=True)
class Embedded(Numbered):
    """Embeddings of the rows that the party holds."""

    values: Tensor
    """(H, v, M·d)"""


@dataclass(frozen=True)
class Complete(Numbered):
    """Embed the rows of the last `Embed`, completed from cues; the reply is `Completed`."""

    tensor_id: int
    """Request id of the `Embed`."""
    cue: Tensor
    """(B, M·d)"""
    replace_observed: Tensor
    """(B,) bool: rows whose observed features are replaced as well."""


@dataclass(frozen=True)
class Completed(Numbered):
    """Embeddings of the completed rows."""

    values: Tensor
    """(B, M·d)"""


@dataclass(frozen=True)
class Backward(Numbered):
    """Backpropagate through a completion; the reply is `CueGradient`."""

    gradient: Gradient


@dataclass(frozen=True)
class CueGradient(Numbered):
    """Gradient of the coordinator's loss with respect to the cue."""

    values: Tensor
    """(B, M·d)"""


@dataclass(frozen=True)
class Flush(FinishStep):
    """Finish the last step, and optionally save a checkpoint; the reply is `Done`."""

    save: int
    """Step of the checkpoint; −1: none."""


@dataclass(frozen=True)
class Done(Numbered):
    """The request was carried out."""

    last_update: int


@dataclass(frozen=True)
class Match(Numbered):
    """A message of private id matching, in the format of `xvfl.matching`."""

    body: bytes


@dataclass(frozen=True)
class Matched(Numbered):
    """Reply to `Match`."""

    body: bytes


@dataclass(frozen=True)
class Release(Numbered):
    """The head and all else that local prediction needs, signed by the coordinator."""

    manifest: Document
    """JSON; lists the names of the tensors."""
    tensors: tuple[Tensor, ...]
    signature: bytes


@dataclass(frozen=True)
class OpenPrediction(Numbered):
    """Load the final weights of a run to predict; the reply is `PredictionOpened`."""

    run: Name


@dataclass(frozen=True)
class PredictionOpened(Numbered):
    """The party is ready for `EmbedRows`."""

    n_features: int
    """Number of features of the party."""


@dataclass(frozen=True)
class EmbedRows(Numbered):
    """Embed rows of the prediction table, in evaluation mode; the reply is `RowEmbeddings`."""

    caller: Name
    """On whose behalf; the party has a budget for each caller."""
    views: tuple[Code, ...]
    handles: Tensor
    """(B,) int32; −1 for a row that the party does not hold."""


@dataclass(frozen=True)
class RowEmbeddings(Numbered):
    """Embeddings of the rows within the party's budgets, and how completely they are observed."""

    values: Tensor
    """(H, v, M·d), without refused rows."""
    row_status: Tensor
    """(B,) uint8: 0 nothing observed, 1 partly observed, 2 full, 3 refused by a budget."""
    observed: Tensor
    """(B,) float32 share of the party's features that are observed."""
    refusal: Note
    """Which budget refused rows; empty if none did."""


@dataclass(frozen=True)
class Assist(Numbered):
    """A party's request for the help of its peers with incomplete rows."""

    caller: Name
    seconds: float
    """Time to answer."""
    handles: Tensor
    """(B,) int32 handles of the party; rows without a gap get no help."""


@dataclass(frozen=True)
class RowAnswer:
    """How a row was predicted."""

    mode: Code
    """assisted, collaborative or local; `prior` if no party observes it; `refused`."""
    parties: tuple[Name, ...]
    """Parties that contributed."""
    refused: tuple[Name, ...]
    """Parties that have used up a budget for the row."""
    completed: float
    """Share of completed features."""
    notes: tuple[Note, ...]


@dataclass(frozen=True)
class Assistance(Numbered):
    """Reply to `Assist`: the prediction of each row by the party and its peers.

    The coordinator asks the party for its embeddings of these rows, as for any prediction.
    """

    values: Tensor
    """(B, C) float64 probabilities, or (B, 1) numbers."""
    rows: tuple[RowAnswer, ...]
    """(B,)"""
    unreachable: tuple[Line, ...]
    """Names and reasons in turn."""


@dataclass(frozen=True)
class HeldOut(Numbered):
    """Rows from which a party must not learn: those of validation and test; the reply is `Done`.

    They are drawn without looking at labels. A party accepts one list for an alignment.
    """

    handles: Tensor
    """(n,) int32"""


@dataclass(frozen=True)
class AskUpload(Numbered):
    """Ask for the party's upload; the reply is `UploadOffer`."""


@dataclass(frozen=True)
class UploadOffer(Numbered):
    """The newest version of a party's upload, or how far the training of its encoder is."""

    version: int
    """0 while the party has none."""
    progress: float
    """Finished share of the training."""
    manifest: Document
    """JSON of `UploadManifest`; empty while there is none."""
    problem: Line
    """Why the party has no upload; empty if there is no problem."""


@dataclass(frozen=True)
class AskChunk(Numbered):
    """Ask for a chunk of an upload; the reply is `UploadChunk`."""

    version: int
    number: int


@dataclass(frozen=True)
class UploadChunk(Numbered):
    """Consecutive rows of an upload, by handle."""

    origin: Tensor
    """(n,) int32: the row's handle in the part before; -1 a new row, -2 a changed one, which are
    sent; -3 a withdrawn one."""
    values: Tensor
    """(m, 1 + c, d) float16, of rows that are sent: as observed, then c masked copies."""
    row_status: Tensor
    """(m,) uint8: 0 nothing observed, 1 partly observed, 2 full."""


@dataclass(frozen=True)
class UploadStored(Numbered):
    """The coordinator has stored a whole upload; the reply is `Done`."""

    version: int
    digest: Code
    """Of the manifest."""


@dataclass(frozen=True)
class Withdraw(Numbered):
    """A party's request to delete what it uploaded; the reply is `Receipt`.

    It names rows, or one version, or everything up to a version.
    """

    session: Code
    """The alignment of `handles`."""
    version: int
    """Version to delete; 0 to delete rows of all versions."""
    everything: bool
    """Delete all earlier versions as well."""
    handles: Tensor
    """(n,) int32 rows to delete; empty with a version."""


@dataclass(frozen=True)
class Receipt(Numbered):
    """The coordinator has deleted what a party withdrew."""

    manifest: Document
    """JSON: what was deleted, and the heads that were trained on it."""
    signature: bytes
    """By the key that signs releases."""


@dataclass(frozen=True)
class NewestEntries(Numbered):
    """Newest entries of trails; a party's request, and the coordinator's reply to it."""

    ids: Code
    """The sender's newest entry, and the newest one of the receiver that it has recorded."""


@dataclass(frozen=True)
class AskApproval(Numbered):
    """Ask a party's operator for another version or part of the upload; the reply is `Done`.

    The party shows it to its operator, and does nothing else.
    """

    kind: Code
    reason: Line


@dataclass(frozen=True)
class End(Numbered):
    """The run has ended."""

    reason: Line


@dataclass(frozen=True)
class Challenge(Numbered):
    """The first message of a party on a new connection; the reply is `Proof`."""

    nonce: bytes
    """32 random bytes."""
    time: float = field(default_factory=time)
    """The sender's clock, in seconds since 1970."""
    side: Side = field(default_factory=own_side)
    """Versions of the protocol that the sender speaks."""


@dataclass(frozen=True)
class Proof(Numbered):
    """The coordinator's certificate, which gRPC does not show to the party."""

    certificate: bytes
    """PEM, then those of intermediate authorities."""
    signature: bytes
    """Signature of the nonce and the party's certificate by the key of this certificate."""
    time: float = field(default_factory=time)
    """The sender's clock, in seconds since 1970."""
    side: Side = field(default_factory=own_side)
    """Versions of the protocol that the sender speaks."""


Training = Begin | Ready | Embed | Embedded | Complete | Completed | Backward | CueGradient | Flush
Common = Done | Match | Matched | Release | End | Challenge | Proof
Prediction = OpenPrediction | PredictionOpened | EmbedRows | RowEmbeddings | Assist | Assistance
Upload = HeldOut | AskUpload | UploadOffer | AskChunk | UploadChunk | UploadStored
Withdrawal = Withdraw | Receipt | NewestEntries
Message = Hello | ErrorReply | Training | Common | Prediction | Upload | Withdrawal | AskApproval

KINDS: dict[int, type[Any]] = dict(enumerate(get_args(Message), 1))
"""Type number of each message in a frame: its place in `Message`. New messages are added at the
end, and a number is never reused."""
