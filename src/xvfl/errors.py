"""Exceptions and warnings of xvfl.

XVFLError                 base class; the command line prints one line and exits with code 2
├── InputError            a table, an argument or a custom net cannot be used
├── ConfigError           a configuration key or value is invalid
├── RunError              a run or service cannot start or continue
│   └── NotYetError       a coordinator does not accept a party now, but it may later
├── ModeError             the model does not support the requested prediction
├── WireError             a message is damaged, unexpected, or of another protocol version
├── PartyError            a party is unavailable or failed, or too few parties are available
├── MatchingError         a message violates the protocol of private id matching
└── CertificateError      a certificate, key or revocation list is invalid or not trusted

Each message states what was expected, what was received, and what to do.
"""

import sys
import warnings
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from difflib import get_close_matches
from types import FrameType
from typing import Literal

Fault = Literal["away", "refused", "wrong"]
"""How a party failed: no answer in time, an answer refused, or an invalid answer."""


class XVFLError(Exception):
    """Base class of all exceptions that xvfl raises."""


class InputError(XVFLError, ValueError):
    """An input cannot be used: a table, ids, columns, labels, an argument, or a custom net.

    Parameters
    ----------
    *problems : str
        What is wrong; several are listed, one per line.
    """

    def __init__(self, *problems: str) -> None:
        self.problems = problems
        """The individual messages."""
        listed = "".join(f"\n- {each}" for each in problems)
        text = f"{len(problems)} problems:{listed}" if len(problems) > 1 else "".join(problems)
        super().__init__(text)

    def __reduce__(self) -> tuple[type["InputError"], tuple[str, ...]]:
        return type(self), self.problems

    @classmethod
    @contextmanager
    def collected(cls, found: list[str]) -> Iterator[None]:
        """Add the problems of an error inside to a list, instead of raising it."""
        try:
            yield
        except InputError as error:
            found += [each for each in error.problems if each not in found]


class ConfigError(XVFLError, ValueError):
    """A configuration key or value is invalid."""


class RunError(XVFLError, RuntimeError):
    """A run or service cannot start or continue.

    For example, a run folder is missing, incomplete, of another format or not writable, a port is
    in use, or a party does not connect.
    """


class NotYetError(RunError):
    """A coordinator does not accept a party now, but it may later."""


class ModeError(XVFLError, ValueError):
    """The model does not support the requested prediction mode, party or completion."""


class WireError(XVFLError, ValueError):
    """A message is damaged, unexpected, or of another protocol version."""


class PartyError(XVFLError, RuntimeError):
    """A party is unavailable or failed, or too few parties are available.

    Parameters
    ----------
    text : str
        Error message.
    parties : tuple of str, default=()
        Names of the failed parties.
    fault : {"away", "refused", "wrong"}, default="away"
        How they failed: no answer in time, an answer refused, or an invalid answer.
    """

    def __init__(self, text: str, parties: tuple[str, ...] = (), fault: Fault = "away") -> None:
        super().__init__(text)
        self.parties, self.fault = parties, fault
        self.each: tuple[PartyError, ...] = (self,)
        """The individual errors, if parties failed in different ways."""

    @classmethod
    def joined(cls, errors: Sequence["PartyError"]) -> "PartyError":
        """Combine the errors of several parties into one."""
        if len(errors) == 1:
            return errors[0]
        parties = tuple(name for error in errors for name in error.parties)
        combined = cls("; ".join(map(str, errors)), parties, errors[0].fault)
        combined.each = tuple(errors)
        return combined


class MatchingError(XVFLError, ValueError):
    """A message violates the protocol of private id matching."""


class CertificateError(XVFLError, ValueError):
    """A certificate, key or revocation list is invalid, unreadable or not trusted."""


class DataWarning(UserWarning):
    """Some data is ignored or replaced; processing continues."""


INTERNAL = frozenset(("xvfl", "xvfl_serve", "sklearn", "joblib"))
"""Packages whose lines no warning points to: it points to the line that called them."""


def warn(text: str) -> None:
    """Give a `DataWarning` that points to the line of the user's code."""
    frame: FrameType | None = sys._getframe(1)
    caller = sys._getframe(1)
    while frame is not None:
        if str(frame.f_globals.get("__name__")).partition(".")[0] in INTERNAL:
            caller = frame.f_back or frame
        frame = frame.f_back
    names = caller.f_globals
    registry = names.setdefault("__warningregistry__", {})
    place = caller.f_code.co_filename, caller.f_lineno, names.get("__name__"), registry
    warnings.warn_explicit(text, DataWarning, *place)


def unknown(what: str, given: str, valid: Iterable[str]) -> str:
    """Format an error message for an unknown name: the closest valid name, and all of them."""
    names = [str(name) for name in valid]
    near = get_close_matches(given, names, n=1, cutoff=0.5)
    hint = f"did you mean {near[0]!r}? " if near else ""
    return f"unknown {what} {given!r}: {hint}valid: {', '.join(names)}"
