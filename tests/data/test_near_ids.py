"""Ids that are written almost alike are found, and others are not."""

import pandas as pd
import pytest
from hypothesis import given
from hypothesis import strategies as st

from xvfl.data.near_ids import RULES, SEVERAL, IdSample, find_near_misses, sample_ids


@pytest.mark.parametrize(
    ("left", "right", "difference"),
    [
        (["0012", "0345"], ["12", "345"], "leading zeros"),
        (["c-007", "c-008"], ["c-7", "c-8"], "leading zeros"),
        (["AB1", "Cd2"], ["ab1", "cd2"], "upper and lower case"),
        (["ab 12", "cd 34"], ["ab12", "cd34"], "spaces"),
        (["ab\u00a012", "cd\u200b34"], ["ab12", "cd34"], "spaces"),
        (["12.0", "345.0"], ["12", "345"], "a decimal .0"),
        (["A 012", "B 034"], ["a12", "b34"], SEVERAL.difference),
    ],
)
def test_spellings_of_one_id_are_found(left: list[str], right: list[str], difference: str) -> None:
    (found,) = find_near_misses(IdSample(left), IdSample([*right, "x", "y"]))
    assert found.rule.difference == difference
    assert (found.count, found.exact) == (2, True)
    assert found.examples == tuple(sorted(zip(left, right, strict=True)))
    text = str(found)
    assert f"2 ids differ only in {difference}" in text and found.rule.remedy in text
    assert all(repr(each) in text for each in (*left, *right))


@pytest.mark.parametrize(
    ("left", "right"),
    [
        (["12", "13"], ["14", "15"]),
        (["a-1", "a-2"], ["b-1", "b-2"]),
        (["1.05", "2.05"], ["1.5", "2.5"]),
        (["100", "2000"], ["1", "2"]),
        (["0", "00a"], ["1", "a"]),
        (["AB1", "x"], ["ab1", "y"]),
    ],
)
def test_other_ids_are_not(left: list[str], right: list[str]) -> None:
    assert find_near_misses(IdSample(left), IdSample(right)) == []


@given(st.text(max_size=8))
def test_equal_ids_are_equal_under_every_rule(text: str) -> None:
    assert all(rule.normalize(text) == rule.normalize(str(text)) for rule in RULES)


def test_counts_of_large_tables_are_estimated_from_a_sample() -> None:
    left = pd.Index([f"{i:08d}" for i in range(40_000)])
    right = pd.Index([str(10_000_000 + i) for i in range(40_000)])
    right = right[:20_000].append(pd.Index([str(i) for i in range(20_000)]))
    samples = sample_ids(left, right, 2_000), sample_ids(right, left, 10_000)
    assert [len(each.ids) for each in samples] == [2_000, 10_000]
    assert [each.share for each in samples] == [0.05, 0.25]
    (found,) = find_near_misses(*samples)
    assert not found.exact and "about " in str(found)
    assert 0.7 * 20_000 < found.count < 1.3 * 20_000


def test_only_ids_without_a_partner_are_sampled() -> None:
    left, right = pd.Index(["1", "2", "03"]), pd.Index(["1", "3"])
    assert sample_ids(left, right, 10) == IdSample(["2", "03"])
