"""Named rules that normalize ids, so that two organizations' spellings of an id are equal."""

import unicodedata
from collections.abc import Callable, Sequence

from xvfl.errors import ConfigError, InputError, unknown

MAX_SHOWN = 3
"""Collisions named in an error message."""


def exact(text: str) -> str:
    """Strip surrounding white space."""
    return text.strip()


def folded(text: str) -> str:
    """Normalize case, white space, character width and invisible characters.

    Unicode's compatibility caseless form (NFKC of the case-folded text), without format characters
    such as zero-width spaces, with every run of white space replaced by one space:
    "ＡＢ\u00a0 12 " becomes "ab 12".
    """
    for _ in range(2):
        text = unicodedata.normalize("NFKC", unicodedata.normalize("NFD", text).casefold())
    visible = "".join(each for each in text if unicodedata.category(each) != "Cf")
    return unicodedata.normalize("NFKC", " ".join(visible.split()))


RULES: dict[str, Callable[[str], str]] = {"folded": folded, "exact": exact}
"""Both sides must use the same rule."""


def normalize_ids(ids: Sequence[str], rule: str, where: str) -> list[str]:
    """Normalize ids; raise `InputError` if some become empty or equal.

    Each input id is one row, so two ids that become equal are an error. `where` starts the message.
    """
    if rule not in RULES:
        raise ConfigError(f"{where}: {unknown('id rule', rule, RULES)}")
    texts = [RULES[rule](each) for each in ids]
    empty = [given for given, text in zip(ids, texts, strict=True) if not text]
    if empty:
        raise InputError(
            f"{where}: expected ids with visible characters, but {len(empty)} are empty under rule "
            f"{rule!r}, first {empty[0]!r}; correct or remove these rows"
        )
    if len(set(texts)) < len(texts):
        raise InputError(_collisions(ids, texts, rule, where))
    return texts


def _collisions(ids: Sequence[str], texts: list[str], rule: str, where: str) -> str:
    groups: dict[str, list[str]] = {}
    for given, text in zip(ids, texts, strict=True):
        groups.setdefault(text, []).append(given)
    collisions = [group for group in groups.values() if len(group) > 1]
    named = "; ".join(
        " and ".join(map(repr, group[:MAX_SHOWN])) for group in collisions[:MAX_SHOWN]
    )
    more = f" and {len(collisions) - MAX_SHOWN} more" if len(collisions) > MAX_SHOWN else ""
    return (
        f"{where}: expected ids that differ under rule {rule!r}, but these are equal: "
        f"{named}{more}; keep one row per id, or use another rule on all sides"
    )
