"""The secret of a process: the source of its random numbers, which no other process knows."""

import secrets
import stat
from hashlib import blake2b

from xvfl.certs.pem_files import OWNER_ONLY, write_new
from xvfl.errors import RunError
from xvfl.model.run_dir import RunDir

SECRET = "secret.key"
N_BYTES = 32


def load_secret(folder: RunDir) -> bytes:
    """Load the secret of a state folder; generate it on first use."""
    path = folder / SECRET
    if not path.is_file():
        write_new(path, secrets.token_hex(N_BYTES).encode(), OWNER_ONLY)
    if stat.S_IMODE(path.stat().st_mode) & 0o077:
        raise RunError(f"{path}: other users can read it; run `chmod 600 {path}`")
    try:
        secret = bytes.fromhex(path.read_text(encoding="ascii"))
    except (OSError, ValueError) as error:
        raise RunError(f"{path}: cannot be read ({error}); restore it") from error
    if len(secret) != N_BYTES:
        raise RunError(f"{path}: expected {N_BYTES} bytes, got {len(secret)}; restore it")
    return secret


def run_seed(secret: bytes, run: str) -> int:
    """Derive the seed of a run, of 256 bits."""
    digest = blake2b(run.encode(), key=secret, digest_size=N_BYTES).digest()
    return int.from_bytes(digest, "big") | 1 << 255
