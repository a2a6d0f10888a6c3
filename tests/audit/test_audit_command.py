"""`xvfl audit`: its pages, its figures, its errors."""

import json
from pathlib import Path

import pytest
import torch

from tests.command_line import run_xvfl
from tests.small_tables import CONFIG, SOURCE, make_tables, train, write_run_inputs
from xvfl.audit.findings import Finding, Key, worst_by_attack
from xvfl.audit.interactive_audit import AuditResult
from xvfl.audit.interactive_descriptions import SECTIONS, TRIED
from xvfl.audit.interactive_page import page
from xvfl.audit.load_scenario import load_party_scenario, load_scenario
from xvfl.audit.simulation import Scenario
from xvfl.audit.sweep import UploadScenario
from xvfl.config import EncoderConfig, TableOptions, parse_config

ABOUT = {
    "parties": {"<bank>": 10, "shop": 20},
    "training_rows": 8,
    "configured": {"protection": "on"},
    "off": {"protection": "none"},
    "known_labels": 4,
    "known_rows": 2,
    "seconds": 1.0,
}
PARTY = """
coordinator = "127.0.0.1:1"
table = "bank.csv"
id_column = "customer"

[encoder]
epochs = 2
hidden_dim = 32
embedding_dim = 24

[tls]
ca_certificate = "ca.crt"
certificate = "c.crt"
private_key = "c.key"
"""


ATTACKS = {
    "ICA",
    "PCA",
    "differences, ICA",
    "differences, clusters",
    "collusion, shared columns",
    "collusion, other columns, 0 rows",
    "two versions, ICA",
    "two versions, PCA",
    "membership, embeddings",
    "membership, classifier",
    "labels, held-out list",
    "stolen encoder",
}
"""Attacks on an upload, besides those with known rows."""


def test_every_attack_is_described_once() -> None:
    listed = [attack for section in SECTIONS for attack in section.attacks]
    assert sorted(listed) == sorted(TRIED)


def test_verdicts() -> None:
    def verdict(own: float, off: float, on: float) -> str:
        return Finding(Key("a", "b", "c", "AUC"), 0.5, own, off, on).verdict

    assert verdict(0.6, 1.0, 0.5) == "blocked" and verdict(0.6, 1.0, 0.62) == "no gain"
    assert verdict(0.6, 1.0, 0.7) == "gain"


def test_the_page_is_self_contained_and_escapes_names() -> None:
    key = Key("decoder, embeddings", "coordinator", "<bank>", "R²")
    findings = [Finding(key, 0.0, 0.1, 0.9, 0.8)]
    text = page(AuditResult(findings, ABOUT), "xvfl audit run.toml", b"png")
    assert "<script" not in text and "http" not in text and "<bank>" not in text
    assert "80% of the variation" in text and "&lt;bank&gt;" in text


def test_the_party_with_the_largest_gain_is_shown() -> None:
    findings = [
        Finding(Key("a", party, "labels", "AUC"), 0.5, 0.5, 1.0, value)
        for party, value in (("bank", 0.6), ("shop", 0.7))
    ]
    (worst,) = worst_by_attack(findings)
    assert worst.key.attacker == "shop"


def test_the_example_can_be_audited() -> None:
    path = SOURCE.parent / "examples" / "two_parties" / "audit.toml"
    config = parse_config(path.read_text(), str(path))
    assert set(config.parties) == {"clinic", "laboratory"} and config.train.epochs == 30


def test_paths_that_cannot_be_audited(tmp_path: Path) -> None:
    missing = run_xvfl("audit", tmp_path / "nothing.toml")
    assert missing.code == 2 and "cannot be read" in missing.err
    empty = run_xvfl("audit", tmp_path)
    assert empty.code == 2 and "finished run folder" in empty.err


