"""Exit codes and messages on standard error."""

import sys

INTERRUPTED = 130
"""Exit code after Ctrl-C."""


def say(text: str) -> None:
    """Print a line on standard error."""
    print(text, file=sys.stderr)
