"""`xvfl audit`: its page, its figures, its errors."""

import json
from pathlib import Path

import pytest

from tests.command_line import run_xvfl
from tests.small_tables import CONFIG, SOURCE, train, write_run_inputs
from xvfl.audit.audit_page import page
from xvfl.audit.descriptions import SECTIONS, TRIED
from xvfl.audit.findings import Finding, Key, worst_by_attack
from xvfl.audit.run_audit import AuditResult
from xvfl.config import parse_config

ABOUT = {
    "parties": {"<bank>": 10, "shop": 20},
    "training_rows": 8,
    "configured": {"protection": "on"},
    "off": {"protection": "none"},
    "known_labels": 4,
    "known_rows": 2,
    "seconds": 1.0,
}


def test_every_attack_is_described_once() -> None:
    listed = [attack for section in SECTIONS for attack in section.attacks]
    assert sorted(listed) == sorted(TRIED)


def test_verdicts() -> None:
    def verdict(own: float, off: float, on: float, refused: bool = False) -> str:
        return Finding(Key("a", "b", "c", "AUC"), 0.5, own, off, on, "", refused).verdict

    assert verdict(0.6, 1.0, 0.5) == "blocked" and verdict(0.6, 1.0, 0.62) == "no gain"
    assert verdict(0.6, 1.0, 0.7) == "gain" and verdict(0.6, 1.0, 0.7, True) == "refused"


def test_the_page_is_self_contained_and_escapes_names() -> None:
    key = Key("decoder, embeddings", "coordinator", "<bank>", "R²")
    findings = [Finding(key, 0.0, 0.1, 0.9, 0.8, "")]
    text = page(AuditResult(findings, ABOUT), "xvfl audit run.toml", b"png")
    assert "<script" not in text and "http" not in text and "<bank>" not in text
    assert "80% of the variation" in text and "&lt;bank&gt;" in text


def test_the_party_with_the_largest_gain_is_shown() -> None:
    findings = [
        Finding(Key("a", party, "labels", "AUC"), 0.5, 0.5, 1.0, value, "")
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


@pytest.mark.slow
def test_a_configuration_and_a_run_give_the_same_figures(tmp_path: Path) -> None:
    # Parties accept no narrower nets with a linear skip.
    config = write_run_inputs(tmp_path, CONFIG.replace("hidden_dim = 16", "hidden_dim = 128"))
    train(config, tmp_path / "run")
    figures = []
    for source in (config, tmp_path / "run"):
        out = tmp_path / f"audit-{source.name}"
        said = run_xvfl("audit", source, "--out", out, "--quick", "--known-rows", 30)
        assert said.code == 0 and "decoder, embeddings" in said.out
        assert (out / "audit.html").stat().st_size > 5000 and (out / "audit.png").is_file()
        figures.append(json.loads((out / "audit.json").read_text())["findings"])
    assert figures[0] == figures[1]
    assert {each["verdict"] for each in figures[0] if each["attack"] == "single rows"} == {
        "refused"
    }
