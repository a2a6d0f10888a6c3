"""Sweeps over dials: accuracy and recovery of small uploads."""

from dataclasses import replace

import pytest
import torch

from xvfl.audit.dials import CONFIGURED, REFERENCE, Dial, default_dials, rotate
from xvfl.audit.recovery import Measured
from xvfl.audit.sweep import DialResult, Encoders, SweepOptions, UploadScenario, sweep
from xvfl.audit.upload_attacks import AttackOptions
from xvfl.audit.upload_audit import UploadResult, recovery
from xvfl.audit.upload_heads import HeadOptions, LabeledSplit
from xvfl.audit.upload_page import configured_lines, dial_table, upload_page
from xvfl.config import EncoderConfig
from xvfl.primitives.layout import Feature, Layout
from xvfl.primitives.rows import PartyTable, align_rows, observation_levels
from xvfl.primitives.task import Classification

N = 240
LAYOUT = Layout((Feature("job", "category", 3), *(Feature(name, "numeric", 1) for name in "abc")))
CONFIG = EncoderConfig(epochs=2, embedding_dim=24, hidden_dim=24, masked_copies=2, batch_size=64)
OPTIONS = SweepOptions(
    AttackOptions((10,), 1, 200, max_components=16, inversion_rows=25, inversion_steps=2),
    HeadOptions(epochs=2, batch_size=64),
)


def table(seed: int) -> PartyTable:
    rng = torch.Generator().manual_seed(seed)
    job = torch.nn.functional.one_hot(torch.randint(3, (N,), generator=rng), 3)
    values = torch.cat([job.float(), torch.rand(N, 3, generator=rng)], 1)
    observed = torch.rand(N, 4, generator=rng) > 0.1
    values *= observed[:, [0, 0, 0, 1, 2, 3]]
    return PartyTable(LAYOUT, values, torch.zeros(N, 0, dtype=torch.long), observed)


@pytest.fixture(scope="module")
def scenario() -> UploadScenario:
    """Two parties, with a label that depends on both."""
    tables = {"bank": table(0), "shop": table(1)}
    y = ((tables["bank"].values[:, 3] + tables["shop"].values[:, 3]) > 1).long()
    levels = [observation_levels(each.observed, 1.0) for each in tables.values()]
    rows = align_rows(torch.arange(N).unsqueeze(1).repeat(1, 2), levels, y)
    learned, held_out = torch.arange(180), torch.arange(180, N)
    validation = rows.take(held_out)
    split = LabeledSplit(rows.take(learned), validation, validation, Classification(["no", "yes"]))
    configs = dict.fromkeys(tables, CONFIG)
    return UploadScenario(tables, configs, dict.fromkeys(tables, learned), split)


@pytest.fixture(scope="module")
def results(scenario: UploadScenario) -> list[DialResult]:
    """The configured upload, and two other settings."""
    dials = [
        Dial(CONFIGURED),
        Dial("copies", "0", {"masked_copies": 0}),
        Dial("rotation", transform=rotate, invertible=True),
    ]
    return sweep(scenario, dials, OPTIONS)


@pytest.mark.slow
def test_each_setting_has_accuracy_and_recovery(results: list[DialResult]) -> None:
    assert [each.dial for each in results] == ["configured", "copies 0", "rotation"]
    for each in results:
        assert set(each.accuracy) == {"local", "collaborative"}
        assert all(0 <= value <= 1 for value in each.accuracy.values())
        assert set(each.measured) == {"bank", "shop"}


def test_only_the_configured_upload_is_attacked_in_every_way(results: list[DialResult]) -> None:
    attacks = [{m.attack for m in each.measured["bank"]} for each in results]
    further = {"collusion, shared columns", "membership, classifier", "labels, held-out list"}
    assert further <= attacks[0] and not further & attacks[1]
    assert "differences, ICA" in attacks[0] and "differences, ICA" not in attacks[1]
    assert "stolen encoder" in attacks[1] and "stolen encoder" not in attacks[2]


