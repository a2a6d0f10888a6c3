"""Avazu Click-Through Rate Prediction (Kaggle, 2014): is an advertisement clicked?

Every column is a category. `hour` (YYMMDDHH) becomes hour of day and weekday; `id` identifies the
row. A fixed random sample of 100,000 of the publisher's 40 million rows covers all ten days.

The meaning of C1 and C14 to C21 is not published. C15 and C16 are the banner's size, so with C1
and `banner_pos` they go to the context; C14 and C17 to C21, which vary with the advertisement
served, go to the side that knows the user.
"""

import gzip
from collections.abc import Sequence
from pathlib import Path
from typing import Any
from zipfile import ZipFile

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from xvfl.config import TableOptions
from xvfl_lab.datasets.source import DataSet, FileFormat, fixed_fraction, hash_ranks
from xvfl_lab.datasets.table_sets import Parties, Table, require_columns

SITE = ("site_id", "site_domain", "site_category", "app_id", "app_domain", "app_category")
CONTEXT = ("hour_of_day", "weekday", "C1", "banner_pos", "C15", "C16")
USER = ("device_id", "device_ip", "C14", "C17", "C21")
DEVICE = ("device_model", "device_type", "device_conn_type", "C18", "C19", "C20")
PARTIES: dict[int, Parties] = {
    2: {"publisher": CONTEXT + SITE, "device": DEVICE + USER},
    4: {"context": CONTEXT, "site": SITE, "device": DEVICE, "user": USER},
}
FEATURES = CONTEXT + SITE + DEVICE + USER
DERIVED = ("hour_of_day", "weekday")
NEEDED = ("id", "click", "hour", *(name for name in FEATURES if name not in DERIVED))
REPRESENTATIVE = "random_10days"
SAMPLE, AT_ONCE = 100_000, 1_000_000


def read_csv(files: Sequence[Path]) -> Table:
    """Read the publisher's train.csv, plain or gzipped."""
    return _sample(files[0], files[0])


def read_zip(files: Sequence[Path]) -> Table:
    """Read train.gz in the archive of all files."""
    with ZipFile(files[0]) as zipped, zipped.open("train.gz") as member, gzip.open(member) as file:
        return _sample(file, files[0])


def _sample(source: Any, path: Path) -> Table:
    """Read in chunks, and keep a sample."""
    sample, chosen = pd.DataFrame(), np.zeros(0, dtype=np.uint64)
    with pd.read_csv(source, dtype="str", chunksize=AT_ONCE) as chunks:
        for chunk in chunks:
            require_columns(chunk, NEEDED, path)
            chosen = np.concatenate([chosen, hash_ranks(chunk["id"].tolist(), "avazu sample")])
            sample = pd.concat([sample, chunk])
            smallest = np.sort(np.argsort(chosen, kind="stable")[:SAMPLE])
            sample, chosen = sample.iloc[smallest], chosen[smallest]
    return _table(sample, np.ones(len(sample), dtype=bool))


def read_pack(files: Sequence[Path]) -> Table:
    """Read the pack, whose rows have several parts; one is representative."""
    raw = pd.read_parquet(files[0])
    return _table(raw, (raw["part"] == REPRESENTATIVE).to_numpy(dtype=bool))


def _table(raw: pd.DataFrame, representative: NDArray[np.bool_]) -> Table:
    hours = pd.to_datetime(raw["hour"].astype("str"), format="%y%m%d%H")
    frame = raw.assign(hour_of_day=hours.dt.hour, weekday=hours.dt.day_of_week)
    test = representative.copy()
    test[representative] = fixed_fraction(raw["id"][representative].tolist(), "avazu")
    y = raw["click"].astype("int64").to_numpy().astype(np.int64)
    frame = frame[list(FEATURES)].reset_index(drop=True)
    return Table("avazu", frame, y, test, PARTIES, TableOptions(categorical=FEATURES))


DATA_SET = DataSet(
    name="avazu",
    title="Avazu: an advertisement is clicked or not",
    rows=40_428_967,
    size=1_124_000_000,
    license="Kaggle competition rules; no redistribution",
    page="https://www.kaggle.com/c/avazu-ctr-prediction/data",
    formats=(
        FileFormat(("train.csv|train.gz|train.csv.gz",), read_csv, SAMPLE),
        FileFormat(("avazu-ctr-prediction.zip",), read_zip, SAMPLE),
        FileFormat(("tabular/avazu_sample.parquet",), read_pack, 84_871),
    ),
    version=2,
    instructions="it needs a Kaggle account and accepted rules: "
    "`kaggle competitions download -c avazu-ctr-prediction`, then the .zip, or train.gz out of it, "
    "into avazu/",
)
