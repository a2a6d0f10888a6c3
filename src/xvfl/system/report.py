"""How long steps report their progress."""

from collections.abc import Callable

Report = Callable[[str, float], None]
"""Called with what is being computed and the finished share, 0 to 1."""


def no_report(text: str, share: float) -> None:
    """Report nothing."""
