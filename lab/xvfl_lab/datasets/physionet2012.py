"""PhysioNet/CinC Challenge 2012: does a patient survive the hospital? Two days of intensive care.

12,000 stays in three sets; set c is the test set. A raw feature is a parameter with all its
summaries, observed or missing as a whole. Scores (SAPS-I, SOFA) and outcomes (length of stay,
survival) are not features. MechVent is always 1, so only its count is informative. -1 means missing
in gender and height; the weight at admission is the first of the weights.
"""

from collections.abc import Sequence
from io import BytesIO
from pathlib import Path

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from xvfl.config import TableOptions
from xvfl.errors import InputError
from xvfl_lab.datasets.archive import members
from xvfl_lab.datasets.source import DataSet, Download, FileFormat
from xvfl_lab.datasets.table_sets import SUMMARIES, Parties, Table, require_columns, summarize

ADMISSION = ("Age", "Gender", "Height", "ICUType")
CIRCULATION = ("HR", "SysABP", "DiasABP", "MAP", "NISysABP", "NIDiasABP", "NIMAP")
BEDSIDE = ("Temp", "RespRate", "GCS", "Urine", "Weight", "FiO2", "MechVent", "SaO2")
CHEMISTRY = (
    "Albumin", "ALP", "ALT", "AST", "Bilirubin", "BUN", "Cholesterol", "Creatinine", "Glucose",
    "HCO3", "K", "Mg", "Na",
)  # fmt: skip
BLOOD = ("HCT", "Platelets", "WBC", "Lactate", "PaCO2", "PaO2", "pH", "TroponinI", "TroponinT")
PARTIES: dict[int, Parties] = {
    2: {"monitor": ADMISSION + CIRCULATION + BEDSIDE, "laboratory": CHEMISTRY + BLOOD},
    4: {
        "circulation": CIRCULATION,
        "bedside": ADMISSION + BEDSIDE,
        "chemistry": CHEMISTRY,
        "blood": BLOOD,
    },
}
PARAMETERS = CIRCULATION + BEDSIDE + CHEMISTRY + BLOOD
LABEL = "In-hospital_death"
SETS = ("a", "b", "c")
WORLD = "https://physionet.org/files/challenge-2012/1.0.0/"
CHECKSUMS = {
    "set-a.tar.gz": (6_632_372, "8cb250f179cd0952b4b9ebcf8954b63d70383131670fac1cfee13deaa13ca920"),
    "set-b.tar.gz": (6_652_690, "b1637a2a423a8e76f8f087896cfc5fdf28f88519e1f4e874fbda69b2a64dac30"),
    "set-c.tar.gz": (6_600_293, "a4a56b95bcee4d50a3874fe298bf2998f2ed0dd98a676579573dc10419329ee1"),
    "Outcomes-a.txt": (79_219, "2613ea60ccda29f87571a7d6b09ad130858a8ccd66325bd073365925026883c2"),
    "Outcomes-b.txt": (79_149, "1305f29734da374a809483229a99f33a9230aa8d4fa74b1a2d6ad788136423d5"),
    "Outcomes-c.txt": (79_191, "0b32dcb7753c0f18f2f5fde498a28618b8879c5e527ce0dae8ad120dd7e205c9"),
}


def read_records(files: Sequence[Path]) -> Table:
    """Read the publisher's sets of one text file a stay, and their outcomes."""
    by_set = [_outcomes(path) for path in files[3:]]
    outcomes = pd.concat(by_set, ignore_index=True)
    test = np.repeat([name == "c" for name in SETS], [len(each) for each in by_set])
    events = pd.concat([_events(path) for path in files[:3]], ignore_index=True)
    stays = outcomes["RecordID"].tolist()
    lost = set(stays) - set(events["stay"])
    if lost:
        raise InputError(
            f"{files[0].parent}: expected a record of every stay in the outcomes, but {len(lost)} "
            f"have none, first {min(lost)}; get the sets again"
        )
    descriptors = events[events["parameter"].isin(ADMISSION) & (events["time"] == "00:00")]
    admission = descriptors.pivot_table(index="stay", columns="parameter", values="value")
    series = events[events["parameter"].isin(PARAMETERS)]
    series = series[(series["parameter"] != "Weight") | (series["value"] > 0)]
    wide = summarize(series, stays).join(admission)
    return _table(wide, outcomes[LABEL].to_numpy(dtype=np.int64), test)


def _outcomes(path: Path) -> pd.DataFrame:
    outcomes = pd.read_csv(path)
    require_columns(outcomes, ("RecordID", LABEL), path)
    if not outcomes[LABEL].isin((0, 1)).all():
        raise InputError(f"{path}: expected 0 or 1 in {LABEL} of every stay; get it again")
    return outcomes


def _events(path: Path) -> pd.DataFrame:
    """Read a set's records in chronological order: stay, time, parameter, value."""
    parts = []
    for name, data in members(path, lambda name: name.endswith(".txt")):
        stay = name.rsplit("/", 1)[-1].removesuffix(".txt")
        if stay.isdigit():
            part = pd.read_csv(BytesIO(data), names=["time", "parameter", "value"], skiprows=1)
            parts.append(part.assign(stay=int(stay)))
    if not parts:
        raise InputError(f"{path}: expected records like 132539.txt, found none; get it again")
    return pd.concat(parts, ignore_index=True).sort_values(["stay", "time"], kind="stable")


def read_pack(files: Sequence[Path]) -> Table:
    """Read the pack, which is already summarized."""
    wide = pd.read_parquet(files[0])
    y = wide[LABEL].to_numpy(dtype=np.int64)
    return _table(wide, y, (wide["set"] == "c").to_numpy(dtype=bool))


def _table(wide: pd.DataFrame, y: NDArray[np.int64], test: NDArray[np.bool_]) -> Table:
    columns = [f"{p}__{s}" for p in PARAMETERS if p != "MechVent" for s in SUMMARIES]
    frame = wide.reindex(columns=[*ADMISSION, *columns, "MechVent__n"]).reset_index(drop=True)
    frame = frame.astype("float64")
    counts = [name for name in frame.columns if name.endswith("__n")]
    frame[counts] = frame[counts].where(frame[counts] > 0)
    frame["Gender"] = frame["Gender"].where(frame["Gender"] >= 0)
    frame["Height"] = frame["Height"].where(frame["Height"] > 0)
    options = TableOptions(categorical=("Gender", "ICUType"))
    return Table("physionet2012", frame, y, test, PARTIES, options)


DATA_SET = DataSet(
    name="physionet2012",
    title="PhysioNet/CinC Challenge 2012: death in hospital",
    rows=12_000,
    size=20_122_914,
    license="ODC-By 1.0",
    page="https://physionet.org/content/challenge-2012/1.0.0/",
    formats=(
        FileFormat(
            (
                *(f"set-{s}|set-{s}.tar.gz|set-{s}.zip" for s in SETS),
                *(f"Outcomes-{s}.txt" for s in SETS),
            ),
            read_records,
            12_000,
        ),
        FileFormat(("clinical/physionet2012_wide.parquet",), read_pack, 12_000),
    ),
    version=2,
    downloads=tuple(
        Download(WORLD + file, f"physionet2012/{file}", size, f"sha256:{digest}")
        for file, (size, digest) in CHECKSUMS.items()
    ),
)
