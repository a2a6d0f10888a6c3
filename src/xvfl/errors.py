"""The errors xvfl raises.

XVFLError                 everything below; the command line prints it as one line and exits with 2
├── InputError            a table, its ids, columns or labels are not usable as given
├── ConfigError           a configuration key or value is wrong
├── RunError              a run folder is missing, cut short, of another version, or unwritable
├── ModeError             a prediction was asked for in a way this model cannot answer
├── WireError             a message is damaged, out of order, of another version or not as agreed
├── PartyError            a party is away, refuses or answers wrongly, or too few are there
├── MatchingError         a message of private id matching is not what the protocol says
└── CertificateError      a certificate, key or revocation list cannot be made, read or trusted

Each message says what was expected, what arrived, and what to do.
"""

from collections.abc import Iterable, Sequence
from difflib import get_close_matches
from typing import Literal

Fault = Literal["away", "refused", "wrong"]
"""How a party failed: gave no answer in time, would not answer, or answered wrongly."""


class XVFLError(Exception):
    """Root of everything xvfl raises on purpose."""


class InputError(XVFLError, ValueError):
    """A table, its ids, columns or labels are not usable as given."""


class ConfigError(XVFLError, ValueError):
    """A configuration key or value is wrong."""


class RunError(XVFLError, RuntimeError):
    """A run folder is missing, cut short, of another version, or cannot be written."""


class ModeError(XVFLError, ValueError):
    """A prediction was asked for in a way this model cannot answer."""


class WireError(XVFLError, ValueError):
    """A message is damaged, out of order, of another version or not as agreed."""


class PartyError(XVFLError, RuntimeError):
    """A party is away, refuses or answers wrongly, or too few are there to go on."""

    def __init__(self, text: str, parties: tuple[str, ...] = (), fault: Fault = "away") -> None:
        """Say what happened, to whom, and how they failed."""
        super().__init__(text)
        self.parties, self.fault = parties, fault
        self.each: tuple[PartyError, ...] = (self,)
        """What happened, one by one, where parties failed in different ways."""

    @classmethod
    def joined(cls, errors: Sequence["PartyError"]) -> "PartyError":
        """Tell of several at once."""
        if len(errors) == 1:
            return errors[0]
        parties = tuple(name for error in errors for name in error.parties)
        made = cls("; ".join(map(str, errors)), parties, errors[0].fault)
        made.each = tuple(errors)
        return made


class MatchingError(XVFLError, ValueError):
    """A message of private id matching is not what the protocol says."""


class CertificateError(XVFLError, ValueError):
    """A certificate, key or revocation list cannot be made, read or trusted."""


class DataWarning(UserWarning):
    """Something in the data was left out or replaced; the work goes on."""


def unknown(what: str, given: str, valid: Iterable[str]) -> str:
    """Say that a name is not known, which one was probably meant, and what there is."""
    names = [str(name) for name in valid]
    near = get_close_matches(given, names, n=1, cutoff=0.5)
    hint = f"did you mean {near[0]!r}? " if near else ""
    return f"unknown {what} {given!r}: {hint}valid: {', '.join(names)}"
