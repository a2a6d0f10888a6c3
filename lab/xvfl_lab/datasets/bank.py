"""Bank Marketing (Moro, Cortez, Rita; UCI 222): does a client take the deposit offered by phone?

`duration` is left out: it is known only after the call. "unknown" means missing, and so
does -1 in `pdays`, days since an earlier campaign reached the client.
"""

from collections.abc import Sequence
from io import BytesIO
from pathlib import Path

import numpy as np
import pandas as pd

from xvfl.config import TableOptions
from xvfl.errors import InputError
from xvfl_lab.datasets.archive import nested
from xvfl_lab.datasets.source import DataSet, Download, FileFormat, fixed_fraction
from xvfl_lab.datasets.table_sets import Parties, Table, require_columns

PERSON = ("age", "job", "marital", "education")
ACCOUNTS = ("default", "balance", "housing", "loan")
CONTACT = ("contact", "day", "month", "campaign")
HISTORY = ("pdays", "previous", "poutcome")
PARTIES: dict[int, Parties] = {
    2: {"client": PERSON + ACCOUNTS, "campaign": CONTACT + HISTORY},
    4: {"person": PERSON, "accounts": ACCOUNTS, "contact": CONTACT, "history": HISTORY},
}
FEATURES = PERSON + ACCOUNTS + CONTACT + HISTORY
INSIDE = ("bank.zip", "bank-full.csv")
"""Path of the table in the publisher's archive."""


def read(files: Sequence[Path]) -> Table:
    """Read the publisher's bank-full.csv, plain or in its archive, or the pack."""
    path = files[0]
    if path.suffix == ".parquet":
        return _table(pd.read_parquet(path), path)
    source: Path | BytesIO = path
    if path.suffix == ".zip":
        inside = INSIDE if path.name != INSIDE[0] else INSIDE[1:]
        source = BytesIO(nested(path.read_bytes(), inside))
    return _table(pd.read_csv(source, sep=";", index_col=False), path)


def _table(raw: pd.DataFrame, path: Path) -> Table:
    require_columns(raw, (*FEATURES, "y"), path)
    frame = raw[list(FEATURES)].copy()
    frame["pdays"] = frame["pdays"].where(frame["pdays"] >= 0)
    others = sorted(set(raw["y"].astype("str")) - {"no", "yes"})
    if others:
        raise InputError(f'{path}: expected "yes" or "no" in y, got {others[0]!r}; get it again')
    y = (raw["y"] == "yes").to_numpy(dtype=bool).astype(np.int64)
    test = fixed_fraction([str(row) for row in range(len(raw))], "bank")
    return Table("bank", frame, y, test, PARTIES, TableOptions(na_values=("unknown",)))


DATA_SET = DataSet(
    name="bank",
    title="Bank Marketing: a client takes the deposit or not",
    rows=45_211,
    size=4_610_348,
    license="CC BY 4.0",
    page="https://archive.ics.uci.edu/dataset/222/bank+marketing",
    formats=(
        FileFormat(("bank-full.csv",), read, 45_211),
        FileFormat(("bank+marketing.zip|bank.zip",), read, 45_211),
        FileFormat(("tabular/bank_full.parquet",), read, 45_211),
    ),
    version=2,
    downloads=(
        Download(
            "https://archive.ics.uci.edu/static/public/222/bank+marketing.zip",
            "bank/bank-full.csv",
            1_023_843,
            "sha256:d1513ec63b385506f7cfce9f2c5caa9fe99e7ba4e8c3fa264b3aaf0f849ed32d",
            inside=INSIDE,
        ),
    ),
)
