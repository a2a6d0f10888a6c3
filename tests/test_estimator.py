"""XVFLClassifier: scikit-learn compatibility, and predictions by id."""

import ast
import doctest
import inspect
import json
import pickle
import re
import signal
import warnings
from copy import deepcopy
from dataclasses import fields, replace
from pathlib import Path
from typing import Any
from unittest import mock

import joblib
import numpy as np
import pandas as pd
import polars as pl
import pytest
import torch
from sklearn.base import clone, is_classifier
from sklearn.exceptions import NotFittedError
from torch import nn

import xvfl.estimator.classifier
import xvfl.estimator.regressor
from tests.options import resolved
from tests.small_tables import ROWS, make_tables, train, write_run_inputs
from xvfl import DataWarning, Images, TableOptions, XVFLClassifier
from xvfl.cli.template import field_docs
from xvfl.config import LossConfig, NetConfig, PrivacyConfig, TrainConfig
from xvfl.errors import ConfigError, InputError, ModeError, RunError
from xvfl.estimator.base_estimator import CONFIGURED
from xvfl.primitives.layout import Layout

SMALL = {
    "embedding_dim": 8,
    "hidden_dim": 16,
    "batch_size": 32,
    "epochs": 3,
    "device": "cpu",
    "verbose": False,
}
BANK, SHOP, Y = make_tables()
BOTH = {"bank": BANK, "shop": SHOP}


def small(**more: object) -> XVFLClassifier:
    """Make a small model."""
    return XVFLClassifier(**{**SMALL, **more})  # type: ignore[arg-type]


@pytest.fixture(scope="module")
def model() -> XVFLClassifier:
    """A model that has learned something."""
    return small(epochs=30, learning_rate=1e-2).fit(BOTH, Y)


def test_parameters_are_scikit_learns(model: XVFLClassifier) -> None:
    fresh = clone(model)
    assert fresh.get_params() == model.get_params()
    assert not hasattr(fresh, "model_")
    assert fresh.set_params(epochs=7, method="laser").epochs == 7
    assert is_classifier(model) and "epochs=30" in repr(model)
    with pytest.raises(ValueError, match="Invalid parameter 'epoch'"):
        fresh.set_params(epoch=1)
    with pytest.raises(ConfigError, match="epochs: expected a positive integer, got -1"):
        small(epochs=-1).fit(BOTH, Y)
    with pytest.raises(ConfigError, match="unknown method 'xvlf'"):
        small(method="xvlf").fit(BOTH, Y)


@pytest.mark.parametrize(("name", "section"), CONFIGURED.items())
def test_every_option_can_be_set(name: str, section: type) -> None:
    given = XVFLClassifier().get_params()
    assert {each.name: given[f"{name}__{each.name}"] for each in fields(section)} == vars(section())
    for each in fields(section):
        value = getattr(section(), each.name)
        changed = XVFLClassifier().set_params(**{f"{name}__{each.name}": value})
        assert getattr(changed, name) == section()


def test_options_of_a_section_reach_the_training() -> None:
    loss, train = LossConfig(lambda1=0.5, method="xvfl"), {"schedule": "constant", "epochs": 9}
    fitted = small(epochs=1, members=1, net=NetConfig(members=2), loss=loss, train=train)
    fitted.fit(BOTH, Y)
    assert len(fitted.history_) == 1, "a parameter comes before the section"
    assert (fitted.model_.net.members, fitted.model_.loss.lambda1) == (1, 0.5)
    assert fitted.model_.loss.method == "xvfl"
    assert clone(fitted).get_params() == fitted.get_params()
    with pytest.raises(ConfigError, match="loss: unknown key 'lambda3': did you mean 'lambda"):
        small(loss={"lambda3": 1}).fit(BOTH, Y)


def test_parameters_of_version_0_3_are_accepted_with_a_warning() -> None:
    with pytest.warns(FutureWarning, match=r"lambda1 is now an option of `loss`.*loss=LossConfig"):
        old = XVFLClassifier(lambda1=0.5)
    with pytest.warns(FutureWarning, match="n_blocks is now an option of `net`"):
        old.set_params(n_blocks=2)
    assert (old.loss, old.net) == (LossConfig(lambda1=0.5), NetConfig(n_blocks=2))
    assert (
        NetConfig(embedding_dim=0, members=0) == NetConfig() and TrainConfig(0, 0) == TrainConfig()
    )
    assert PrivacyConfig("auto") == PrivacyConfig() and TrainConfig(device="auto") == TrainConfig()
    with pytest.raises(TypeError, match="unexpected keyword argument 'lambda3'"):
        XVFLClassifier(lambda3=0.5)


def documented_parameters(doc: str) -> dict[str, tuple[str, str]]:
    """Parse the section Parameters of a numpydoc docstring: type and description by name."""
    section = inspect.cleandoc(doc).split("Parameters\n----------\n")[1]
    section = re.split(r"\n\n[A-Z][A-Za-z ]+\n-+\n", section)[0]
    entries = re.findall(r"^(\w+) : (.+)\n((?:    .+\n?)+)", section, re.MULTILINE)
    return {name: (kind, " ".join(text.split())) for name, kind, text in entries}


