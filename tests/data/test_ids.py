"""Blanks around ids are removed, by one rule in one process and in a federation."""

from pathlib import Path

import numpy as np
import pandas as pd
import pytest

from tests.small_tables import make_tables
from xvfl import InputError, XVFLClassifier
from xvfl.data.frames import read_table
from xvfl.data.ids import parse_ids
from xvfl.data.parquet import open_parquet
from xvfl.matching import RULES, normalize_ids

BLANKS = [" c1", "c2 ", "\tc3\n", "\u00a0c4", "c5\u3000", "\u2003c6\u2003", "c 7"]
TEXTS = ["c1", "c2", "c3", "c4", "c5", "c6", "c 7"]


def test_every_source_and_every_rule_of_matching_removes_blanks(tmp_path: Path) -> None:
    frame = pd.DataFrame({"id": BLANKS, "age": range(len(BLANKS))})
    frame.to_csv(tmp_path / "t.csv", index=False)
    frame.to_parquet(tmp_path / "t.parquet")
    sources = [frame, frame.set_index("id"), tmp_path / "t.csv", tmp_path / "t.parquet"]
    for source in sources:
        ids = read_table(source, id_column="id", party="bank").index.tolist()
        assert ids == TEXTS
    streamed = open_parquet(tmp_path / "t.parquet", "id", "party 'bank'")
    assert [each for chunk in streamed for each in chunk.index] == TEXTS
    for rule in RULES:
        assert normalize_ids(BLANKS, rule, "bank") == TEXTS
    with pytest.raises(InputError, match="expected each id once, but 1 rows repeat .* first 'c1'"):
        read_table(pd.DataFrame({"age": [1, 2]}, index=["c1", "c1 "]), id_column=None, party="bank")


def test_blanks_around_ids_change_no_prediction() -> None:
    bank, shop, y = make_tables(120)
    padded = bank.set_axis(" " + bank.index + "\t"), shop.set_axis(shop.index + " ")
    sizes = {"embedding_dim": 4, "hidden_dim": 8, "members": 1, "epochs": 1, "verbose": False}
    plain = XVFLClassifier(**sizes).fit({"bank": bank, "shop": shop}, y)
    model = XVFLClassifier(**sizes).fit({"bank": padded[0], "shop": padded[1]}, y)
    expected = plain.predict_proba({"bank": bank, "shop": shop})
    both = {"bank": padded[0], "shop": padded[1]}
    pd.testing.assert_frame_equal(model.predict_proba(both), expected)
    some = model.predict_proba(both, ids=["c030 ", "c040"])
    pd.testing.assert_frame_equal(some, expected.loc[["c030", "c040"]], atol=1e-6)
    frame = pd.concat({"bank": bank.set_axis(bank.index + " "), "shop": padded[1]}, axis=1)
    assert XVFLClassifier(**sizes).fit(frame, y).score(frame, y) == plain.score(both, y)


def test_missing_and_duplicate_ids_are_named_together() -> None:
    for cells in (["a", "", "b", "a", None], [1.0, np.nan, 2.0, 1.0, np.nan]):
        with pytest.raises(InputError) as raised:
            parse_ids(pd.Series(cells), "party 'bank'")
        missing, duplicate = raised.value.problems
        assert "2 of 5 are missing, first in data row 2" in missing
        assert "1 rows repeat an earlier id" in duplicate and "in data row 4" in duplicate
