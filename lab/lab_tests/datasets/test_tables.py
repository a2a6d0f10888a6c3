"""Table data sets in their publishers' formats, made here small, and the packs."""

import gzip
import io
import tarfile
import zipfile
from pathlib import Path

import numpy as np
import pandas as pd
import pytest

from lab_tests.datasets.packs import needs_packs
from xvfl.errors import InputError
from xvfl_lab.datasets import avazu, prepare
from xvfl_lab.datasets.bank import FEATURES as BANK
from xvfl_lab.datasets.table_sets import SUMMARIES, summarize
from xvfl_lab.task import Task

RNG = np.random.default_rng(1)


def column(task: Task, party: str, feature: str) -> np.ndarray:
    """Give a feature's encoded columns, NaN where it is not there."""
    layout = task.layouts[party]
    at = [each.name for each in layout.features].index(feature)
    start = sum(each.width for each in layout.features[:at])
    values = task.values[party][:, start : start + layout.features[at].width]
    return np.where(task.observed_at(party)[:, at : at + 1], values, np.nan)


def bank_frame(rows: int = 50) -> pd.DataFrame:
    words = {
        "job": ["technician", "unknown", "retired"],
        "marital": ["married", "single"],
        "education": ["primary", "tertiary"],
        "default": ["no", "yes"],
        "housing": ["no", "yes"],
        "loan": ["no", "yes"],
        "contact": ["cellular", "unknown", "telephone"],
        "month": ["may", "jun"],
        "poutcome": ["unknown", "success", "failure"],
        "y": ["no", "yes"],
    }
    frame = pd.DataFrame({name: RNG.choice(each, rows) for name, each in words.items()})
    for name in ("age", "balance", "day", "duration", "campaign", "previous"):
        frame[name] = RNG.integers(-5, 90, rows)
    frame["pdays"] = np.where(RNG.random(rows) < 0.5, -1, RNG.integers(0, 300, rows))
    return frame


def write_bank(frame: pd.DataFrame, folder: Path) -> None:
    folder.mkdir(exist_ok=True)
    frame.to_csv(folder / "bank-full.csv", sep=";", index=False)


def test_bank_csv(tmp_path: Path) -> None:
    frame = bank_frame()
    write_bank(frame, tmp_path)
    task = prepare("bank", 2, tmp_path)
    assert {party: layout.raw for party, layout in task.layouts.items()} == {
        "client": 8,
        "campaign": 7,
    }
    names = [each.name for layout in task.layouts.values() for each in layout.features]
    assert sorted(names) == sorted(BANK) and "duration" not in names
    assert task.y.tolist() == (frame["y"] == "yes").astype(int).tolist()
    assert task.test is not None and task.test.sum() == 10
    for party, name, missing in (
        ("client", "job", frame["job"] == "unknown"),
        ("campaign", "contact", frame["contact"] == "unknown"),
        ("campaign", "pdays", frame["pdays"] == -1),
        ("client", "balance", frame["balance"] < -100),
    ):
        assert np.isnan(column(task, party, name)).all(1).tolist() == missing.tolist()
    age = column(task, "client", "age")[:, 0]
    assert np.all(np.diff(age[np.argsort(frame["age"], kind="stable")]) >= 0)


@pytest.mark.parametrize("name", ["bank+marketing.zip", "bank.zip"])
def test_bank_in_the_publisher_s_archive(tmp_path: Path, name: str) -> None:
    write_bank(bank_frame(), tmp_path / "plain")
    inner = tmp_path / "bank.zip"
    with zipfile.ZipFile(inner, "w") as archive:
        archive.write(tmp_path / "plain" / "bank-full.csv", "bank-full.csv")
        archive.writestr("bank.csv", "another table")
    if name != inner.name:
        with zipfile.ZipFile(tmp_path / name, "w") as archive:
            archive.write(inner, inner.name)
        inner.unlink()
    one, two = prepare("bank", 2, tmp_path / "plain"), prepare("bank", 2, tmp_path)
    assert np.array_equal(one.y, two.y)
    assert all(np.array_equal(one.values[party], two.values[party]) for party in one.layouts)