def test_every_parameter_is_documented_with_its_default() -> None:
    documented = documented_parameters(XVFLClassifier.__doc__ or "")
    signature = inspect.signature(XVFLClassifier.__init__).parameters
    assert list(documented) == [name for name in signature if name not in ("self", "old")]
    for name, (kind, text) in documented.items():
        default = signature[name].default
        written = kind.rpartition("default=")[2]
        assert ast.literal_eval(written) == default, f"{name}: {written} is not {default!r}"
        assert text.endswith("."), f"{name}: {text}"


def test_every_public_method_is_documented() -> None:
    for name in ("fit", "predict", "predict_proba", "predict_table", "complete", "score"):
        method = getattr(XVFLClassifier, name)
        names = [each for each in inspect.signature(method).parameters if each != "self"]
        assert list(documented_parameters(method.__doc__)) == names
        assert all(section in method.__doc__ for section in ("Returns\n", "Raises\n"))


def test_parameters_are_described_as_in_the_configuration() -> None:
    """`python scripts/tables.py` writes these docstrings."""
    documented = documented_parameters(XVFLClassifier.__doc__ or "")
    for section in CONFIGURED.values():
        for name, text in field_docs(section).items():
            if name in documented.keys() - {"method", "class_weight", "random_state"}:
                assert documented[name][1].startswith(text), name


def test_the_examples_run() -> None:
    results = doctest.testmod(xvfl.estimator.classifier)
    assert results.failed == 0 and results.attempted > 10


def module_level_bottom(layout: Layout, d: int) -> nn.Module:
    """Build a bottom that pickle can find by name."""
    return nn.Sequential(nn.Linear(layout.encoded + layout.raw, d), nn.Tanh())


@pytest.mark.slow
@pytest.mark.parametrize("custom", [False, True])
@pytest.mark.parametrize("method", ["xvfl+", "laser+mask"])
def test_pickle_and_joblib(method: str, custom: bool, tmp_path: Path) -> None:
    if custom and method != "xvfl+":
        pytest.skip("a custom head is for methods with one head")
    nets = {"bottoms": {"bank": module_level_bottom}, "head": nn.Linear(8, 2)} if custom else {}
    fitted = small(method=method, epochs=1, **nets).fit(BOTH, Y)
    expected = fitted.predict_table(BOTH)
    joblib.dump(fitted, tmp_path / "model.joblib")
    for copy in (
        pickle.loads(pickle.dumps(fitted)),
        joblib.load(tmp_path / "model.joblib"),
        deepcopy(fitted),
    ):
        pd.testing.assert_frame_equal(copy.predict_table(BOTH), expected, check_exact=True)
        assert copy.history_ == fitted.history_
        assert copy.get_params().keys() == fitted.get_params().keys()
        again = clone(copy).fit(BOTH, Y)
        pd.testing.assert_frame_equal(again.predict_table(BOTH), expected, check_exact=True)


def test_cloning_keeps_custom_nets() -> None:
    unfitted = small(bottoms={"bank": module_level_bottom}, head=nn.Linear(8, 2))
    copy = clone(unfitted)
    assert copy.bottoms == unfitted.bottoms
    assert all(map(torch.equal, copy.head.parameters(), unfitted.head.parameters()))


def test_a_loaded_run_has_its_history(tmp_path: Path) -> None:
    result = train(write_run_inputs(tmp_path), tmp_path / "run")
    loaded = XVFLClassifier.load(tmp_path / "run")
    assert loaded.history_ == result.records and loaded.n_features_in_ == 6


def test_the_number_of_masked_copies_is_a_parameter() -> None:
    one, two = (small(loss={"n_masks": n}, members=1, epochs=1).fit(BOTH, Y) for n in (1, 2))
    assert (one.model_.loss.n_masks, two.model_.loss.n_masks) == (1, 2)
    ratio = two.history_[0]["self"] / one.history_[0]["self"]
    assert ratio == pytest.approx(2, rel=0.2), "each copy counts as much as the only one"
    with pytest.raises(ConfigError, match="n_masks: expected from 1 to 31"):
        small(loss={"n_masks": 32}).fit(BOTH, Y)


def test_tables_have_four_members_unless_labels_are_protected() -> None:
    several = XVFLClassifier(epochs=1).fit(BOTH, Y)
    assert (several.model_.net.members, several.model_.net.number_embedding_dim) == (4, 8)
    assert (several.model_.net.embedding_dim, several.model_.loss.n_masks) == (32, 1)
    protected = XVFLClassifier(epochs=1, label_protection="no_gradients").fit(BOTH, Y)
    assert (protected.model_.net.members, protected.model_.net.number_embedding_dim) == (1, 8)
    assert (protected.model_.net.embedding_dim, protected.model_.loss.n_masks) == (256, 2)
    assert several.get_params()["members"] is None


def test_a_protected_model_without_a_linear_skip_is_loaded(tmp_path: Path) -> None:
    """As a model of an earlier version, whose manifest does not name the skip."""
    old = small(epochs=1, label_protection="no_gradients", net={"skip_rank": 0}).fit(BOTH, Y)
    old.save(tmp_path)
    manifest = json.loads((tmp_path / "manifest.json").read_text())
    del manifest["net"]["skip_rank"]
    (tmp_path / "manifest.json").write_text(json.dumps(manifest))
    loaded = XVFLClassifier.load(tmp_path)
    np.testing.assert_array_equal(loaded.predict_proba(BOTH), old.predict_proba(BOTH))


