"""Escape untrusted text for logs and terminals."""

import logging


def printable(text: str) -> str:
    """Escape control, bidirectional and invisible characters; the result is one line."""
    return "".join(
        each if each.isprintable() else each.encode("unicode_escape").decode("ascii")
        for each in text
    )


class PrintableFormatter(logging.Formatter):
    """Formats a message as one printable line; the lines of a traceback are indented."""

    def formatMessage(self, record: logging.LogRecord) -> str:
        """Format the message."""
        return printable(super().formatMessage(record))

    def formatException(self, ei: "logging._SysExcInfoType") -> str:
        """Format a traceback."""
        return "\n".join(f"  {printable(each)}" for each in super().formatException(ei).split("\n"))
