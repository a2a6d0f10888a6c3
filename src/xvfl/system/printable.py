"""Escape untrusted text for logs and terminals."""

MAX_LINE = 2000
"""Characters of a text that a peer sends, such as the reason of an error."""


def printable(text: str) -> str:
    r"""Escape what a terminal could act on: control, bidirectional and invisible characters.

    The result is one line. Letters of all scripts, punctuation and spaces stay as they are.

    Examples
    --------
    >>> printable("no reply\n\x1b[2J")
    'no reply\\n\\x1b[2J'
    """
    if text.isprintable():
        return text
    return "".join(
        each if each.isprintable() else each.encode("unicode_escape").decode("ascii")
        for each in text
    )


def shorten(text: str, max_length: int = MAX_LINE) -> str:
    """Cut the middle out of a text that is longer than `max_length`."""
    if len(text) <= max_length:
        return text
    half = (max_length - 1) // 2
    return f"{text[:half]}…{text[-half:]}"


def one_line(text: str, max_length: int = MAX_LINE) -> str:
    """Return a text as one printable line of limited length."""
    return shorten(printable(shorten(text, max_length)), max_length)