FOUR = NetConfig(members=4)


def test_automatic_epochs_give_small_tables_enough_steps() -> None:
    def epochs(rows: int, **given: int) -> int:
        return resolved(FOUR, train=TrainConfig(**given), rows=rows).train.epochs

    assert [epochs(rows) for rows in (100, 1_000, 3_000, 20_000)] == [60, 60, 32, 19]
    assert [epochs(rows) for rows in (20_001, 240_000, 1_000_000)] == [13, 6, 6]
    assert epochs(1_000, epochs=7) == 7
    assert resolved(rows=1_000).train.epochs == 60
    protected = resolved(privacy=PrivacyConfig("no_gradients"), rows=1_000)
    assert protected.train.epochs == 60


def test_short_trainings_and_single_members_take_adamw() -> None:
    def optimizer(rows: int, **given: int) -> str | None:
        return resolved(FOUR, train=TrainConfig(**given), rows=rows).train.optimizer

    assert optimizer(30_000) == optimizer(1_000) == optimizer(1_000, epochs=20) == "muon"
    assert optimizer(1_000, epochs=5) == "adamw"
    assert resolved(rows=30_000).train.optimizer == "adamw"


def test_large_and_wide_tables_have_two_members() -> None:
    def members(rows: int, numbers: int = 0, **given: Any) -> int:
        return resolved(rows=rows, numbers=numbers, federated=False, **given).net.members

    assert [members(rows) for rows in (20_000, 20_001)] == [4, 2]
    assert [members(1_000, numbers) for numbers in (128, 129)] == [4, 2]
    assert members(30_000, net=NetConfig(members=3)) == 3
    rates = [resolved(FOUR, rows=rows).train.learning_rate for rows in (20_000, 20_001)]
    assert rates == [4e-3, 5e-3]


def test_some_steps_complete_features() -> None:
    def interval(rows: int, **given: Any) -> int:
        return resolved(FOUR, train=TrainConfig(**given), rows=rows).train.completion_interval

    assert [interval(rows) for rows in (100, 455, 3_000, 30_000)] == [8, 8, 29, 43]
    assert interval(30_000, epochs=2) == 19 and interval(30_000, epochs=60) == 64
    assert interval(30_000, optimizer="page") == 1 and interval(100, completion_interval=3) == 3


@pytest.mark.slow
@pytest.mark.parametrize(("parties", "weight"), [("ab", 1.0), ("abcd", 0.5)])
def test_more_than_two_parties_with_images_weigh_self_completion_less(
    parties: str, weight: float
) -> None:
    rng = np.random.default_rng(0)
    ids = list(BANK.index)
    strips = {name: Images(rng.random((ROWS, 4, 4)), ids) for name in parties}
    fitted = small(epochs=1, net={"n_blocks": 1}).fit(strips, Y)
    assert fitted.model_.loss.self_completion == weight
    assert small(epochs=1, net={"n_blocks": 1}, loss={"self_completion": 0.8}).fit(
        strips, Y
    ).model_.loss == replace(fitted.model_.loss, self_completion=0.8)


def test_tables_and_other_methods_keep_the_weight_of_self_completion() -> None:
    assert resolved(parties=4).loss.self_completion == 1
    assert resolved(loss=LossConfig(method="xvfl"), image=True, parties=4).loss.self_completion == 1


def test_numpy_parameters_as_a_grid_gives_them() -> None:
    grid = {"epochs": np.int64(1), "learning_rate": np.float64(1e-3)}
    fitted = small(**grid).set_params(loss__lambda1=np.float32(0.5)).fit(BOTH, Y)
    assert fitted.model_.loss.lambda1 == 0.5


def test_not_fitted() -> None:
    for call in ("predict", "predict_proba", "predict_table", "complete"):
        with pytest.raises(NotFittedError):
            getattr(small(), call)(BOTH)
    with pytest.raises(NotFittedError):
        small().score(BOTH, Y)
    with pytest.raises(NotFittedError):
        small().save("nowhere")


def test_answers_are_indexed_by_id(model: XVFLClassifier) -> None:
    assert model.classes_.tolist() == ["no", "yes"] and model.parties_ == ["bank", "shop"]
    assert model.feature_names_in_["shop"] == ["visits", "basket", "club"]
    assert model.n_features_in_ == 6
    proba = model.predict_proba(BOTH)
    assert proba.index.tolist() == BANK.index.tolist() and proba.columns.tolist() == ["no", "yes"]
    assert np.allclose(proba.sum(axis=1), 1)
    said = model.predict(BOTH)
    assert (said == proba.idxmax(axis=1)).all()
    assert model.score(BOTH, Y) == (said == Y.to_numpy()).mean() > 0.8
    assert model.predict({"shop": SHOP}).index.tolist() == SHOP.index.tolist()


