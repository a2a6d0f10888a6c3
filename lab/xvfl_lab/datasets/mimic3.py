"""MIMIC-III v1.4 (Johnson et al., 2016): death in hospital, as PhysioNet 2012 asks it.

A row is the first intensive care stay of 48 hours or more of a hospital admission of an adult (16
years or more). Features are what was measured in its first 48 hours, summarized as in PhysioNet
2012, chosen to be the same parameters: laboratory values from LABEVENTS, urine from OUTPUTEVENTS,
vital signs from CHARTEVENTS (the demo's pack has none), and what was known at admission. The
items of both charting systems, CareVue and MetaVision, are joined. Test rows: 20 % of the patients.
"""

from collections.abc import Mapping, Sequence
from pathlib import Path

import duckdb
import numpy as np
import pandas as pd

from xvfl.config import TableOptions
from xvfl.errors import InputError
from xvfl_lab.datasets.source import DataSet, FileFormat, fixed_fraction
from xvfl_lab.datasets.table_sets import Parties, Table, summarize

ADMISSION = ("Age", "Gender", "Unit", "AdmissionType")
ITEMS = pd.read_csv(Path(__file__).with_name("mimic3_items.csv"))
"""Items of both charting systems: their table, their party of four, and what they measure."""
MEASURED = {party: tuple(own["parameter"].unique()) for party, own in ITEMS.groupby("party")}
PARTIES: dict[int, Parties] = {
    2: {
        "monitor": ADMISSION + MEASURED["circulation"] + MEASURED["bedside"],
        "laboratory": MEASURED["chemistry"] + MEASURED["blood"],
    },
    4: {
        "circulation": MEASURED["circulation"],
        "bedside": ADMISSION + MEASURED["bedside"],
        "chemistry": MEASURED["chemistry"],
        "blood": MEASURED["blood"],
    },
}
EVENT_TABLES = ("LABEVENTS", "OUTPUTEVENTS", "CHARTEVENTS")
TABLES = ("ADMISSIONS", "PATIENTS", "ICUSTAYS", *EVENT_TABLES)
OLDEST = 90
"""Ages above 89 are hidden by the publisher as 300 and more."""

STAYS = """
select i.hadm_id::bigint as stay, i.subject_id::bigint as patient, i.intime::timestamp as start,
       a.hospital_expire_flag::int as died, p.gender as "Gender",
       i.first_careunit as "Unit", a.admission_type as "AdmissionType",
       datediff('day', p.dob::timestamp, i.intime::timestamp) / 365.25 as "Age"
from {ICUSTAYS} i join {ADMISSIONS} a on i.hadm_id = a.hadm_id
                  join {PATIENTS} p on i.subject_id = p.subject_id
where i.outtime::timestamp >= i.intime::timestamp + interval 48 hour
qualify row_number() over (partition by i.hadm_id order by i.intime) = 1
order by stay
"""
EVENTS = """
select s.stay, m.parameter, try_cast(e.{value} as double) as value
from {table} e join items m on e.itemid::bigint = m.itemid and m.events = '{name}'
               join stays s on e.hadm_id::bigint = s.stay
where e.charttime::timestamp >= s.start and e.charttime::timestamp < s.start + interval 48 hour
      and try_cast(e.{value} as double) > 0 and {right}
order by s.stay, e.charttime::timestamp, e.itemid
"""
RIGHT = "coalesce(try_cast(e.error as int), 0) = 0"
"""Charted values not marked as errors, in the table that has such marks."""


def read(files: Sequence[Path]) -> Table:
    """Read the publisher's tables, .csv, .csv.gz or the pack's .parquet."""
    tables = {path.name.partition(".")[0]: _table(path) for path in files}
    with duckdb.connect() as database:
        try:
            stays = database.sql(STAYS.format(**tables)).df()
            stays = stays[stays["Age"] >= 16].reset_index(drop=True)
            database.register("stays", stays)
            database.register("items", ITEMS)
            parts = [_events(database, name, tables) for name in EVENT_TABLES if name in tables]
        except duckdb.Error as error:
            raise InputError(
                f"{files[0].parent}: expected MIMIC-III v1.4 tables ({error}); get them again"
            ) from error
    events = _units(pd.concat(parts, ignore_index=True))
    wide = summarize(events, stays["stay"].tolist()).reset_index(drop=True)
    admission = stays[list(ADMISSION)].assign(Age=stays["Age"].clip(upper=OLDEST))
    patients = stays["patient"].astype("str")
    chosen = pd.Series(sorted(patients.unique()))
    test = patients.isin(chosen[fixed_fraction(chosen.tolist(), "mimic3")]).to_numpy(dtype=bool)
    y = stays["died"].to_numpy().astype(np.int64)
    frame = pd.concat([admission, wide], axis=1)
    options = TableOptions(categorical=("Gender", "Unit", "AdmissionType"))
    return Table("mimic3", frame, y, test, PARTIES, options)


def _table(path: Path) -> str:
    quoted = str(path).replace("'", "''")
    if path.suffix == ".parquet":
        return f"read_parquet('{quoted}')"
    # Name the quote: DuckDB detects it in the first rows only.
    form = """header = true, all_varchar = true, delim = ',', quote = '"', escape = '"'"""
    return f"read_csv('{quoted}', {form})"


def _events(
    database: duckdb.DuckDBPyConnection, name: str, tables: Mapping[str, str]
) -> pd.DataFrame:
    columns = database.sql(f"select * from {tables[name]} limit 0").columns
    right = RIGHT if "error" in map(str.lower, columns) else "true"
    value = "value" if name == "OUTPUTEVENTS" else "valuenum"
    query = EVENTS.format(table=tables[name], name=name, value=value, right=right)
    events: pd.DataFrame = database.sql(query).df()
    return events


def _units(events: pd.DataFrame) -> pd.DataFrame:
    """Convert Fahrenheit to Celsius and fractions of oxygen to percent."""
    fahrenheit = events["parameter"] == "TempF"
    share = (events["parameter"] == "FiO2") & (events["value"] <= 1)
    value = events["value"].where(~fahrenheit, (events["value"] - 32) / 1.8)
    value = value.where(~share, value * 100)
    return events.assign(value=value, parameter=events["parameter"].replace("TempF", "Temp"))


DATA_SET = DataSet(
    name="mimic3",
    title="MIMIC-III: death in hospital (intensive care)",
    rows=58_976,
    size=6_700_000_000,
    license="PhysioNet Credentialed Health Data License 1.5 (the demo: ODbL 1.0)",
    page="https://physionet.org/content/mimiciii/1.4/",
    formats=(
        FileFormat(tuple(f"{name}.csv|{name}.csv.gz" for name in TABLES), read),
        FileFormat(tuple(f"clinical/mimic3_demo/{name}.parquet" for name in TABLES[:-1]), read),
    ),
    version=3,
    instructions="it needs a credentialed PhysioNet account and a signed agreement; the open demo "
    "of 100 patients has the same tables: https://physionet.org/content/mimiciii-demo/1.4/",
)
