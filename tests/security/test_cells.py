"""Training and serving read the same number from the same cell.

The functions of one cell (serving) and of whole columns (training) are compared with each other and
with a hand-written table.
"""

import json
import random
import re
from datetime import datetime
from typing import Any

import numpy as np
import pandas as pd
import pytest

from tests.data.cell_values import (
    CATEGORIES,
    MISSING,
    NA_VALUES,
    REFUSED,
    TEXTS,
    UNREADABLE,
    VALUES,
    Meaning,
)
from xvfl.data.encoder import TableEncoder
from xvfl.errors import InputError
from xvfl_serve.encoding.encoders import TableRows, write_notes
from xvfl_serve.errors import RequestError

N_TEXTS, N_FORMAT_TEXTS = 10_000, 1_000
"""Generated texts of a kind of column; of a date format, fewer: `strptime` is slow."""
REQUEST = 20
"""Cells that are encoded at once."""
NA = ("NA", "null", "nan", "n/a", *NA_VALUES)
KINDS = sorted({kind for kind, _, _ in TEXTS} | {"hashed"})
MUTATIONS = " .,:-+/()'$€%0123456789eETZPWHMabmsx_−١５\N{NO-BREAK SPACE}\t\x1c\x85"


def codec(kind: str, center: float = 0.0, half: float = 1e6) -> dict[str, Any]:
    """Return the JSON form of a column, with numbers scaled around a center."""
    name, _, detail = kind.partition(":")
    scale = {"knots": [center - half, center + half], "scaled_knots": [0.0, 1.0]}
    parts: dict[str, dict[str, Any]] = {
        "number": {"scale": scale, "whole": False, "decimal": detail, "prefix": "", "suffix": ""},
        "duration": {"scale": scale, "text": True},
        "date": {
            **{"scale": scale, "has_time": True, "format": detail or "ISO8601"},
            **{"zone": None, "unit": "us"},
        },
        "hashed": {
            **{"width": 2, "buckets": 128, "frequent": list(range(0, 128, 2))},
            **{"vocabulary": ["cook", "7"], "complete": True, "type": "int"},
        },
    }
    if name == "category":
        kind_of = "str" if detail == "text" else detail
        return {"codec": name, "name": "x", "values": CATEGORIES[detail], "type": kind_of}
    return {"codec": name, "name": "x", **parts[name]}


def encoder(kind: str, center: float = 0.0, half: float = 1e6) -> dict[str, Any]:
    """Return the JSON form of an encoder of one column, as bundles of format 1 hold it."""
    column = codec(kind, center, half)
    form = {"type": "table", "party": "bank", "na_values": NA, "left_out": {}, "codecs": [column]}
    found: dict[str, Any] = json.loads(json.dumps(form))
    return found


Result = tuple[list[float], list[int], bool, str]
"""Values, codes, whether the cell is observed, and notes."""


def served(data: dict[str, Any], cells: list[Any]) -> list[Result | str]:
    """Encode cells row by row, as the server does; the error message where one is refused."""
    rows, results = TableRows(data), list[Result | str]()
    for start in range(0, len(cells), REQUEST):
        part = cells[start : start + REQUEST]
        try:
            found = rows.encode([{"x": cell} for cell in part])
        except RequestError as error:
            one = len(part) == 1
            results += [error.message] if one else [served(data, [cell])[0] for cell in part]
            continue
        arrays = (found.values.tolist(), found.codes.tolist(), found.observed[:, 0].tolist())
        results += list(zip(*arrays, map(write_notes, found.notes), strict=True))
    return results


def trained(data: dict[str, Any], cells: pd.Series) -> list[Result]:
    """Encode a column of cells, as training does."""
    found = TableEncoder.from_dict(data).encode(cells.to_frame("x"))
    arrays = (found.values.tolist(), found.codes.tolist(), found.observed[:, 0].tolist())
    return list(zip(*arrays, found.notes, strict=True))


def check(kind: str, expected: Meaning, result: Result | str) -> None:
    """Compare a result with the meaning in the table."""
    if isinstance(result, str):
        assert expected == REFUSED, result
        return
    values, _, observed, note = result
    if isinstance(expected, str):
        assert (observed, expected) == (False, UNREADABLE if note else MISSING)
    elif kind.startswith("category"):
        assert observed and np.argmax(values) == expected
    else:
        # The scale is centered at the expected number.
        assert observed and values[0] == pytest.approx(0.5, abs=1e-6)