def test_bank_with_answers_that_are_no_answers(tmp_path: Path) -> None:
    frame = bank_frame()
    frame.loc[7, "y"] = "Yes"
    write_bank(frame, tmp_path)
    with pytest.raises(InputError, match='expected "yes" or "no" in y, got \'Yes\''):
        prepare("bank", 2, tmp_path)


def test_bank_split_over_four(tmp_path: Path) -> None:
    write_bank(bank_frame(), tmp_path)
    two, four = (prepare("bank", parties, tmp_path) for parties in (2, 4))
    assert list(four.layouts) == ["person", "accounts", "contact", "history"]
    assert np.array_equal(two.y, four.y) and np.array_equal(two.test, four.test)
    for party, chunks in {
        "client": ["person", "accounts"],
        "campaign": ["contact", "history"],
    }.items():
        assert np.array_equal(two.values[party], np.hstack([four.values[p] for p in chunks]))


def test_bank_of_another_bank(tmp_path: Path) -> None:
    write_bank(bank_frame().drop(columns=["poutcome", "y"]), tmp_path)
    with pytest.raises(InputError, match="got none named poutcome, y"):
        prepare("bank", 2, tmp_path)


def test_encoders_see_training_rows_alone(tmp_path: Path) -> None:
    frame = bank_frame(200)
    write_bank(frame, tmp_path / "one")
    before = prepare("bank", 2, tmp_path / "one")
    assert before.test is not None
    changed = frame.copy()
    changed.loc[before.test, ["age", "balance", "campaign"]] = 1_000_000
    changed.loc[before.test, ["job", "month"]] = "never seen before"
    write_bank(changed, tmp_path / "two")
    after = prepare("bank", 2, tmp_path / "two")
    assert before.layouts == after.layouts
    for party in before.layouts:
        for of in ("values", "observed"):
            one, two = (getattr(task, of)[party] for task in (before, after))
            assert np.array_equal(one[~before.test], two[~before.test])
            assert not np.array_equal(one[before.test], two[before.test])


def avazu_frame(rows: int) -> pd.DataFrame:
    names = [name for name in avazu.FEATURES if name not in avazu.DERIVED]
    frame = pd.DataFrame({name: RNG.integers(0, 3, rows) for name in names})
    frame["device_ip"] = [f"{number:08x}" for number in range(rows)]
    frame["id"] = [str(10**19 + 7 * row) for row in range(rows)]
    frame["click"] = RNG.integers(0, 2, rows)
    # 21 October 2014 was a Tuesday.
    frame["hour"] = [14102100 + 100 * (row % 3) + row % 24 for row in range(rows)]
    return frame


@pytest.mark.parametrize("name", ["train.csv", "train.gz", "avazu-ctr-prediction.zip"])
def test_avazu_csv(tmp_path: Path, name: str) -> None:
    frame = avazu_frame(300)
    text = frame.to_csv(index=False)
    (tmp_path / "avazu").mkdir()
    path = tmp_path / "avazu" / name
    if name.endswith("zip"):
        with zipfile.ZipFile(path, "w") as archive:
            archive.writestr("test.gz", b"another table")
            archive.writestr("train.gz", gzip.compress(text.encode()))
    else:
        path.write_bytes(gzip.compress(text.encode()) if name.endswith("gz") else text.encode())
    task = prepare("avazu", 2, tmp_path)
    assert task.y.tolist() == frame["click"].tolist()
    assert task.test is not None and task.test.sum() == 60
    kinds = {each.kind for layout in task.layouts.values() for each in layout.features}
    assert kinds == {"category", "hashed"}
    hours, weekday = (column(task, "publisher", name) for name in ("hour_of_day", "weekday"))
    in_order = sorted(str(hour) for hour in range(24))
    assert [int(in_order[at]) for at in hours.argmax(1)] == [row % 24 for row in range(300)]
    assert weekday.argmax(1).tolist() == [row % 3 for row in range(300)], "from Tuesday on"
    assert task.layouts["device"].features[-1].name == "device_ip"
    assert task.codes["device"].shape == (300, 1) and "publisher" not in task.codes
    assert (task.codes["device"] == 0).all(), "each address occurs once: all are rare"


