"""Named rules by which two organisations write the same id the same way."""

import unicodedata
from collections.abc import Callable, Sequence

from xvfl.errors import ConfigError, InputError, unknown

SHOWN = 3
"""Collisions that a message names."""


def exact(text: str) -> str:
    """Take an id as it is, but for spaces around it."""
    return text.strip()


def folded(text: str) -> str:
    """Bring case, spaces, widths and invisible characters to one form.

    Unicode's compatibility caseless form (NFKC of the case-folded text), without format characters
    such as zero-width spaces, every run of white space one space: "ＡＢ\u00a0 12 " is "ab 12".
    """
    for _ in range(2):
        text = unicodedata.normalize("NFKC", unicodedata.normalize("NFD", text).casefold())
    visible = "".join(each for each in text if unicodedata.category(each) != "Cf")
    return unicodedata.normalize("NFKC", " ".join(visible.split()))


RULES: dict[str, Callable[[str], str]] = {"folded": folded, "exact": exact}
"""Both sides must name the same one."""


def normalised(ids: Sequence[str], rule: str, where: str) -> list[str]:
    """Normalise ids, or say which of them are empty or become the same; `where` opens the message.

    Input ids are taken as distinct rows: two that meet after normalisation are an error, not a
    match of either.
    """
    if rule not in RULES:
        raise ConfigError(f"{where}: {unknown('rule for ids', rule, RULES)}")
    texts = [RULES[rule](each) for each in ids]
    empty = [given for given, text in zip(ids, texts, strict=True) if not text]
    if empty:
        raise InputError(
            f"{where}: expected ids with visible characters, but {len(empty)} are empty by rule "
            f"{rule!r}, first {empty[0]!r}; correct or remove these rows"
        )
    if len(set(texts)) < len(texts):
        raise InputError(_collisions(ids, texts, rule, where))
    return texts


def _collisions(ids: Sequence[str], texts: list[str], rule: str, where: str) -> str:
    groups: dict[str, list[str]] = {}
    for given, text in zip(ids, texts, strict=True):
        groups.setdefault(text, []).append(given)
    meeting = [group for group in groups.values() if len(group) > 1]
    named = "; ".join(" and ".join(map(repr, group[:SHOWN])) for group in meeting[:SHOWN])
    more = f" and {len(meeting) - SHOWN} more" if len(meeting) > SHOWN else ""
    return (
        f"{where}: expected ids that differ by rule {rule!r}, but these are the same: "
        f"{named}{more}; keep one row per id, or use another rule on all sides"
    )