def test_modes_by_default_and_by_name(model: XVFLClassifier) -> None:
    assert set(model.predict_table(BOTH)["mode"]) == {"collaborative"}
    alone = model.predict_table({"bank": BANK})
    assert set(alone["mode"]) == {"local"} and set(alone["parties"]) == {"bank"}
    named = model.predict_table(BOTH, mode="local", party="bank")
    pd.testing.assert_frame_equal(alone, named)
    assert set(model.predict_table(BOTH, party="shop")["mode"]) == {"local"}
    helped = model.predict_table(BOTH, mode="assisted", party="bank")
    assert set(helped["mode"]) == {"assisted", "local"}
    lonely = helped.index[helped["mode"] == "local"]
    assert (helped.loc[lonely, "notes"] == "no peer can assist: local prediction").all()
    no_gap = BANK.notna().all(axis=1)
    assert ((helped["notes"] == "no gap: decided alone") == no_gap.to_numpy()).all()
    assert set(helped.loc[no_gap, "parties"]) == {"bank"}
    threshold = small(full_threshold=0.6, epochs=1).fit(BOTH, Y)
    notes = threshold.predict_table(BOTH, mode="assisted", party="bank")["notes"]
    one_gap = (BANK.isna().sum(axis=1) == 1).to_numpy()
    assert ((notes == "counts as full: decided alone") == one_gap).all()
    pd.testing.assert_frame_equal(
        helped.loc[lonely].filter(like="proba"), alone.loc[lonely].filter(like="proba")
    )
    with pytest.raises(ModeError, match="choose the predicting party"):
        model.predict(BOTH, mode="local")
    with pytest.raises(ModeError, match="cannot predict in mode 'assisted'; supported: local"):
        small(epochs=1, method="standalone").fit(BOTH, Y).predict(BOTH, "assisted", "bank")
    with pytest.raises(InputError, match="at least one party's table"):
        model.predict({})


@pytest.mark.parametrize("method", ["standalone", "laser"])
def test_each_party_decides_with_its_own_head(method: str) -> None:
    """Alone or beside others, a party of a method with one head a party uses its own."""
    fitted = small(method=method, epochs=20, learning_rate=1e-2, members=1).fit(BOTH, Y)
    assert fitted.score({"shop": SHOP}, Y) > 0.8
    net, head = fitted.model_.parties["shop"].eval(), fitted.model_.method.heads[1]  # type: ignore[index]
    from xvfl.data.sources import encode
    from xvfl.dataset.in_memory import to_party_table

    encoder = fitted.model_.encoders["shop"]
    rows = to_party_table(encoder.layout, encode(encoder, SHOP))
    with torch.no_grad():
        out = head(net.embed(net.encode(rows), rows.observed))
    temperature = fitted.model_.temperatures.get("local/shop", 1.0)
    expected = torch.softmax(out.double() / temperature, -1).numpy()
    for given in ({"shop": SHOP}, BOTH):
        proba = fitted.predict_proba(given, "local", "shop")
        np.testing.assert_allclose(proba.to_numpy(), expected, atol=1e-6)


def test_any_cell_may_be_missing(model: XVFLClassifier) -> None:
    rng = np.random.default_rng(1)
    bank = BANK.mask(rng.random(BANK.shape) < 0.6)
    empty = bank.isna().all(axis=1) & ~bank.index.isin(SHOP.index)
    assert empty.any()
    with pytest.warns(DataWarning, match=f"{empty.sum()} of 120 rows have no observed feature"):
        answers = model.predict_table({"bank": bank, "shop": SHOP})
    assert answers.filter(like="proba").notna().all(axis=None)
    assert answers["completed"].between(0, 1).all()
    assert set(answers.loc[empty.to_numpy(), "mode"]) == {"prior"}


def test_ids_choose_the_rows(model: XVFLClassifier) -> None:
    ids = ["c050", "c003", "stranger"]
    with pytest.warns(DataWarning, match=r"1 of 3 rows have an id .* none .* \('stranger'\)"):
        answers = model.predict_table(BOTH, ids=ids)
    assert answers.index.tolist() == ids
    assert answers.loc["stranger", ["mode", "notes"]].tolist() == [
        "prior",
        "id not in the tables used: class prior",
    ]
    with pytest.warns(DataWarning, match=r"1 of 3 ids are in no given table \('stranger'\)"):
        assert model.complete(BOTH, "bank", ids).index.tolist() == ids
    every = model.predict_proba(BOTH)
    pd.testing.assert_frame_equal(model.predict_proba(BOTH, ids=ids[:2]), every.loc[ids[:2]])


def test_the_overlap_is_counted_and_shown(
    model: XVFLClassifier, capsys: pytest.CaptureFixture[str]
) -> None:
    shared = len(SHOP)
    assert model.overlap_.index.tolist() == ["bank", "shop", "all parties"]
    assert model.overlap_.drop(columns="full").to_dict("list") == {
        "rows": [ROWS, shared, ROWS],
        "shared": [shared, shared, shared],
        "labeled": [ROWS, shared, ROWS],
    }
    assert capsys.readouterr().err == ""
    small(epochs=1, verbose=True).fit(BOTH, Y)
    assert "rows by party" in (shown := capsys.readouterr().err) and "all parties" in shown


def test_near_misses_of_ids_are_told_at_fit() -> None:
    numbered = {name: table.set_axis(range(len(table))) for name, table in BOTH.items()}
    padded = numbered["shop"].rename(lambda each: f"{each:04d}" if each < 60 else str(each))
    with pytest.warns(DataWarning, match=r"60 ids differ only in leading zeros \('0' and '0000'"):
        fitted = small(epochs=1).fit(
            {"bank": numbered["bank"], "shop": padded}, Y.set_axis(range(ROWS))
        )
    assert fitted.overlap_.loc["all parties", "rows"] == ROWS + 60


