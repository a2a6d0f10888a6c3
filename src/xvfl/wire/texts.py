"""The kinds of texts in messages, and what is accepted of each.

A peer chooses these texts, and they end up in logs, terminals, metrics and files. Codes and names
that do not match are rejected; the other lines are shortened, and what is not printable is escaped.
"""

import re
from dataclasses import dataclass
from typing import Annotated

from xvfl.errors import WireError
from xvfl.system.printable import MAX_LINE, one_line

MAX_NAME = 100
"""Characters of a name."""
MAX_DOCUMENT_BYTES = 2**20
"""Bytes of the largest text."""


@dataclass(frozen=True)
class TextRule:
    """What a text may be; without a pattern, it is made printable instead of rejected."""

    what: str
    max_length: int
    pattern: re.Pattern[str] | None = None

    def read(self, text: str, where: str) -> str:
        """Return the accepted text of a field; raise `WireError` if it is rejected."""
        if self.pattern is None:
            return one_line(text, self.max_length)
        if len(text) > self.max_length or self.pattern.fullmatch(text) is None:
            raise WireError(
                f"{where}: expected {self.what} of at most {self.max_length} characters, got "
                f"{one_line(repr(text), MAX_NAME)}"
            )
        return text


CODE = TextRule("ASCII letters, digits, spaces and _ . + -", 128, re.compile(r"[A-Za-z0-9_.+ -]*"))
NAME = TextRule("letters, digits, spaces and _ . + - @ : /", MAX_NAME, re.compile(r"[\w.+@:/ -]*"))
PLAIN_NAME = TextRule("ASCII letters, digits and _ . -", 64, re.compile(r"[A-Za-z0-9_.-]+"))
"""The name of a run, and of a peer in its certificate (X.520 allows 64 characters): it is part of
file names."""
LINE = TextRule("a line", MAX_LINE)
NOTE = TextRule("a short line", 200)
DOCUMENT = TextRule("a JSON document", MAX_DOCUMENT_BYTES, re.compile(".*", re.DOTALL))

Code = Annotated[str, CODE]
"""An id, a digest or a keyword."""
Name = Annotated[str, NAME]
"""The name of a run, a party or a caller."""
Line = Annotated[str, LINE]
"""A text for people; it may be shortened."""
Note = Annotated[str, NOTE]
"""A short text that is repeated for each row; it may be shortened."""
Document = Annotated[str, DOCUMENT]
"""JSON, which its reader checks."""
