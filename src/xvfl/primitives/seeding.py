"""Seeds from names."""

from hashlib import blake2b


def derive_seed(*name: int | str) -> int:
    """Hash a name to a seed, the same on every machine."""
    digest = blake2b(repr(name).encode(), digest_size=8).digest()
    return int.from_bytes(digest, "little") >> 1
