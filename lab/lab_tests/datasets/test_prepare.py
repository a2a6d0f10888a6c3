"""Finding, caching, saving and listing data sets."""

import gzip
import io
import os
import re
import tarfile
import zipfile
from dataclasses import replace
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from hypothesis import given
from hypothesis import strategies as st

from lab_tests.command_line import error_of, xvfl_lab
from lab_tests.datasets.test_tables import bank_frame, write_bank
from tests.processes import run_python
from xvfl.config import TableOptions
from xvfl.errors import DataWarning, InputError
from xvfl.primitives.layout import Feature, Layout, NumberBins
from xvfl_lab.datasets import DATASETS, data_set, find, prepare
from xvfl_lab.datasets.source import fixed_fraction, hash_ranks
from xvfl_lab.datasets.table_sets import Table
from xvfl_lab.task import Task, load_task, save_task


def small_task() -> Task:
    """Make a party with every kind of feature, and an image party."""
    mixed = Layout(
        (
            Feature("age", "numeric", 1),
            Feature("HR", "numeric", 2),
            Feature("job", "category", 3),
            Feature("city", "hashed", 4, 128),
        )
    )
    values = np.array([[0.5, 0.2, 0.4, 0, 0, 1], [0.1, 0.0, 0.0, 1, 0, 0]], dtype=np.float32)
    images = np.arange(2 * 3 * 2 * 2, dtype=np.uint8).reshape(2, 3, 2, 2)
    return Task(
        "small",
        {"table": mixed, "image": Layout(image=(3, 2, 2))},
        {"table": values, "image": images},
        np.array([1, 0]),
        {"table": np.array([[1, 1, 1, 1], [1, 0, 1, 1]], dtype=bool)},
        {"table": np.array([[7], [100]])},
        np.array([False, True]),
    )


def test_a_saved_task_comes_back(tmp_path: Path) -> None:
    task = small_task()
    save_task(task, tmp_path / "deep" / "task.npz")
    back = load_task(tmp_path / "deep" / "task.npz")
    assert back.name == "small" and back.layouts == task.layouts
    assert list(back.layouts) == list(task.layouts)
    assert np.array_equal(back.y, task.y) and np.array_equal(back.test, task.test)
    for party in task.layouts:
        assert back.values[party].dtype == task.values[party].dtype
        assert np.array_equal(back.values[party], task.values[party])
        assert np.array_equal(back.observed_at(party), task.observed_at(party))
        assert np.array_equal(back.buckets(party), task.buckets(party))
    assert [each.name for each in (tmp_path / "deep").iterdir()] == ["task.npz"]


def test_a_task_without_fixed_test_rows_comes_back(tmp_path: Path) -> None:
    task = Task("t", {"a": Layout(image=(1, 1, 1))}, {"a": np.zeros((3, 1, 1, 1))}, np.arange(3))
    save_task(task, tmp_path / "t.npz")
    assert load_task(tmp_path / "t.npz").test is None and task.classes == 3


def test_bins_of_numbers_are_prepared_and_not_hashed(tmp_path: Path) -> None:
    rows, rng = 300, np.random.default_rng(0)
    names = ("pulse__first", "pulse__last", "age")
    frame = pd.DataFrame({name: rng.integers(0, 9, rows) * 1.0 for name in names})
    test = np.arange(rows) >= 200
    frame.loc[test, "age"] = 99.0
    parties = {1: {"clinic": ("pulse", "age")}}
    y = rng.integers(0, 2, rows)
    task = Table("t", frame, y, test, parties, TableOptions()).split(1)
    (layout,) = task.layouts.values()
    assert [each.width for each in layout.features] == [2, 1]
    # The value of the test rows is no knot.
    assert layout.bins == (NumberBins(tuple(np.linspace(0, 1, 9))),) * 3
    save_task(task, tmp_path / "t.npz")
    assert load_task(tmp_path / "t.npz").layouts == task.layouts
    plain = replace(task, layouts={"clinic": replace(layout, bins=())})
    assert plain.digest() == task.digest()


def test_raw_values_are_one_number_a_feature() -> None:
    task = small_task()
    nan = np.nan
    expected = np.array([[0.5, 0.3, 2, 7], [0.1, nan, 0, 100]], dtype=np.float32)
    assert np.allclose(task.raw_values("table"), expected, equal_nan=True)
    assert task.raw_values("image")[0].tolist() == [4, 5, 6, 7]


def test_files_that_are_no_tasks(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="no such file"):
        load_task(tmp_path / "absent.npz")
    (tmp_path / "text.npz").write_text("not a zip")
    with pytest.raises(InputError, match="not a prepared data set"):
        load_task(tmp_path / "text.npz")
    np.savez(tmp_path / "other.npz", y=np.arange(3))
    with pytest.raises(InputError, match="not a prepared data set"):
        load_task(tmp_path / "other.npz")
    np.savez(tmp_path / "new.npz", about=np.array('{"format": 99}'))
    with pytest.raises(InputError, match="expected format 1, got 99"):
        load_task(tmp_path / "new.npz")


