"""Named callers of HTTP ports and their rights, from a file.

Each line of the file is a name, a token and rights, such as `grafana 6f3a… look` or
`web 90bc… look,predict`. A line without rights has `DEFAULT_RIGHTS`. In place of the token,
`sha256:` and the fingerprint of a client certificate is accepted.
"""

import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal, get_args

from xvfl_serve.errors import ServeError
from xvfl_serve.http.watched_files import LogEvent, WatchedFiles

Right = Literal["look", "predict", "approve", "release"]
"""`look`: status, metrics, documentation and dashboard; `predict`: send rows or ids; `approve`:
allow what needs the consent of this side; `release`: release heads to parties, or revoke them."""
RIGHTS: tuple[Right, ...] = get_args(Right)
DEFAULT_RIGHTS: frozenset[Right] = frozenset(("look", "predict"))
"""Rights of a caller whose line has none, and of everybody at a port without callers."""
MIN_TOKEN = 32
"""Characters of the shortest token of a line with rights."""
OTHERS = 0o007
"""Permissions of all users but the owner and its group."""
FINGERPRINT = re.compile(r"sha256:(([0-9a-f]{2}:?){31}[0-9a-f]{2})", re.IGNORECASE)


@dataclass(frozen=True)
class Caller:
    """Who may use a port: with this token, or with this certificate."""

    name: str
    token: str = field(default="", repr=False)
    rights: frozenset[Right] = DEFAULT_RIGHTS
    fingerprint: str = ""
    """SHA-256 of the client certificate, in hexadecimal digits."""


Callers = Callable[[], tuple[Caller, ...]]
"""Return the callers of a port."""


def read_callers(path: Path, named: bool = True) -> tuple[Caller, ...]:
    """Read the callers of a file.

    Parameters
    ----------
    path : Path
        The file.
    named : bool, default=True
        Reject lines with a token alone. Otherwise their callers are called `token 1`, `token 2`, ….

    Raises
    ------
    ServeError
        The file cannot be read, or a line is wrong.
    """
    try:
        lines = path.read_text(encoding="utf-8").splitlines()
        open_to_all = path.stat().st_mode & OTHERS
    except (OSError, ValueError) as error:
        raise ServeError(f"{path} cannot be read ({error})") from error
    words = [line.split() for line in dict.fromkeys(lines) if line.strip()]
    callers = tuple(_read_lines(path, words, named))
    names = {each.name for each in callers}
    secrets = {(each.token, each.fingerprint) for each in callers}
    if not callers or len(names) < len(callers) or len(secrets) < len(callers):
        raise ServeError(f"{path}: {_expected(named)}, all distinct")
    if open_to_all and any(len(each) == 3 for each in words):
        raise ServeError(f"{path}: every user can read it; run `chmod 600 {path}`")
    return callers


def watch_callers(
    path: Path | None,
    read: Callable[[Path | None], tuple[Caller, ...]],
    log: LogEvent = lambda event: None,
) -> Callers:
    """Read callers, and again when their file changes; see `WatchedFiles`."""
    return WatchedFiles([] if path is None else [path], lambda: read(path), "callers", log)


def no_callers() -> tuple[Caller, ...]:
    """Return the callers of a port that everybody may use."""
    return ()


def _read_lines(path: Path, lines: list[list[str]], named: bool) -> Iterator[Caller]:
    """Read the words of each line; errors do not name tokens."""
    nameless = 0
    for number, words in enumerate(lines, 1):
        where = f"{path}, entry {number}"
        if len(words) == 1 and not named:
            nameless += 1
            yield Caller(f"token {nameless}", words[0])
        elif len(words) in (2, 3):
            yield _read_caller(where, *words)
        else:
            raise ServeError(f"{where}: {_expected(named)}, all distinct")


def _read_caller(where: str, name: str, credential: str, rights: str = "") -> Caller:
    given = rights.split(",") if rights else DEFAULT_RIGHTS
    found = [right for right in RIGHTS if right in given]
    if len(found) < len(given):
        # Not what was given instead: it may be the token.
        raise ServeError(f"{where}: expected rights among {', '.join(RIGHTS)}, without spaces")
    if match := FINGERPRINT.fullmatch(credential):
        fingerprint = match[1].replace(":", "").lower()
        return Caller(name, "", frozenset(found), fingerprint)
    if rights and len(credential) < MIN_TOKEN:
        raise ServeError(
            f"{where}: expected a token of {MIN_TOKEN} or more random characters, got "
            f"{len(credential)}; `openssl rand -hex 32` prints one"
        )
    return Caller(name, credential, frozenset(found))


def _expected(named: bool) -> str:
    what = "a name and a token" if named else "a token, or a name and a token,"
    return f"expected {what} in each line, and optionally rights"
