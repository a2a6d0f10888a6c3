"""One preparation: the same checks and messages in memory and on disk."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
import torch

from xvfl.config import TableOptions
from xvfl.data.labels import find_labels, read_labels
from xvfl.dataset.in_memory import prepare_in_memory
from xvfl.dataset.on_disk.parquet_tables import open_tables
from xvfl.dataset.on_disk.prepare_on_disk import prepare_on_disk
from xvfl.dataset.prepare import PreparationPlan
from xvfl.dataset.splits import Splits, class_weights, drop_unobserved
from xvfl.errors import DataWarning, InputError
from xvfl.primitives.rows import align_rows, observation_levels

Tables = dict[str, pd.DataFrame]
Prepare = Callable[[Tables, pd.Series], Any]
ROWS = 40
IDS = pd.Index([f"r{i}" for i in range(ROWS)], name="id")


def tables() -> tuple[Tables, pd.Series]:
    rng = np.random.default_rng(0)
    frames = {
        name: pd.DataFrame(rng.random((ROWS, 2)), index=IDS, columns=["u", "v"])
        for name in ("bank", "shop")
    }
    return frames, pd.Series(["no", "yes"] * (ROWS // 2), index=IDS, name="label")


@pytest.fixture(params=["memory", "disk"])
def prepare(request: pytest.FixtureRequest, tmp_path: Path) -> Prepare:
    plan = PreparationPlan({"bank": TableOptions()}, Splits(0.2, 0.2, 0))

    def in_memory(frames: Tables, labels: pd.Series) -> Any:
        labels = read_labels(labels, id_column=None, column=None, where="labels")
        return prepare_in_memory(frames, labels, plan)

    def on_disk(frames: Tables, labels: pd.Series) -> Any:
        for name, frame in {**frames, "labels": labels.to_frame()}.items():
            frame.to_parquet(tmp_path / f"{name}.parquet")
        files = {name: (f"{name}.parquet", "id") for name in frames}
        opened = open_tables(files, ("labels.parquet", "id"), "label", tmp_path)
        return prepare_on_disk(opened, plan, tmp_path / "cache")

    return in_memory if request.param == "memory" else on_disk


def test_bad_tables_are_rejected(prepare: Prepare) -> None:
    frames, labels = tables()
    with pytest.raises(InputError, match="expected two parties or more, got \\['bank'\\]"):
        prepare({"bank": frames["bank"]}, labels)
    with pytest.raises(InputError, match="party name 'a b': expected letters"):
        prepare({"bank": frames["bank"], "a b": frames["shop"]}, labels)
    with pytest.raises(InputError, match="table options: unknown party 'bank'"):
        prepare({"lender": frames["bank"], "shop": frames["shop"]}, labels)
    strange = frames["shop"].rename(lambda each: f"x{each}")
    message = "'shop': shares no id with the labels \\(its first id is 'xr0', .* is 'r0'\\)"
    with pytest.raises(InputError, match=message):
        prepare({**frames, "shop": strange}, labels)


def test_bad_labels_are_rejected(prepare: Prepare) -> None:
    frames, labels = tables()
    with pytest.raises(InputError, match="at least 2 classes, but found only class yes"):
        prepare(frames, labels.map(lambda _: "yes"))
    few = {name: frame.iloc[:2] for name, frame in frames.items()}
    with (
        pytest.warns(DataWarning, match="38 of 40 labeled ids are held by no party"),
        pytest.raises(InputError, match="the validation set is empty"),
    ):
        prepare(few, labels)
    one = {name: frame[labels == "yes"] for name, frame in frames.items()}
    with (
        pytest.warns(DataWarning, match="20 of 40 labeled ids are held by no party"),
        pytest.raises(InputError, match="expected two classes or more among the training rows"),
    ):
        prepare(one, labels)


def test_a_party_without_training_rows_is_rejected(prepare: Prepare) -> None:
    frames, labels = tables()
    messages = set()
    for row in range(ROWS // 4):
        with pytest.raises(InputError) as caught:
            prepare({**frames, "shop": frames["shop"].iloc[[row]]}, labels)
        messages.add(str(caught.value).partition(";")[0])
    assert "party 'shop': holds no training row" in messages


def test_labels_in_chunks_are_those_of_the_whole_column() -> None:
    labels = pd.Series([2.0, None, 1.0, 2.0, 3.0, None])
    with pytest.warns(DataWarning, match="left out 2 of 6 rows without a label"):
        whole = find_labels([labels], "labels")
    with pytest.warns(DataWarning, match="left out 2 of 6 rows without a label"):
        chunks = find_labels([labels.iloc[:2], labels.iloc[2:]], "labels")
    assert chunks.raw == whole.raw == [2.0, 1.0, 3.0]
    assert chunks.plain.tolist() == [2, 1, 3] and chunks.plain.dtype == np.int64
    assert chunks.codes(labels).tolist() == [0, -1, 1, 0, 2, -1]


def test_classes_without_training_rows_weigh_one() -> None:
    assert class_weights(np.array([6, 0, 2]), "balanced").tolist() == pytest.approx([2 / 3, 1, 2])
    assert class_weights(np.array([6, 0, 2]), "none").tolist() == [1, 1, 1]


def test_rows_of_several_parties_are_aligned() -> None:
    observed = torch.tensor([[True, True], [True, False], [False, False]])
    levels = observation_levels(observed, 1.0)
    assert levels.tolist() == [2, 1, 0]
    handles = torch.tensor([[0, -1], [1, 0], [2, -1], [-1, 2]])
    rows = align_rows(handles, [levels, levels], torch.tensor([0, 1, 0, 1]))
    assert rows.full.tolist() == [[True, False], [False, True], [False, False], [False, False]]
    assert rows.seen.tolist() == [[True, False], [True, True], [False, False], [False, False]]
    parts = (torch.tensor([0, 1]), torch.tensor([1, 2]), torch.tensor([3]))
    with pytest.warns(DataWarning, match="2 rows have no observed feature"):
        _, (train, validation, test) = drop_unobserved(rows, parts, "balanced")
    assert (train.tolist(), validation.tolist(), test.tolist()) == ([0, 1], [1], [])
