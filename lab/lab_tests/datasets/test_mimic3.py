"""MIMIC-III's tables in the publisher's format: who is a row, what is measured when."""

import gzip
from pathlib import Path

import numpy as np
import pandas as pd
import pytest

from lab_tests.datasets.packs import needs_packs
from xvfl.errors import InputError
from xvfl_lab.datasets import mimic3, prepare

STAYS = 40


def write(folder: Path, gzipped: bool = False) -> None:
    """Write 40 stays that count, of 20 patients, and three that do not."""
    start = pd.Timestamp("2150-01-01 12:00:00")
    stays, admissions, patients, labs, charts, outputs = [], [], [], [], [], []
    for i in range(STAYS + 3):
        patient, stay, came = i // 2, 100 + i, start + pd.Timedelta(days=30 * i)
        child, brief = i == STAYS, i == STAYS + 1
        born = came - pd.Timedelta(days=365 * (5 if child else 300 if i == 0 else 40 + i % 30))
        left = came + pd.Timedelta(hours=20 if brief else 50)
        stays.append((i, 500 + patient, stay, 900 + i, "MICU" if i % 3 else "CCU", came, left))
        admissions.append((i, 500 + patient, stay, ["EMERGENCY", "ELECTIVE"][i % 2], i % 4 == 0))
        patients.append((500 + i, 500 + i, "MF"[i % 2], born))
        if i % 2 == 0:
            patients.append((500 + patient, 500 + patient, "MF"[patient % 2], born))

        def at(hours: float, came: pd.Timestamp = came) -> pd.Timestamp:
            return came + pd.Timedelta(hours=hours)

        labs += [
            (stay, 50971, at(1), 3.0 + i % 5),
            (stay, 50822, at(5), 4.0),
            (stay, 50971, at(-1), 99),
        ]
        labs += [(stay, 50971, at(48), 99), (stay, 99999, at(2), 99), (stay, 51006, at(3), 10 + i)]
        charts += [(stay, 678, at(2), 98.6 + i % 3), (stay, 223762, at(3), 38.0)]
        charts += [(stay, 190, at(4), 0.4 + i % 2 / 10), (stay, 223835, at(6), 50.0)]
        charts += [(stay, 211, at(4), 60 + i)] if i % 2 else []
        outputs += [(stay, 40055, at(7), 100 + i)]
    # A second stay of the first admission: not a row of its own.
    stays.append(
        (99, 500, 100, 999, "SICU", start + pd.Timedelta(days=5), start + pd.Timedelta(days=9))
    )
    tables = {
        "ICUSTAYS": (stays, "ROW_ID SUBJECT_ID HADM_ID ICUSTAY_ID FIRST_CAREUNIT INTIME OUTTIME"),
        "ADMISSIONS": (admissions, "ROW_ID SUBJECT_ID HADM_ID ADMISSION_TYPE HOSPITAL_EXPIRE_FLAG"),
        "PATIENTS": (patients, "ROW_ID SUBJECT_ID GENDER DOB"),
        "LABEVENTS": (labs, "HADM_ID ITEMID CHARTTIME VALUENUM"),
        "CHARTEVENTS": (charts, "HADM_ID ITEMID CHARTTIME VALUENUM"),
        "OUTPUTEVENTS": (outputs, "HADM_ID ITEMID CHARTTIME VALUE"),
    }
    for name, (rows, columns) in tables.items():
        frame = pd.DataFrame(rows, columns=columns.split())
        if name == "PATIENTS":
            frame = frame.drop_duplicates("SUBJECT_ID", keep="last")
        if name == "ADMISSIONS":
            frame["HOSPITAL_EXPIRE_FLAG"] = frame["HOSPITAL_EXPIRE_FLAG"].astype(int)
        text = frame.to_csv(index=False)
        path = folder / f"{name}.csv{'.gz' * gzipped}"
        path.write_bytes(gzip.compress(text.encode()) if gzipped else text.encode())


def read(folder: Path) -> "mimic3.Table":
    found = mimic3.DATA_SET.find(folder)
    assert found is not None
    return found.format.read(found.paths)


@pytest.mark.parametrize("gzipped", [False, True])
def test_rows_are_first_long_stays_of_adults(tmp_path: Path, gzipped: bool) -> None:
    write(tmp_path, gzipped)
    table = read(tmp_path)
    frame = table.frame
    assert len(frame) == STAYS + 1
    assert table.y.tolist() == [int(i % 4 == 0) for i in [*range(STAYS), STAYS + 2]]
    assert frame["Unit"][0] == "CCU" and frame["Age"].max() == 90
    patients = np.array([i // 2 for i in range(STAYS)])
    by_patient = pd.Series(table.test[:STAYS]).groupby(patients)
    assert (by_patient.nunique() == 1).all(), "a patient is in one part alone"
    assert by_patient.any().sum() + table.test[STAYS] == round(0.2 * 21)


def test_measurements_of_the_first_two_days(tmp_path: Path) -> None:
    write(tmp_path)
    frame = read(tmp_path).frame
    assert frame["K__n"].tolist() == [2.0] * len(frame), "neither before nor after"
    assert frame["K__first"][3] == 6.0 and frame["K__last"].eq(4.0).all()
    assert frame["Temp__first"][0] == pytest.approx(37.0) and frame["Temp__last"].eq(38.0).all()
    assert frame["FiO2__min"][1] == pytest.approx(50.0) and frame["FiO2__min"][0] == 40.0
    assert frame["HR__n"].isna().tolist()[:4] == [True, False, True, False]
    assert frame["Urine__mean"][7] == 107.0


def test_quotes_that_come_late_and_values_marked_as_errors(tmp_path: Path) -> None:
    write(tmp_path)
    before = read(tmp_path).frame["HR__max"]
    path = tmp_path / "CHARTEVENTS.csv"
    header, *lines = path.read_text().splitlines()
    stay, item, at, _ = next(line for line in lines if ",211," in line).split(",")
    nothing = f"{stay},1,{at},1,,"
    wrong = [f"{stay},{item},{at},9999,1,", f'{stay},{item},{at},70,0,"so, so"']
    plain = [f"{line},," for line in lines]
    path.write_text("\n".join([f"{header},ERROR,VALUE", *plain, *[nothing] * 30_000, *wrong]))
    after = read(tmp_path).frame["HR__max"]
    assert after[1] == max(before[1], 70) and after.drop(1).equals(before.drop(1))


@pytest.mark.filterwarnings("ignore::xvfl.errors.DataWarning")
def test_mimic3_becomes_a_task(tmp_path: Path) -> None:
    write(tmp_path)
    task = prepare("mimic3", 2, tmp_path)
    assert list(task.layouts) == ["monitor", "laboratory"]
    names = {each.name for each in task.layouts["monitor"].features}
    assert names == {"Age", "Gender", "Unit", "AdmissionType", "HR", "Temp", "FiO2", "Urine"}


def test_tables_of_something_else(tmp_path: Path) -> None:
    write(tmp_path)
    (tmp_path / "LABEVENTS.csv").write_text("a,b\n1,2\n")
    with pytest.raises(InputError, match="expected MIMIC-III v1.4 tables"):
        prepare("mimic3", 2, tmp_path)


@needs_packs
@pytest.mark.filterwarnings("ignore::xvfl.errors.DataWarning")
def test_the_demo() -> None:
    task = prepare("mimic3", 2)
    assert len(task) == 70 and 0 < task.y.mean() < 1
    assert task.layouts["laboratory"].raw == 22
