"""Stored runs keep their results under the keys of today's option names."""

import importlib.util
import json
import shutil
from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
import torch

from xvfl.errors import RunError
from xvfl_lab.experiments import boundary, confidence, rounds
from xvfl_lab.experiments.figure_cache import read_record
from xvfl_lab.experiments.figures import FIGURES, FULL, PUBLISHED, Budget
from xvfl_lab.experiments.run_store import RunStore, key_of, run_key

LAB = Path(__file__).resolve().parents[2]
RESULTS = LAB / "results"


@pytest.fixture(scope="module")
def script() -> ModuleType:
    spec = importlib.util.spec_from_file_location("rekey_runs", LAB / "scripts" / "rekey_runs.py")
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.mark.parametrize("figure", PUBLISHED)
def test_every_published_run_is_found(figure: str) -> None:
    for dataset in PUBLISHED[figure]:
        jobs = FIGURES[figure](dataset, FULL[dataset])
        assert RunStore(RESULTS / "runs" / f"{dataset}.jsonl").missing(jobs) == []


@pytest.mark.parametrize("figure", [boundary, confidence, rounds])
def test_cached_figures_are_recognized(
    figure: ModuleType, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def config_alone(
        _out: Path, _name: str, config: Mapping[str, Any], *_rest: object
    ) -> Mapping[str, Any]:
        return config

    monkeypatch.setattr(figure, "cached_figure", config_alone)
    made: Callable[..., Mapping[str, Any]] = figure.make
    config = made(tmp_path, False, torch.device("cpu"), lambda *_: None, lambda _: None)
    record = read_record(RESULTS / figure.NAME, figure.NAME)
    assert record is not None and record["key"] == key_of(json.loads(json.dumps(config)))


# Keys of version 0.1.0, as its files had them: data set, name, rate, seed.
OLD_KEYS = {
    ("bank", "xvfl", 0.0, 0): "80394c4f04a67d5a6bf5",
    ("bank", "xvfl", 0.1, 0): "c2a5b9daf5490a9a8eab",
    ("bank", "xvfl", 0.3, 0): "362088de6911795d8232",
}


def old_file(script: ModuleType, folder: Path, dataset: str = "bank") -> Path:
    """Write a file as version 0.1.0 did."""
    path = folder / "runs" / f"{dataset}.jsonl"
    path.parent.mkdir(parents=True)
    lines = []
    for (_, name, rate, seed), key in OLD_KEYS.items():
        about = {"seconds": 0.5, "hardware": "GPU", "data": "d", "majority": 0.9}
        metrics = {"local": [rate, 0.1, 0.2, 0.3, 0.4]}
        run = {"key": key, "name": name, "rate": rate, "seed": seed}
        lines.append(json.dumps({**run, **about, "metrics": metrics}))
    path.write_text("\n".join(lines) + "\n")
    return path


def main(script: ModuleType, monkeypatch: pytest.MonkeyPatch, results: Path) -> None:
    monkeypatch.setattr("sys.argv", ["rekey_runs.py", str(results)])
    script.main()


def test_old_keys_are_rebuilt_from_frozen_defaults(script: ModuleType) -> None:
    jobs = {script.old_key(job): job for job in script.old_jobs("bank")}
    for (dataset, name, rate, seed), key in OLD_KEYS.items():
        job = jobs[key]
        assert (job["dataset"], job["setting"]["method"]) == (dataset, name)
        assert (job["setting"]["rate"], job["setting"]["seed"]) == (rate, seed)


def test_old_runs_are_found_under_their_new_keys(
    script: ModuleType, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = old_file(script, tmp_path)
    with pytest.raises(RunError, match=r"rekey_runs\.py"):
        RunStore(path)
    main(script, monkeypatch, tmp_path)
    old = Budget(0, 0, 20, 5, (0.0, 0.1, 0.3), joint_masks=False, more_seeds=5)
    jobs = FIGURES["missing-rates"]("bank", old)
    found = {
        (each.config.name, each.config.rate): each.metrics["local"]["accuracy"]
        for each in RunStore(path).get(jobs)
    }
    assert found == {("xvfl", rate): rate for rate in (0.0, 0.1, 0.3)}
    first = path.read_bytes()
    main(script, monkeypatch, tmp_path)
    assert path.read_bytes() == first


def test_an_unknown_run_stops_the_script_before_any_file_changes(
    script: ModuleType, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = old_file(script, tmp_path)
    other = path.with_name("utkface.jsonl")
    other.write_text(json.dumps({"key": "0" * 20, "name": "laser", "rate": 0.5}) + "\n")
    before = path.read_bytes()
    with pytest.raises(RunError, match=r"1 of 1 results match no configuration: 0{20} \(laser"):
        main(script, monkeypatch, tmp_path)
    assert path.read_bytes() == before


def test_published_files_stay_as_they_are(
    script: ModuleType, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    shutil.copytree(RESULTS, tmp_path / "results")
    main(script, monkeypatch, tmp_path / "results")
    for path in RESULTS.rglob("*"):
        if path.is_file():
            copy = tmp_path / "results" / path.relative_to(RESULTS)
            assert copy.read_bytes() == path.read_bytes(), path


def test_a_renamed_and_a_new_option_need_a_line_each(
    script: ModuleType, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A file of an imaginary earlier version, which lacked an option and named one differently."""
    path = tmp_path / "runs" / "utkface.jsonl"
    path.parent.mkdir()
    text = (RESULTS / "runs" / "utkface.jsonl").read_text()
    earlier = text.replace('"n_masks": 2', '"copies": 2').replace('"imbalance": null, ', "")
    earlier = earlier.replace(', "imbalance": null', "")
    assert earlier.count("imbalance") == 0
    path.write_text(earlier)
    with pytest.raises(RunError, match=r"config\.imbalance, config\.loss\.copies"):
        RunStore(path)
    with pytest.raises(RunError, match="extend RENAMED or ADDED"):
        main(script, monkeypatch, tmp_path)
    monkeypatch.setitem(script.RENAMED, "loss.copies", "n_masks")
    monkeypatch.setitem(script.ADDED, "config.imbalance", None)
    main(script, monkeypatch, tmp_path)
    assert not RunStore(path).missing(FIGURES["missing-rates"]("utkface", FULL["utkface"]))


def test_a_new_default_reuses_no_run() -> None:
    """Keys have every option explicit: a job with another value of any option is another run."""
    job = FIGURES["missing-rates"]("bank", FULL["bank"])[0]
    loss = replace(job.config.loss, stop_gradient=not job.config.loss.stop_gradient)
    assert run_key(replace(job, config=replace(job.config, loss=loss))) != run_key(job)