def test_a_prepared_task_loads_with_numpy_alone(tmp_path: Path) -> None:
    save_task(small_task(), tmp_path / "task.npz")
    done = run_python(
        "-c",
        "import sys\nfrom pathlib import Path\nfrom xvfl_lab.task import load_task\n"
        f"task = load_task(Path({str(tmp_path / 'task.npz')!r}))\n"
        "print(len(task), sorted({'torch', 'pandas', 'duckdb'} & set(sys.modules)))",
    )
    assert done.stdout == "2 []\n", done.stderr


def test_images_are_prepared_without_pandas() -> None:
    done = run_python(
        "-c",
        "import sys\nfrom xvfl_lab.datasets import data_set\n"
        "for name in ('cifar10', 'utkface', 'tinyimagenet5'):\n    data_set(name)\n"
        "print(sorted({'torch', 'pandas', 'duckdb', 'PIL'} & set(sys.modules)))",
    )
    assert done.stdout == "[]\n", done.stderr


@pytest.mark.parametrize("name", DATASETS)
def test_a_data_set_that_is_not_here(name: str, tmp_path: Path) -> None:
    each = data_set(name)
    assert each.name == name and each.rows > 0 and each.license
    for download in each.downloads:
        assert re.fullmatch(r"md5:[0-9a-f]{32}|sha256:[0-9a-f]{64}", download.checksum)
        assert download.file.startswith(f"{name}/")
    assert bool(each.downloads) != bool(each.instructions)
    with pytest.raises(InputError, match=re.escape(each.page)) as caught:
        prepare(name, 2, tmp_path)
    assert each.formats[0].files[0] in str(caught.value)
    assert (f"xvfl-lab data get {name}" in str(caught.value)) == bool(each.downloads)


def test_the_page_of_data_sets_says_what_the_code_says() -> None:
    page = (Path(__file__).parents[3] / "docs" / "datasets.md").read_text(encoding="utf-8")
    for name in DATASETS:
        each = data_set(name)
        assert f"\n## {name}\n" in page
        # Data sets of several files have their checksums in the code alone.
        checksums = [download.checksum.partition(":")[2] for download in each.downloads]
        assert len(checksums) != 1 or checksums[0] in page


def test_unknown_names_are_answered_with_the_known_ones() -> None:
    with pytest.raises(InputError, match="did you mean 'cifar10'.*mimic3"):
        prepare("cifar")


