"""The trail of a side: an append-only, hash-chained record of what it did and what it refused."""
