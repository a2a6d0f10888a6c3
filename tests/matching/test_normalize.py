"""Ids written differently by two organizations."""

import unicodedata

import pytest
from hypothesis import given
from hypothesis import strategies as st

from xvfl.errors import ConfigError, InputError
from xvfl.matching import RULES, normalize_ids


@pytest.mark.parametrize(
    ("written", "meant"),
    [
        ("  Ada  LOVELACE\t", "ada lovelace"),
        ("ＡＢ\u00a0 12 ", "ab 12"),
        ("cafe\u0301", "caf\u00e9"),
        ("STRASSE", "stra\u00dfe".casefold()),
        ("\ufeffx\u200b1\u00ad", "x1"),
        ("ﬁne", "fine"),
        ("x\u3000y", "x y"),
    ],
)
def test_folded_brings_case_spaces_and_unicode_to_one_form(written: str, meant: str) -> None:
    assert RULES["folded"](written) == meant


def test_exact_only_strips() -> None:
    assert RULES["exact"](" Ab  1 ") == "Ab  1"


@pytest.mark.parametrize("rule", RULES)
@given(text=st.text(max_size=12))
def test_rules_are_idempotent(rule: str, text: str) -> None:
    once = RULES[rule](text)
    assert RULES[rule](once) == once


@given(text=st.text(max_size=12))
def test_folded_sees_no_case_form_or_spaces(text: str) -> None:
    fold = RULES["folded"]
    for form in ("NFC", "NFD", "NFKC", "NFKD"):
        assert fold(unicodedata.normalize(form, text)) == fold(text)
    assert fold(f"  {text}\n") == fold(text)
    assert fold(unicodedata.normalize("NFD", text).casefold()) == fold(text)


def test_ids_that_become_the_same_are_named() -> None:
    ids = ["c1", "Ada", "ada ", "c2", "B\u00a0B", "b b"]
    with pytest.raises(InputError, match=r"bank: .*'folded'.*'Ada' and 'ada '; .*'b b'") as raised:
        normalize_ids(ids, "folded", "bank")
    assert "c1" not in str(raised.value)
    assert normalize_ids(ids[:2], "folded", "bank") == ["c1", "ada"]
    assert normalize_ids(["Ada", "ada"], "exact", "bank") == ["Ada", "ada"]


def test_ids_that_become_empty_are_refused() -> None:
    with pytest.raises(InputError, match=r"1 are empty under rule 'folded', first '\\u200b'"):
        normalize_ids(["x", "\u200b"], "folded", "bank")


def test_an_unknown_rule_names_the_known_ones() -> None:
    with pytest.raises(ConfigError, match="unknown id rule 'fold'.*did you mean 'folded'"):
        normalize_ids(["x"], "fold", "bank")
