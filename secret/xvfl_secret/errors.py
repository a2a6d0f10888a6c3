"""Errors of this package."""


class SecretError(Exception):
    """Something is wrong with the settings, the files or the other nodes; the text says what."""


class LinkLost(SecretError):
    """Another node is gone; the same command continues from the last common checkpoint."""