def test_settings_that_keep_the_encoder_share_it(scenario: UploadScenario) -> None:
    encoders = Encoders(scenario, torch.device("cpu"))
    views = encoders.views("bank", Dial(CONFIGURED))
    fewer = encoders.views("bank", Dial("copies", "1", {"masked_copies": 1}))
    torch.testing.assert_close(views[:, :2], fewer, rtol=0, atol=0)
    assert views.shape == (N, 3, 24) and len(encoders._trained) == 1
    other = encoders.views("bank", Dial(CONFIGURED), 2)
    assert not torch.equal(views, other) and len(encoders._trained) == 2


def test_an_upload_with_differential_privacy_has_no_copies(scenario: UploadScenario) -> None:
    pytest.importorskip("opacus")
    private = EncoderConfig(hidden_dim=24, epsilon=4.0)
    bank = UploadScenario(
        {"bank": scenario.tables["bank"]},
        {"bank": private},
        {"bank": scenario.learned["bank"]},
    )
    assert Encoders(bank, torch.device("cpu")).views("bank", Dial(CONFIGURED)).shape == (N, 1, 16)
    (result,) = sweep(bank, [Dial(CONFIGURED)], OPTIONS)
    attacks = {each.attack for each in result.measured["bank"]}
    assert "ICA" in attacks and not {"stolen encoder", "differences, ICA"} & attacks
    assert result.accuracy == {} and "labels, held-out list" not in attacks
    assert not any(each.name == "copies" for each in default_dials(private))


def test_default_dials_are_around_the_configuration() -> None:
    names = [str(each) for each in default_dials(CONFIG)]
    assert names[:2] == ["configured", "0.3.0"] and len(names) == len(set(names))
    assert {"copies 0", "skip rank 64", "rotation", "noise 0.5"} <= set(names)
    assert len(default_dials(CONFIG, quick=True)) < len(names)
    assert "copies 2" not in names
    changed = replace(EncoderConfig(), **default_dials(CONFIG)[1].encoder)
    assert changed.masked_copies == REFERENCE.masked_copies == 8


def test_the_strongest_attack_counts_and_parties_are_averaged() -> None:
    bank = [Measured("ICA", "numbers", 0.5, 0.1), Measured("PCA", "numbers", 0.9, 0.2)]
    shop = [Measured("ICA", "categories", 0.3, 0.1)]
    result = DialResult("x", {}, {"bank": bank, "shop": shop})
    found = recovery(result, ("ICA", "PCA"))
    assert found is not None and abs(found.value - 0.6) < 1e-9 and abs(found.control - 0.15) < 1e-9
    assert recovery(result, ("decoder, 10 rows",)) is None


def test_the_page_is_self_contained_and_escapes_names(results: list[DialResult]) -> None:
    first = results[0]
    renamed = DialResult(first.dial, first.accuracy, {"<bank>": first.measured["bank"]})
    about = {
        "parties": {"<bank>": N},
        "held_out": {"<bank>": 60},
        "encoder": {"embedding_dim": 24, "epsilon": None},
        "task": "classification",
        "seconds": 1.0,
    }
    result = UploadResult([renamed], about)
    text = upload_page(result, "xvfl audit party.toml", b"png")
    assert "<script" not in text and "http" not in text and "<bank>" not in text
    assert "&lt;bank&gt;" in text and "differences, clusters" in text
    header, lines = dial_table(result)
    assert header[:3] == ["setting", "local", "collaborative"] and len(lines) == 1
    assert {party for party, _ in configured_lines(renamed)} == {"<bank>"}


def test_the_plot_is_a_png(results: list[DialResult]) -> None:
    pytest.importorskip("matplotlib")
    from xvfl.audit.upload_plot import upload_plot

    for accuracy in (True, False):
        shown = [r if accuracy else replace(r, accuracy={}) for r in results]
        plot = upload_plot(UploadResult(shown, {"task": "classification"}))
        assert plot.startswith(b"\x89PNG")