def test_the_cache_is_used_until_the_files_change(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write_bank(bank_frame(), tmp_path / "bank")
    first = prepare("bank", 2, tmp_path)
    kept = list((Path(os.environ["XVFL_CACHE"]) / "prepared").iterdir())
    assert len(kept) == 1 and kept[0].name.startswith("bank-2-")
    with monkeypatch.context() as changed:
        changed.setattr("xvfl_lab.datasets.bank._table", lambda *_: pytest.fail("read again"))
        again = prepare("bank", 2, tmp_path)
    assert np.array_equal(first.values["client"], again.values["client"])
    write_bank(bank_frame(60), tmp_path / "bank")
    assert len(prepare("bank", 2, tmp_path)) == 60


def test_the_publisher_s_files_come_before_packs_and_own_folders_first(tmp_path: Path) -> None:
    (tmp_path / "tabular").mkdir()
    (tmp_path / "tabular" / "bank_full.parquet").touch()
    pack = find("bank", tmp_path)
    write_bank(bank_frame(), tmp_path)
    plain = find("bank", tmp_path)
    write_bank(bank_frame(), tmp_path / "bank")
    own = find("bank", tmp_path)
    assert pack is not None and plain is not None and own is not None
    names = [found.paths[0].relative_to(tmp_path).as_posix() for found in (pack, plain, own)]
    assert names == ["tabular/bank_full.parquet", "bank-full.csv", "bank/bank-full.csv"]


def test_a_damaged_or_unwritable_cache_does_no_harm(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write_bank(bank_frame(), tmp_path)
    first = prepare("bank", 2, tmp_path)
    (kept,) = (Path(os.environ["XVFL_CACHE"]) / "prepared").iterdir()
    kept.write_bytes(kept.read_bytes()[:1000])
    assert np.array_equal(prepare("bank", 2, tmp_path).values["client"], first.values["client"])
    assert len(load_task(kept)) == 50
    (tmp_path / "file").touch()
    monkeypatch.setenv("XVFL_CACHE", str(tmp_path / "file"))
    with pytest.warns(DataWarning, match="not cached"):
        assert len(prepare("bank", 2, tmp_path)) == 50


@pytest.mark.parametrize("place", [0.3, 0.5, 0.9])
def test_a_cache_with_a_wrong_byte_does_no_harm(tmp_path: Path, place: float) -> None:
    write_bank(bank_frame(2000), tmp_path)
    with pytest.warns(DataWarning, match="2,000 rows, expected 45,211"):
        first = prepare("bank", 2, tmp_path)
    (kept,) = (Path(os.environ["XVFL_CACHE"]) / "prepared").iterdir()
    damage(kept, place)
    with pytest.warns(DataWarning, match="2,000 rows, expected 45,211"):
        again = prepare("bank", 2, tmp_path)
    assert np.array_equal(again.values["client"], first.values["client"])


@pytest.mark.parametrize("place", [0.02, 0.3, 0.5, 0.9, 0.9999])
@pytest.mark.parametrize("name", ["UTKFace.tar.gz", "UTKFace.zip", "train.gz"])
def test_an_archive_with_a_wrong_byte_is_refused(tmp_path: Path, name: str, place: float) -> None:
    path = tmp_path / name
    noise = np.random.default_rng(0).bytes(50_000)
    if name.endswith("tar.gz"):
        with tarfile.open(path, "w:gz") as tar:
            for i in range(10):
                info = tarfile.TarInfo(f"UTKFace/{i}_0_0_2017.jpg.chip.jpg")
                info.size = 5000
                tar.addfile(info, io.BytesIO(noise[5000 * i :]))
    elif name.endswith("zip"):
        with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as archive:
            for i in range(10):
                archive.writestr(f"UTKFace/{i}_0_0_2017.jpg.chip.jpg", noise[5000 * i :][:5000])
    else:
        path.write_bytes(gzip.compress(noise.hex().encode()))
    damage(path, place)
    with pytest.raises(InputError, match=f"{name}: cannot be read"):
        prepare("avazu" if name == "train.gz" else "utkface", 2, tmp_path)


def damage(path: Path, place: float) -> None:
    data = bytearray(path.read_bytes())
    data[int(place * len(data))] ^= 0xFF
    path.write_bytes(data)


def test_folders_with_nothing_or_a_link_to_nowhere(tmp_path: Path) -> None:
    folder = tmp_path / "bank"
    write_bank(bank_frame().iloc[:0], folder)
    with pytest.raises(InputError, match="bank-full.csv: has no rows"):
        prepare("bank", 2, tmp_path)
    records = tmp_path / "set-a"
    records.mkdir()
    (records / "gone.txt").symlink_to(tmp_path / "nowhere")
    found = find("bank", tmp_path)
    assert found is not None
    linked = replace(found, paths=(records,)).identity()
    (records / "here.txt").touch()
    assert replace(found, paths=(records,)).identity() != linked


@pytest.mark.parametrize(
    ("name", "file"),
    [
        ("avazu", "train.gz"),
        ("bank", "tabular/bank_full.parquet"),
        ("cifar10", "cifar-10-binary.tar.gz"),
        ("tinyimagenet5", "tinyimagenet/tin5_wnids_order_jpeg.npz"),
        ("utkface", "UTKFace.zip"),
    ],
)
def test_files_cut_short_are_named(tmp_path: Path, name: str, file: str) -> None:
    path = tmp_path / file
    path.parent.mkdir(exist_ok=True)
    path.write_bytes(b"PK\x03\x04 and no more")
    with pytest.raises(InputError, match=f"{path.name}: cannot be read .*get it again"):
        prepare(name, 2, tmp_path)


@given(st.sets(st.text(max_size=5), max_size=60), st.floats(0, 1))
def test_fixed_rows_are_exact_and_go_by_their_keys(keys: set[str], share: float) -> None:
    listed = sorted(keys)
    chosen = fixed_fraction(listed, "x", share)
    assert chosen.sum() == round(share * len(keys))
    assert fixed_fraction(listed[::-1], "x", share).tolist() == chosen[::-1].tolist()


def test_fixed_rows_stay_what_they_are() -> None:
    assert hash_ranks(["0", "1"], "bank").tolist() == [14439387199043061991, 16276240406307088831]
    assert np.flatnonzero(fixed_fraction([str(i) for i in range(20)], "bank")).tolist() == [
        8,
        11,
        16,
        18,
    ]


def test_the_list_says_what_is_here(tmp_path: Path) -> None:
    write_bank(bank_frame(), tmp_path)
    said = xvfl_lab("data", "list", "--data", tmp_path)
    assert said.code == 0, said.err
    line = next(each for each in said.out.splitlines() if each.startswith("│ bank"))
    assert "bank-full.csv" in line and "CC BY 4.0" in line and "45,211" in line
    line = next(each for each in said.out.splitlines() if each.startswith("│ cifar10"))
    assert "no" in line and "162.2 MiB" in line and "md5 c32a1d4ab5d0" in line
    assert all(f"│ {name} " in said.out for name in DATASETS)


def test_prepare_writes_a_file_to_take_elsewhere(tmp_path: Path) -> None:
    write_bank(bank_frame(), tmp_path)
    out = tmp_path / "bank.npz"
    said = xvfl_lab("data", "prepare", "bank", "--data", tmp_path, "--parties", 4, "--out", out)
    assert said.code == 0, said.err
    assert "50 rows, 2 classes, 10 test rows" in said.out and "history: 3 features" in said.out
    assert list(load_task(out).layouts) == ["person", "accounts", "contact", "history"]


def test_get_says_what_to_do_by_hand() -> None:
    assert "Kaggle account" in error_of("data", "get", "avazu")
    assert "credentialed" in error_of("data", "get", "mimic3")
    assert "did you mean 'bank'" in error_of("data", "get", "bnk")
