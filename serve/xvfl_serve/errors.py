"""Exceptions of xvfl-serve.

ServeError           base class; the command line prints one line and exits with code 2
├── BundleError      a bundle is damaged, of another format, or not signed as expected
└── RequestError     a request cannot be answered; it has an HTTP status and the field's name
    └── UnavailableError      it cannot be answered now; the caller may try again
        └── OverloadedError   it waited so long that no time is left to answer it

Each message states what was expected, what was received, and what to do.
"""

from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from difflib import get_close_matches


class ServeError(Exception):
    """Base class of all exceptions that xvfl-serve raises."""


class BundleError(ServeError, ValueError):
    """A bundle is damaged, of another format, or not signed as expected."""


class RequestError(ServeError, ValueError):
    """A request cannot be answered.

    Parameters
    ----------
    message : str
        Error message.
    field : str, default=""
        Name of the field at fault; '' if there is none.
    row : int, optional
        Number of the row at fault, from 0.
    status : int, default=422
        HTTP status of the answer.
    """

    retry_after = 1
    """Seconds after which the caller may try again, with status 503."""

    def __init__(
        self, message: str, field: str = "", row: int | None = None, status: int = 422
    ) -> None:
        super().__init__(message)
        self.message, self.field, self.row, self.status = message, field, row, status


class UnavailableError(RequestError):
    """A request cannot be answered now; the caller may try again."""

    retry_after = 5

    def __init__(self, message: str) -> None:
        super().__init__(message, status=503)


class OverloadedError(UnavailableError):
    """A request waited so long that there is no time left to answer it."""

    retry_after = 1


@contextmanager
def bundle_errors(where: str) -> Iterator[None]:
    """Turn every error of loading a bundle into a `BundleError` of one line.

    A bundle may come from anywhere: what its contents make Python, numpy or ONNX Runtime raise is
    not known beforehand.
    """
    try:
        yield
    except RequestError as error:
        raise BundleError(f"{where}: it cannot predict ({error}); export it again") from error
    except ServeError:
        raise
    except Exception as error:
        reason = " ".join(f"{type(error).__name__}: {error}".split())[:300]
        raise BundleError(f"{where}: cannot be loaded ({reason}); export it again") from error


def unknown(what: str, given: str, valid: Iterable[str]) -> str:
    """Format an error message for an unknown name: the closest valid name, and all of them."""
    given, names = given[:100], [str(name) for name in valid]
    near = get_close_matches(given, names, n=1, cutoff=0.5)
    hint = f"did you mean {near[0]!r}? " if near else ""
    shown = ", ".join(names[:20]) + (f" and {len(names) - 20} more" if len(names) > 20 else "")
    return f"unknown {what} {given!r}: {hint}valid: {shown}"
