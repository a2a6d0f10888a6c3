"""Packages that only some commands need."""

from collections.abc import Iterator
from contextlib import contextmanager

from xvfl.errors import InputError


@contextmanager
def extra(name: str) -> Iterator[None]:
    """Say which extra to install when an import inside finds a package missing."""
    try:
        yield
    except ModuleNotFoundError as error:
        raise InputError(
            f"this command needs the package {error.name}: pip install 'xvfl[{name}]'"
        ) from error
