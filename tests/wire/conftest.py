"""Certificates, made once."""

from tests.wire.lines import authority

__all__ = ["authority"]
