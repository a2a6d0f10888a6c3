"""Seeds of named random draws."""

from hashlib import blake2b


def seed_of(*name: int | str) -> int:
    """Turn the name of a draw into a seed."""
    digest = blake2b(repr(name).encode(), digest_size=8).digest()
    return int.from_bytes(digest, "little") >> 1