def test_numbers_as_ids() -> None:
    bank, shop, y = (each.set_axis(range(ROWS - len(each), ROWS)) for each in (BANK, SHOP, Y))
    fitted = small(epochs=1).fit({"bank": bank, "shop": shop}, y)
    answers = fitted.predict_table({"bank": bank}, ids=[5, 7])
    assert answers.index.tolist() == [5, 7] and set(answers["mode"]) == {"local"}
    completed = fitted.complete({"bank": bank}, "bank", ids=[5])
    assert completed.index.tolist() == [5] and completed.notna().all(axis=None)


def test_score_goes_by_id_and_weight(model: XVFLClassifier) -> None:
    right = model.predict(BOTH) == Y.to_numpy()
    backwards = Y.iloc[::-1]
    weight = np.arange(ROWS, dtype=float)
    expected = np.average(right.to_numpy()[::-1], weights=weight)
    assert model.score(BOTH, backwards, sample_weight=weight) == pytest.approx(expected)
    few = Y[Y == "yes"].head(10)
    assert model.score(BOTH, few) == right.loc[few.index].mean()
    with pytest.raises(InputError, match="share no id"):
        model.score(BOTH, Y.set_axis([f"x{i}" for i in range(ROWS)]))


def test_three_parties() -> None:
    third = pd.DataFrame({"clicks": range(ROWS)}, index=BANK.index).iloc[::2]
    fitted = small().fit({**BOTH, "web": third}, Y)
    assert fitted.parties_ == ["bank", "shop", "web"]
    answers = fitted.predict_table({**BOTH, "web": third})
    assert "bank+shop+web" in set(answers["parties"])
    some = fitted.predict_table({"shop": SHOP, "web": third}, mode="collaborative")
    assert set(some["parties"]) <= {"shop", "web", "shop+web"}
    helped = fitted.predict_table({**BOTH, "web": third}, "assisted", "web")
    assert len(helped) == len(third)


def test_one_party_is_not_enough() -> None:
    with pytest.raises(InputError, match="expected two parties or more, got \\['bank'\\]"):
        small().fit({"bank": BANK}, Y)
    with pytest.raises(InputError, match="expected a dictionary of parties"):
        small().fit(BANK, Y)  # type: ignore[arg-type]
    with pytest.raises(InputError, match="y: expected a pandas Series"):
        small().fit(BOTH, Y.to_numpy())


def test_labels_at_a_party_and_an_id_column_beside_a_column_named_id() -> None:
    bank = BANK.assign(churned=Y, id=range(ROWS)).reset_index()
    tables = {"bank": bank, "shop": SHOP.reset_index()}
    with pytest.warns(DataWarning, match="column 'id': integers .* but the name says codes"):
        fitted = small(id_column="customer").fit(tables, ("bank", "churned"))
    assert fitted.feature_names_in_["bank"] == ["age", "balance", "job", "id"]
    assert fitted.score(tables, ("bank", "churned")) == fitted.score(tables, Y)
    with pytest.raises(InputError, match="unknown label column 'churn': did you mean 'churned'"):
        fitted.fit(tables, ("bank", "churn"))


