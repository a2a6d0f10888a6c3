"""The manifest of an upload: its content, version and terms.

A version is uploaded in parts. Part 0 has all rows; each later part has the rows that are new or
have changed since the part before, its base, and refers to the other rows of its base.
"""

import json
import re
from dataclasses import asdict, dataclass
from datetime import datetime
from hashlib import blake2b
from math import prod

from torch import Tensor

from xvfl.config import UploadTerms
from xvfl.errors import ConfigError, WireError
from xvfl.federation.message_checks import parse_document
from xvfl.wire.limits import UPLOAD_CHUNK_BYTES
from xvfl.wire.texts import NAME

ENCODER_PREFIX = "encoder/"
MAX_WIDTH = 4096
MAX_COPIES = 31
MAX_CHUNK_ROWS = 65_536
MIN_EPSILON, MAX_EPSILON = 0.01, 50.0
MAX_NOISE = 60.0
"""Largest standard deviation of noise at ε = 1; that of a smaller ε is larger. Its values fit in
float16."""
DIGEST = re.compile(r"[0-9a-f]{32}")
CREATED = "%Y-%m-%dT%H:%M:%SZ"
FIXED = ("image", "encoder", "width", "masked_copies", "epsilon", "delta", "noise_std")
"""What all parts of a version have in common."""
Chunk = tuple[Tensor, Tensor, Tensor]
"""Origins (n,) int32 of consecutive rows, by handle; of those that are sent (m), embeddings
(m, 1 + c, d) float16 and status (m,) uint8."""


@dataclass(frozen=True)
class UploadManifest:
    """What a party uploads; its digest identifies the upload."""

    party: str
    version: int
    """Of the encoder, from 1."""
    session: str
    """The matching session that assigned the handles, in hexadecimal."""
    rows: int
    width: int
    """Width of the embeddings."""
    masked_copies: int
    """Masked copies of each row, beside the row as observed."""
    image: bool
    """Whether the party holds images."""
    encoder: str
    """Digest of the encoder's weights."""
    chunk_rows: int
    """Rows of each chunk but the last."""
    chunks: tuple[str, ...]
    """Digest of each chunk."""
    appended: int
    """Rows that are sent, and not in the base."""
    terms: UploadTerms
    created: str
    """Time of creation, ISO 8601, UTC."""
    epsilon: float | None = None
    """Differential privacy of each row; by default there is none."""
    delta: float = 0.0
    noise_std: float = 0.0
    """Standard deviation of the noise on each number of an embedding of norm 1."""
    withdrawn: int = 0
    """Number of rows that are zeros, because the party had withdrawn them before."""
    part: int = 0
    base: str = ""
    """Digest of the part before; empty for part 0, which has all rows."""
    replaced: int = 0
    """Rows that are sent in place of those of the base."""

    def __post_init__(self) -> None:
        # Noise widens the accepted range of numbers, so it needs an ε.
        epsilon = self.epsilon
        most_noise = 0.0 if epsilon is None else MAX_NOISE / max(epsilon, MIN_EPSILON)
        sizes = (
            ("version", 1, 2**31),
            ("part", 0, 2**31),
            ("rows", 0, 2**31),
            ("width", 1, MAX_WIDTH),
            ("masked_copies", 0, MAX_COPIES),
            ("chunk_rows", 1, MAX_CHUNK_ROWS),
            ("epsilon", MIN_EPSILON, MAX_EPSILON),
            ("delta", 0, 1),
            ("noise_std", 0, most_noise),
            ("withdrawn", 0, self.rows),
            ("appended", 0, self.rows),
            ("replaced", 0, self.rows),
        )
        for name, least, most in sizes:
            value = getattr(self, name)
            if value is not None and not least <= value <= most:
                raise ConfigError(f"{name}: expected {least} to {most}, got {value}")
        expected = -(-self.rows // self.chunk_rows)
        if len(self.chunks) != expected:
            raise ConfigError(f"chunks: expected {expected} digests, got {len(self.chunks)}")
        if not all(map(DIGEST.fullmatch, (*self.chunks, self.encoder))):
            raise ConfigError("expected digests of 32 hexadecimal digits")
        if 2 * prod(self.shape(0)) + 5 * self.chunk_rows > UPLOAD_CHUNK_BYTES:
            raise ConfigError(f"expected chunks of at most {UPLOAD_CHUNK_BYTES} bytes")
        try:
            datetime.strptime(self.created, CREATED)
        except ValueError as error:
            raise ConfigError(f"created: expected a time as {CREATED}") from error

    @property
    def max_value(self) -> float:
        """Largest absolute value of an embedding's numbers; noise adds ten standard deviations."""
        return 1.0 + 10 * self.noise_std

    def shape(self, number: int) -> tuple[int, int, int]:
        """Return the shape of a chunk."""
        start = number * self.chunk_rows
        return min(self.chunk_rows, self.rows - start), 1 + self.masked_copies, self.width

    @property
    def n_bytes(self) -> int:
        """Bytes that are sent, without the manifest."""
        return 4 * self.rows + (self.appended + self.replaced) * self.row_bytes

    @property
    def row_bytes(self) -> int:
        """Bytes of a row that is sent."""
        return 2 * (1 + self.masked_copies) * self.width + 1

    @property
    def name(self) -> str:
        """Version and part, as `2` or `2.1`."""
        return f"{self.version}.{self.part}" if self.part else str(self.version)

    @property
    def order(self) -> tuple[int, int]:
        """Version and part, for comparison."""
        return self.version, self.part

    def check_base(self, base: "UploadManifest | None") -> None:
        """Reject a part that does not follow this one of the same version."""
        if not self.part:
            return
        if base is None or (base.version, base.part + 1, base.digest) != (*self.order, self.base):
            raise WireError(
                f"upload {self.name}: expected one that follows {base.name if base else 'none'}, "
                "the last one; if another is lost, `xvfl upload new-version --keep-encoder` helps"
            )
        if changed := [name for name in FIXED if getattr(self, name) != getattr(base, name)]:
            raise WireError(f"upload {self.name}: expected {', '.join(changed)} as before")

    def to_json(self) -> str:
        """Write the manifest; equal manifests are equal texts."""
        return json.dumps(asdict(self), sort_keys=True, ensure_ascii=False)

    @property
    def digest(self) -> str:
        """Digest of the whole upload."""
        return blake2b(self.to_json().encode(), digest_size=16).hexdigest()


def parse_manifest(text: str) -> UploadManifest:
    """Parse and check the manifest that a party sent."""
    manifest: UploadManifest = parse_document(UploadManifest, text, "upload")
    for field in ("party", "session", "created"):
        NAME.read(getattr(manifest, field), f"upload: {field}")
    return manifest


def chunk_digest(chunk: Chunk) -> str:
    """Return the digest of a chunk: origins, embeddings and status of its rows."""
    digest = blake2b(digest_size=16)
    for part in chunk:
        digest.update(part.cpu().contiguous().numpy().tobytes())
    return digest.hexdigest()


def encoder_name(version: int) -> str:
    """Return the name under which a coordinator asks for embeddings of an encoder's version."""
    return f"{ENCODER_PREFIX}{version}"


def encoder_version(name: str) -> int | None:
    """Return the version of an encoder's name; None for the name of an interactive run."""
    version = name.removeprefix(ENCODER_PREFIX)
    return int(version) if version != name and version.isdecimal() else None