@pytest.mark.parametrize(("kind", "cell", "expected"), [*TEXTS, *VALUES])
def test_cells_mean_what_the_table_says(kind: str, cell: Any, expected: Meaning) -> None:
    center = expected if isinstance(expected, float) else 0.0
    data = encoder(kind, center, 2.0)
    (answer,) = served(data, [cell])
    check(kind, expected, answer)
    columns = [pd.Series([cell], dtype=object), pd.Series([cell])]
    if isinstance(cell, str):
        columns = [pd.Series([cell], dtype="str"), *columns, pd.Series([cell], dtype="category")]
    for cells in columns:
        if expected == REFUSED:
            with pytest.raises(InputError, match="'x'"):
                trained(data, cells)
        else:
            assert trained(data, cells) == [answer]


def test_the_table_is_long_enough() -> None:
    assert len(TEXTS) >= 100 and len(set(TEXTS)) == len(TEXTS)


def texts_of(kind: str, count: int) -> list[str]:
    """Draw texts: those of the table, numbers and dates, and some characters changed."""
    rng = random.Random(kind)
    detail = kind.partition(":")[2]
    known = [cell for each, cell, _ in TEXTS if each == kind] or [cell for _, cell, _ in TEXTS]

    def draw() -> str:
        form = rng.randrange(10)
        number = rng.choice([rng.randrange(10**6), rng.uniform(-1e4, 1e4), rng.gauss(0, 1) * 1e-5])
        if form == 0:
            return rng.choice([str(number), f"{number:.3f}", f"{number:,.2f}", f"${number:,.2f}"])
        if form == 1:
            return f"{number:,.2f} €".translate(str.maketrans(",.", ".,"))
        year, month, day = rng.randrange(1, 10_000), rng.randrange(14), rng.randrange(33)
        clock = [rng.randrange(25), rng.randrange(61), rng.randrange(61)]
        if form == 2:
            date = f"{year:04d}-{month:02d}-{day:02d}"
            return date + rng.choice(["", "T{:02d}:{:02d}:{:02d}", " {}:{:02d}"]).format(*clock)
        if form == 3:
            date = rng.choice(["{:02d}/{:02d}/{:04d}", "{}.{}.{}"]).format(day, month, year)
            return date + rng.choice(["", " {:02d}:{:02d}", " {:02d}:{:02d}:{:02d}"]).format(*clock)
        if form == 4:
            unit = rng.choice(["h", "min", "s", "weeks", "days", "ms", "H", ""])
            return rng.choice([f"{clock[0]}:{clock[1]:02d}", f"{clock[0]} {unit} {clock[1]} min"])
        if form == 5 and detail.startswith("%"):
            moment = datetime(1970 + year % 60, 1 + month % 12, 1 + day % 28, 1, clock[1] % 60)
            return moment.strftime(detail)
        text = list(rng.choice(known))
        for _ in range(rng.choice([0, 0, 1, 2, 3])):
            at = rng.randrange(len(text) + 1)
            text[at : at + rng.randrange(2)] = rng.choice(MUTATIONS)
        return "".join(text)

    return [draw() for _ in range(count)]


@pytest.mark.parametrize("kind", KINDS)
def test_training_and_serving_agree_on_ten_thousand_texts(kind: str) -> None:
    data = encoder(kind)
    texts = texts_of(kind, N_FORMAT_TEXTS if "%" in kind else N_TEXTS)
    answers = served(data, texts)
    read = [at for at, answer in enumerate(answers) if not isinstance(answer, str)]
    refused = [at for at, answer in enumerate(answers) if isinstance(answer, str)]
    column = pd.Series(texts, dtype="str")
    found = trained(data, column.iloc[read])
    for at, result in zip(read, found, strict=True):
        assert result == answers[at], repr(texts[at])
    # A whole column is refused with the number of bad cells: unreadable ones, else infinite ones.
    infinite = [at for at in refused if "a finite number" in str(answers[at])]
    for bad in ([at for at in refused if at not in set(infinite)], infinite):
        if bad:
            with pytest.raises(InputError) as error:
                trained(data, column.iloc[bad])
            assert re.findall(r"but (\d+) cells", str(error.value)) == [str(len(bad))]
    observed = sum(isinstance(answer, tuple) and answer[2] for answer in answers)
    assert len(texts) / 50 < observed < len(texts), "few texts of this kind"


def test_a_duration_without_a_unit_is_reported_at_inspection() -> None:
    from xvfl.config import TableOptions
    from xvfl.errors import DataWarning

    frame = pd.DataFrame({"stay": ["90 min", "1:30", "2 weeks", "90", "45"]})
    options = TableOptions(kinds={"stay": "duration"})
    with pytest.warns(DataWarning, match="2 of 5 cells, such as '90' and '45', are not durations"):
        TableEncoder.fit(frame, options, "bank")
