"""Optional dependencies of some commands."""

from collections.abc import Iterator
from contextlib import contextmanager

from xvfl.errors import InputError


@contextmanager
def require_extra(name: str) -> Iterator[None]:
    """Name the extra to install if an import inside the block fails."""
    try:
        yield
    except ModuleNotFoundError as error:
        raise InputError(
            f"this command needs the package {error.name}: pip install 'xvfl[{name}]'"
        ) from error