def test_every_kind_of_table(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    bank, shop = BANK.reset_index(), SHOP.reset_index()
    bank.to_csv("bank.csv", index=False)
    shop.to_parquet("shop.parquet")
    kinds = [
        {"bank": bank, "shop": shop},
        {"bank": pl.from_pandas(bank), "shop": pl.from_pandas(shop)},
        {"bank": "bank.csv", "shop": Path("shop.parquet")},
        {"bank": "sql:FROM 'bank.csv'", "shop": "sql:FROM 'shop.parquet'"},
    ]
    answers = [small(id_column="customer").fit(each, Y).predict_proba(each) for each in kinds]
    for other in answers[1:]:
        pd.testing.assert_frame_equal(other, answers[0])
    by_party = small(id_column={"bank": "customer"}).fit({"bank": bank, "shop": SHOP}, Y)
    pd.testing.assert_frame_equal(by_party.predict_proba(kinds[0] | {"shop": SHOP}), answers[0])


@pytest.mark.parametrize("classes", [[0, 1], [False, True], ["a", "b"], [1.5, 2.5]])
def test_labels_come_back_as_they_were(classes: list[object]) -> None:
    y = pd.Series([classes[each == "yes"] for each in Y], index=Y.index)
    fitted = small(epochs=1).fit(BOTH, y)
    assert fitted.classes_.tolist() == classes
    said = fitted.predict(BOTH)
    assert set(said) <= set(classes) and said.dtype == y.dtype
    assert fitted.score(BOTH, y.to_frame()) == (said.to_numpy() == y.to_numpy()).mean()


@pytest.mark.slow
def test_three_classes_and_balanced_weights() -> None:
    """Where features say nothing, answers are the classes' shares, or equal ones if balanced."""
    y = pd.Series(["rare"] * 6 + ["b"] * 30 + ["c"] * (ROWS - 36), index=BANK.index)
    coin = pd.DataFrame({"coin": [0, 1] * (ROWS // 2)}, index=BANK.index)
    tables = {"bank": coin, "shop": coin}
    shares = {"none": {"b": 0.25, "c": 0.7, "rare": 0.05}, "balanced": dict.fromkeys(set(y), 1 / 3)}
    for weight, expected in shares.items():
        fitted = small(class_weight=weight, epochs=30, learning_rate=1e-2).fit(tables, y)
        assert fitted.predict_proba(tables).mean().to_dict() == pytest.approx(expected, abs=0.12)


def test_completion_fills_the_gaps_alone(model: XVFLClassifier) -> None:
    filled = model.complete(BOTH)
    for name, given in BOTH.items():
        made = filled[name]
        assert made.columns.tolist() == given.columns.tolist()
        assert made.index.tolist() == given.index.tolist()
        assert made.notna().all(axis=None)
        assert (made.dtypes == given.dtypes).all(), made.dtypes
        seen = given.notna().to_numpy()
        assert (made.to_numpy()[seen] == given.to_numpy()[seen]).all()
    gaps = BANK["age"].isna().to_numpy()
    ages = filled["bank"]["age"][gaps]
    assert ages.between(BANK["age"].min(), BANK["age"].max()).all()
    assert (ages == ages.round()).all(), "whole numbers stay whole"
    assert set(filled["bank"]["job"]) == {"cook", "nurse", "pilot"}
    one = model.complete(BOTH, party="bank")
    pd.testing.assert_frame_equal(one, filled["bank"])


def test_completion_of_rows_a_party_does_not_hold(model: XVFLClassifier) -> None:
    ids = ["c000", "c001", "c050"]
    made = model.complete(BOTH, "shop", ids)
    assert made.index.tolist() == ids and made.notna().all(axis=None)
    assert made.loc["c050", "visits"] == SHOP.loc["c050", "visits"]
    with pytest.raises(ModeError, match="expected a table of 'shop'"):
        model.complete({"bank": BANK}, "shop")


def test_completion_keeps_what_it_does_not_know(model: XVFLClassifier) -> None:
    bank = BANK.assign(extra=1).copy()
    bank.iloc[0, bank.columns.get_loc("job")] = "astronaut"
    bank.iloc[1, bank.columns.get_loc("balance")] = 1e6
    made = model.complete({"bank": bank}, "bank")
    assert made["job"].iloc[0] == "astronaut" and made["balance"].iloc[1] == 1e6
    assert (made["extra"] == 1).all()


def test_dates_hashes_and_types_of_their_own() -> None:
    rng = np.random.default_rng(0)
    days = pd.Series(
        pd.Timestamp("2020-01-01") + pd.to_timedelta(rng.integers(900, size=ROWS), "D")
    )
    odd = pd.DataFrame(
        {
            "since": days.to_numpy(),
            "written": days.dt.strftime("%d/%m/%Y").to_numpy(),
            "number": [f"{i}.5" for i in range(ROWS)],
            "city": [f"city {i % 90}" for i in range(ROWS)],
            "grade": pd.Categorical(["low", "high"] * (ROWS // 2), ["low", "high"], ordered=True),
            "flag": pd.array([True, False] * (ROWS // 2), dtype="boolean"),
        },
        index=BANK.index,
    )
    odd = odd.mask(pd.DataFrame(rng.random(odd.shape) < 0.2, odd.index, odd.columns))
    fitted = small(epochs=2).fit({"odd": odd, "shop": SHOP}, Y)
    made = fitted.complete({"odd": odd, "shop": SHOP}, "odd")
    assert made.notna().all(axis=None)
    seen = odd.notna()
    assert (
        (made.astype(object).where(seen) == odd.astype(object).where(seen)).to_numpy()[seen].all()
    )
    assert made["since"].dtype == odd["since"].dtype
    assert made["grade"].dtype == odd["grade"].dtype
    assert made["written"].str.fullmatch(r"\d\d/\d\d/20\d\d").all()
    assert made["number"].map(type).eq(str).all()
    assert set(made["city"]) <= set(odd["city"].dropna())
    assert set(made["flag"]) == {True, False}


def test_images_beside_a_table(tmp_path: Path) -> None:
    rng = np.random.default_rng(0)
    bright = (Y == "yes").to_numpy()
    pixels = rng.random((ROWS, 6, 6)) * 0.5 + 0.5 * bright[:, None, None]
    pixels[: ROWS // 2, :2] = np.nan
    photos = Images(pixels[:90], list(BANK.index[:90]))
    given = {"bank": BANK, "photos": photos}
    fitted = small(epochs=2, net={"n_blocks": 2}, batch_size=64).fit(given, Y)
    assert len(fitted.predict_table(given)) == ROWS
    assert len(fitted.predict({"photos": photos})) == 90
    made = fitted.complete(given, "photos", ids=["c100", "c001", "c080"])
    assert made.ids == ["c100", "c001", "c080"] and made.pixels.shape == (3, 6, 6)
    assert np.isfinite(made.pixels).all()
    assert (made.pixels[1, 2:] == pixels[1, 2:]).all() and (made.pixels[2] == pixels[80]).all()
    fitted.save(tmp_path / "model")
    again = XVFLClassifier.load(tmp_path / "model")
    pd.testing.assert_frame_equal(again.predict_proba(given), fitted.predict_proba(given))
    with pytest.raises(InputError, match="the kind of data used in training"):
        fitted.predict({"photos": BANK})


def test_saved_and_loaded(model: XVFLClassifier, tmp_path: Path) -> None:
    model.save(tmp_path / "model")
    again = XVFLClassifier.load(tmp_path / "model")
    for mode, party in (("collaborative", None), ("local", "shop"), ("assisted", "bank")):
        pd.testing.assert_frame_equal(
            again.predict_table(BOTH, mode, party), model.predict_table(BOTH, mode, party)
        )
    pd.testing.assert_frame_equal(again.complete(BOTH, "bank"), model.complete(BOTH, "bank"))
    assert again.classes_.tolist() == model.classes_.tolist()
    assert again.get_params()["hidden_dim"] == 16
    with pytest.raises(RunError, match="no such model or run folder"):
        XVFLClassifier.load(tmp_path / "nowhere")


def test_a_model_is_not_half_overwritten(model: XVFLClassifier, tmp_path: Path) -> None:
    model.save(tmp_path / "model")
    with (
        mock.patch("safetensors.torch.save", side_effect=OSError(28, "No space left on device")),
        pytest.raises(RunError, match="No space left"),
    ):
        model.save(tmp_path / "model")
    again = XVFLClassifier.load(tmp_path / "model")
    pd.testing.assert_frame_equal(again.predict_proba(BOTH), model.predict_proba(BOTH))
    assert not list((tmp_path / "model").rglob("*.tmp"))


def test_probabilities_are_calibrated() -> None:
    fitted = small(validation_fraction=0.3).fit(BOTH, Y)
    temperatures = fitted.model_.temperatures
    assert set(temperatures) == {
        "local/bank",
        "local/shop",
        "assisted/bank",
        "assisted/shop",
        "collaborative",
        "peers/bank",
        "peers/shop",
    }
    assert all(0 < value < 100 for value in temperatures.values())
    assert any(value != 1 for value in temperatures.values())


@pytest.mark.slow
def test_seeds_decide_and_the_users_stream_is_left_alone() -> None:
    torch.manual_seed(5)
    np.random.seed(5)  # noqa: NPY002
    before, theirs = torch.get_rng_state(), np.random.get_state()[1].copy()  # noqa: NPY002
    threads = torch.get_num_threads()
    first = small().fit(BOTH, Y).predict_proba(BOTH)
    assert torch.equal(torch.get_rng_state(), before)
    assert (np.random.get_state()[1] == theirs).all()  # noqa: NPY002
    assert torch.get_num_threads() == threads
    torch.manual_seed(6)
    pd.testing.assert_frame_equal(small().fit(BOTH, Y).predict_proba(BOTH), first)
    assert not small(random_state=1).fit(BOTH, Y).predict_proba(BOTH).equals(first)


def test_rows_that_nobody_holds_are_dropped_with_a_count() -> None:
    more = pd.concat([Y, pd.Series(["yes"] * 7, index=[f"x{i}" for i in range(7)])])
    with pytest.warns(DataWarning, match=f"7 of {ROWS + 7} labeled ids are held by no party"):
        small(epochs=1).fit(BOTH, more)
    empty = BANK.copy()
    empty.iloc[:3] = None
    with pytest.warns(DataWarning, match="3 rows have no observed feature at any party"):
        small(epochs=1).fit({"bank": empty, "shop": SHOP}, Y)
    with pytest.warns(DataWarning, match="left out 1 of 120 rows without a label"):
        small(epochs=1, method="laser").fit(BOTH, Y.mask(Y.index == "c005"))


def test_options_of_tables() -> None:
    options = {"bank": TableOptions(drop=("age",), na_values=("cook",))}
    fitted = small(epochs=1, table_options=options).fit(BOTH, Y)
    assert fitted.feature_names_in_["bank"] == ["balance", "job"]
    with pytest.raises(InputError, match="unknown party 'bnk': did you mean 'bank'"):
        small(table_options={"bnk": TableOptions()}).fit(BOTH, Y)


@pytest.mark.slow
def test_progress_is_shown_when_asked(capsys: pytest.CaptureFixture[str]) -> None:
    small(epochs=2).fit(BOTH, Y)
    assert capsys.readouterr().err == ""
    small(epochs=2, verbose=None).fit(BOTH, Y)
    assert capsys.readouterr().err == "", "nobody looks at a pipe"
    small(epochs=2, verbose=True).fit(BOTH, Y)
    said = capsys.readouterr().err
    assert "training: trained 2 epochs, best " in said and "(validation log-loss 0." in said


def test_history_has_a_record_an_epoch() -> None:
    fitted = small(epochs=4, patience=0).fit(BOTH, Y)
    assert [record["epoch"] for record in fitted.history_] == [1, 2, 3, 4]
    assert {"decision", "dsalign1", "dsalign2", "self", "score"} <= fitted.history_[0].keys()


@pytest.mark.parametrize("step", [1, 5])
def test_ctrl_c_keeps_the_best_epoch_or_stops(step: int) -> None:
    from contextlib import contextmanager

    from tests.small_tables import interrupt_at

    @contextmanager
    def bar(verbose: object):  # type: ignore[no-untyped-def]
        yield interrupt_at(step)

    before = signal.getsignal(signal.SIGINT)
    with mock.patch("xvfl.estimator.base_estimator.progress_bar", bar):
        if step == 1:
            with pytest.raises(KeyboardInterrupt):
                small().fit(BOTH, Y)
        else:
            with pytest.warns(DataWarning, match="interrupted after 1 epochs"):
                fitted = small().fit(BOTH, Y)
            assert len(fitted.predict(BOTH)) == ROWS
    assert signal.getsignal(signal.SIGINT) is before


def test_custom_nets(tmp_path: Path) -> None:
    def bottom(layout: Layout, d: int) -> nn.Module:
        return nn.Sequential(nn.Linear(layout.encoded + layout.raw, d), nn.Tanh())

    own = {"bottoms": {"bank": bottom}, "head": nn.Linear(8, 2)}
    fitted = small(**own).fit(BOTH, Y)
    fitted.save(tmp_path / "model")
    with pytest.raises(RunError, match="trained with custom nets"):
        XVFLClassifier.load(tmp_path / "model")
    again = XVFLClassifier.load(tmp_path / "model", **own)  # type: ignore[arg-type]
    pd.testing.assert_frame_equal(again.predict_proba(BOTH), fitted.predict_proba(BOTH))
    with pytest.raises(InputError, match="party 'bank': custom net does not fit"):
        small(bottoms={"bank": nn.Linear(3, 8)}).fit(BOTH, Y)
    with pytest.raises(InputError, match="custom nets: unknown party 'bnk'"):
        small(bottoms={"bnk": bottom}).fit(BOTH, Y)


def test_no_other_warnings() -> None:
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        small(epochs=1).fit(BOTH, Y).predict_table(BOTH)
    assert not caught
    assert xvfl.XVFLClassifier is XVFLClassifier


def linked(rows: int) -> tuple[pd.DataFrame, pd.DataFrame, pd.Series]:
    """Two tables that know the same thing: f of one is u of the other, plus noise."""
    rng = np.random.default_rng(0)
    u = rng.random(rows)
    index = pd.RangeIndex(rows)
    one = pd.DataFrame({"f": u + 0.02 * rng.normal(size=rows), "g": rng.random(rows)}, index)
    other = pd.DataFrame({"u": u, "w": rng.random(rows)}, index)
    return one, other, pd.Series((u > 0.5).astype(int), index)


def test_numbers_as_ids_come_back_as_numbers() -> None:
    one, other, y = linked(80)
    fitted = small().fit({"one": one, "other": other}, y)
    said = fitted.predict({"one": one, "other": other})
    assert said.index.equals(y.index.rename("id"))
    assert (said == y).dtype == bool
    assert fitted.complete({"one": one, "other": other}, party="one").index[0] == 0


@pytest.mark.slow
@pytest.mark.parametrize("gap", [pytest.param(None, marks=pytest.mark.slow), "w"])
@pytest.mark.filterwarnings("ignore:.*(repeats|determines) the label:xvfl.DataWarning")
def test_absent_rows_are_completed_from_full_and_from_partial_peers(gap: str | None) -> None:
    one, other, y = linked(400)
    fitted = small(epochs=30, full_threshold=1.0).fit({"one": one.iloc[:300], "other": other}, y)
    asked = other.iloc[300:].copy()
    if gap is not None:
        asked[gap] = np.nan
    made = fitted.complete({"one": one.iloc[:1], "other": asked}, "one", ids=list(range(300, 400)))
    assert np.corrcoef(made["f"].astype(float), one["f"].iloc[300:])[0, 1] > 0.7


@pytest.mark.parametrize("method", ["standalone", "laser"])
def test_methods_without_cross_completion_fill_cells_too(method: str) -> None:
    one, other, y = linked(80)
    fitted = small(method=method).fit({"one": one, "other": other}, y)
    hidden = one.assign(f=np.nan)
    assert fitted.complete({"one": hidden}, "one").notna().all(axis=None)


@pytest.mark.filterwarnings("ignore:.*(repeats|determines) the label:xvfl.DataWarning")
def test_peers_are_calibrated_like_everybody_else() -> None:
    one, other, y = linked(200)
    fitted = small(validation_fraction=0.3).fit({"one": one, "other": other}, y)
    peers = fitted.predict_proba({"one": one, "other": other}, mode="peers", party="one")
    alone = fitted.predict_proba({"other": other}, mode="local", party="other")
    pd.testing.assert_frame_equal(peers, alone, rtol=1e-4, atol=1e-5)


def test_a_party_may_have_no_rows_today() -> None:
    one, other, y = linked(80)
    fitted = small().fit({"one": one, "other": other}, y)
    table = fitted.predict_table({"one": one, "other": other.iloc[:0]})
    assert len(table) == len(one)
    assert set(table["parties"]) == {"one"}


def test_labels_that_look_alike_are_refused() -> None:
    one, other, y = linked(40)
    mixed = pd.Series(["1" if each else 1 for each in y], index=y.index, dtype=object)
    with pytest.raises(InputError, match="look alike"):
        small().fit({"one": one, "other": other}, mixed)


def test_the_id_column_is_remembered(tmp_path: Path) -> None:
    one, other, y = linked(60)
    tables = {"one": one.reset_index(names="k"), "other": other.reset_index(names="k")}
    fitted = small(id_column="k").fit(tables, y)
    fitted.save(tmp_path / "model")
    again = XVFLClassifier.load(tmp_path / "model")
    pd.testing.assert_frame_equal(again.predict_proba(tables), fitted.predict_proba(tables))