def test_avazu_keeps_a_fixed_sample_of_a_long_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    frame = avazu_frame(500)
    frame.to_csv(tmp_path / "train.csv", index=False)
    monkeypatch.setattr(avazu, "SAMPLE", 120)
    monkeypatch.setattr(avazu, "AT_ONCE", 70)
    kept = avazu.read_csv([tmp_path / "train.csv"])
    monkeypatch.setattr(avazu, "AT_ONCE", 1000)
    again = avazu.read_csv([tmp_path / "train.csv"])
    pd.testing.assert_frame_equal(kept.frame, again.frame)
    assert len(kept.frame) == 120 and kept.test.sum() == 24
    rows = [int(address, 16) for address in kept.frame["device_ip"]]
    assert rows == sorted(rows) and min(rows) < 30 and max(rows) > 470


def test_summaries_by_hand() -> None:
    events = pd.DataFrame(
        [(7, "HR", 80.0), (9, "HR", 60.0), (7, "HR", 100.0), (7, "HR", 90.0), (9, "pH", 7.4)],
        columns=["stay", "parameter", "value"],
    )
    wide = summarize(events, [9, 7, 8])
    assert wide.index.tolist() == [9, 7, 8]
    assert list(wide.columns[:6]) == [f"HR__{each}" for each in SUMMARIES]
    assert wide.loc[7].tolist()[:6] == [80, 90, 80, 100, 90, 3]
    assert wide.loc[8].isna().all() and wide.loc[7, "pH__n"] != wide.loc[7, "pH__n"]


def record(stay: int, height: float, weights: list[float]) -> str:
    """Write a stay as PhysioNet does; every second one has no blood gas."""
    lines = [
        "Time,Parameter,Value",
        f"00:00,RecordID,{stay}",
        f"00:00,Age,{20 + stay % 60}",
        f"00:00,Gender,{stay % 2}",
        f"00:00,Height,{height}",
        f"00:00,ICUType,{1 + stay % 4}",
        f"00:00,Weight,{weights[0]}",
        f"00:07,HR,{60 + stay % 40}",
        f"01:07,HR,{80 + stay % 30}",
        f"02:00,MechVent,{1}",
        f"05:00,BUN,{10 + stay % 7}",
        f"30:00,BUN,{12 + stay % 5}",
        *(f"{10 + i}:00,Weight,{weight}" for i, weight in enumerate(weights[1:])),
    ]
    if stay % 3:
        lines.append("12:00,MechVent,1")
    if stay % 2:
        lines.append(f"40:30,pH,{7.2 + stay % 3 / 10}")
    return "\n".join(lines) + "\n"


def write_physionet(folder: Path, form: str) -> None:
    for number, name in enumerate("abc"):
        stays = range(1000 + 100 * number, 1012 + 100 * number)
        files = {
            f"set-{name}/{s}.txt": record(s, -1 if s % 2 else 150 + s % 40, [-1, 70 + s % 9, 75])
            for s in stays
        }
        lines = ["RecordID,SAPS-I,SOFA,Length_of_stay,Survival,In-hospital_death"]
        lines += [f"{stay},6,1,5,-1,{stay % 4 == 0:d}" for stay in stays]
        (folder / f"Outcomes-{name}.txt").write_text("\n".join(lines) + "\n")
        if form == "folder":
            (folder / f"set-{name}").mkdir()
            for each, text in files.items():
                (folder / each).write_text(text)
        elif form == "zip":
            with zipfile.ZipFile(folder / f"set-{name}.zip", "w") as archive:
                for each, text in files.items():
                    archive.writestr(each, text)
        else:
            with tarfile.open(folder / f"set-{name}.tar.gz", "w:gz") as tar:
                for each, text in files.items():
                    info = tarfile.TarInfo(each)
                    info.size = len(text)
                    tar.addfile(info, io.BytesIO(text.encode()))