def test_label_protection_decides_what_is_audited(tmp_path: Path) -> None:
    config = write_run_inputs(tmp_path)
    assert isinstance(load_scenario(config, 100), UploadScenario)
    config.write_text(CONFIG + '[privacy]\nlabel_protection = "noise"\n')
    assert isinstance(load_scenario(config, 100), Scenario)


@pytest.mark.slow
def test_a_configuration_and_a_run_are_the_same_scenario(tmp_path: Path) -> None:
    config = write_run_inputs(tmp_path)
    train(config, tmp_path / "run")
    first, second = (load_scenario(path, 100) for path in (config, tmp_path / "run"))
    assert isinstance(first, UploadScenario) and isinstance(second, UploadScenario)
    assert first.encoders == second.encoders
    for name, table in first.tables.items():
        assert torch.equal(table.values, second.tables[name].values)
        assert torch.equal(first.learned[name], second.learned[name])


@pytest.mark.slow
def test_uploads_of_all_parties_are_audited(tmp_path: Path) -> None:
    config, out = write_run_inputs(tmp_path), tmp_path / "audit"
    said = run_xvfl("audit", config, "--out", out, "--quick", "--known-rows", 30)
    assert said.code == 0 and "decoder, 30 rows" in said.out and "collaborative" in said.out
    assert (out / "audit.html").stat().st_size > 5000 and (out / "audit.png").is_file()
    results = json.loads((out / "audit.json").read_text())["results"]
    assert {"configured", "0.3.0", "copies 0"} <= {each["dial"] for each in results}


@pytest.mark.slow
def test_a_party_audits_its_own_table(tmp_path: Path) -> None:
    write_run_inputs(tmp_path)
    path, out = tmp_path / "party.toml", tmp_path / "audit"
    path.write_text(PARTY)
    said = run_xvfl("audit", path, "--out", out, "--quick", "--label", "churned")
    assert said.code == 0, said.err
    text = (out / "audit.html").read_text()
    assert "<script" not in text and "What a coordinator can read" in text
    results = json.loads((out / "audit.json").read_text())["results"]
    measured = results[0]["measured"]["bank"]
    attacks = {each["attack"] for each in measured}
    known = {f"{each}, {n} rows" for each in ("decoder", "two versions") for n in (10, 20, 50)}
    assert attacks >= {*ATTACKS, *known}
    assert all(0 <= abs(each["control"]) <= 1 for each in measured)
    dials = {each["dial"] for each in results}
    assert {"configured", "0.3.0", "copies 0", "skip rank 64", "rotation", "noise 0.5"} <= dials
    assert set(results[0]["accuracy"]) == {"local"}


def test_without_a_label_a_party_has_no_accuracy() -> None:
    bank, _, y = make_tables()
    table = bank.assign(churned=y)
    options, encoder = TableOptions(), EncoderConfig()
    blind = load_party_scenario("bank", table, options, encoder, None, 100)
    assert blind.split is None and len(blind.tables["bank"]) == 100
    assert len(blind.learned["bank"]) == 85 and blind.tables["bank"].layout.raw == 4
    labeled = load_party_scenario("bank", table, options, encoder, "churned", 100)
    assert labeled.split is not None and labeled.tables["bank"].layout.raw == 3
    split = labeled.split
    assert (len(split.training), len(split.validation)) == (85, 15)
    assert int(split.validation.handles.min()) == 85


@pytest.mark.slow
def test_interactive_training_is_audited(tmp_path: Path) -> None:
    config = write_run_inputs(tmp_path, CONFIG + '[privacy]\nlabel_protection = "noise"\n')
    said = run_xvfl("audit", config, "--out", tmp_path / "out", "--quick", "--known-rows", 30)
    assert said.code == 0 and "gradient spectral" in said.out, said.err
    assert (tmp_path / "out" / "audit.png").is_file()


def test_labels_of_other_configurations_are_named_in_them(tmp_path: Path) -> None:
    said = run_xvfl("audit", write_run_inputs(tmp_path), "--label", "churned")
    assert said.code == 2 and "party's configuration" in said.err