@pytest.mark.parametrize("form", ["folder", "tar.gz", "zip"])
@pytest.mark.filterwarnings("ignore::xvfl.errors.DataWarning")
def test_physionet_records(tmp_path: Path, form: str) -> None:
    write_physionet(tmp_path, form)
    task = prepare("physionet2012", 2, tmp_path)
    stays = np.array([s for start in (1000, 1100, 1200) for s in range(start, start + 12)])
    assert task.test is not None and task.test.tolist() == (stays >= 1200).tolist()
    assert task.y.tolist() == (stays % 4 == 0).astype(int).tolist()
    monitor, laboratory = (
        {each.name: each.width for each in task.layouts[p].features} for p in task.layouts
    )
    assert set(monitor) == {"Age", "Gender", "Height", "ICUType", "HR", "Weight", "MechVent"}
    assert set(laboratory) == {"BUN", "pH"}
    assert monitor["MechVent"] == 1 and monitor["HR"] == 5, "a count of 2 everywhere tells nothing"
    assert np.isnan(column(task, "laboratory", "pH")).all(1).tolist() == (stays % 2 == 0).tolist()
    assert np.isnan(column(task, "monitor", "Height")).all(1).tolist() == (stays % 2 == 1).tolist()
    assert not np.isnan(column(task, "monitor", "Weight")).any()


@pytest.mark.filterwarnings("ignore::xvfl.errors.DataWarning")
def test_physionet_with_a_record_lost(tmp_path: Path) -> None:
    write_physionet(tmp_path, "folder")
    (tmp_path / "set-b" / "1105.txt").unlink()
    with pytest.raises(InputError, match="1 have none, first 1105"):
        prepare("physionet2012", 2, tmp_path)


@pytest.mark.filterwarnings("ignore::xvfl.errors.DataWarning")
def test_physionet_records_in_any_order(tmp_path: Path) -> None:
    for folder, turn in ((tmp_path / "as they are", 1), (tmp_path / "turned", -1)):
        folder.mkdir()
        write_physionet(folder, "folder")
        for path in folder.glob("set-*/*.txt"):
            first, *lines = path.read_text().splitlines()
            path.write_text("\n".join([first, *lines[::turn]]))
    one, two = (prepare("physionet2012", 2, each) for each in sorted(tmp_path.iterdir()))
    assert all(np.array_equal(one.values[party], two.values[party]) for party in one.layouts)


def test_physionet_with_an_outcome_lost(tmp_path: Path) -> None:
    write_physionet(tmp_path, "folder")
    path = tmp_path / "Outcomes-c.txt"
    path.write_text(path.read_text()[:-3])
    with pytest.raises(InputError, match="Outcomes-c.txt: expected 0 or 1 in In-hospital_death"):
        prepare("physionet2012", 2, tmp_path)
    path.write_text("\n".join(line.rpartition(",")[0] for line in path.read_text().splitlines()))
    with pytest.raises(InputError, match="Outcomes-c.txt: .* got none named In-hospital_death"):
        prepare("physionet2012", 2, tmp_path)


@needs_packs
def test_the_pack_of_bank() -> None:
    task = prepare("bank", 2)
    assert len(task) == 45_211 and task.y.sum() == 5_289
    assert task.test is not None and task.test.sum() == 9_042
    assert abs(task.y[task.test].mean() - task.y.mean()) < 0.01


@needs_packs
def test_the_pack_of_avazu() -> None:
    task = prepare("avazu", 4)
    assert len(task) == 84_871 and list(task.layouts) == ["context", "site", "device", "user"]
    assert task.test is not None and task.test.sum() == 4_000
    assert abs(task.y[task.test].mean() - 0.17) < 0.02, "test rows are of the ten days alike"


@needs_packs
@pytest.mark.filterwarnings("ignore::xvfl.errors.DataWarning")
def test_the_pack_of_physionet() -> None:
    two, four = (prepare("physionet2012", parties) for parties in (2, 4))
    assert two.test is not None and two.y[two.test].sum() == 585 and two.y.sum() == 1_707
    assert [layout.raw for layout in two.layouts.values()] == [19, 22]
    assert sum(layout.raw for layout in four.layouts.values()) == 41
    widths = {each.width for each in two.layouts["laboratory"].features}
    assert widths == {6}
    scores = {"SAPS-I", "SOFA", "Length_of_stay", "Survival", "In-hospital_death"}
    names = {each.name for layout in two.layouts.values() for each in layout.features}
    assert not names & scores
    missing = 1 - np.concatenate([two.observed_at(p) for p in two.layouts], axis=1).mean()
    assert 0.2 < missing < 0.3
