"""One upload in one process: `label_protection = "no_gradients"`, with and without ε."""

import itertools
import json
import signal
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
import torch
from torch import nn

from tests.command_line import run_xvfl
from tests.options import by_section
from tests.small_tables import (
    CONFIG,
    assert_same_run,
    has_no_temporary_files,
    make_tables,
    train,
    write_run_inputs,
)
from xvfl import Images, XVFLClassifier, XVFLRegressor
from xvfl.config import EncoderConfig, LossConfig, NetConfig, PrivacyConfig, TrainConfig
from xvfl.data.sources import encode
from xvfl.dataset.in_memory import InMemoryDataset, prepare_in_memory
from xvfl.dataset.prepare import PreparationPlan
from xvfl.dataset.splits import Splits
from xvfl.errors import ConfigError, RunError
from xvfl.federation.party_worker import PartyWorker
from xvfl.federation.upload.encoder_net import build_encoder, encoder_config, encoder_net_config
from xvfl.federation.upload.encoder_training import EncoderTraining
from xvfl.federation.upload.heads import build_heads
from xvfl.federation.upload.private_worker import PrivateWorker
from xvfl.federation.upload.views import compute_views
from xvfl.methods.members import Members
from xvfl.model.fitting import (
    ProgressCallback,
    ProgressUpdate,
    TrainingPlan,
    fit,
    resolve_for_dataset,
)
from xvfl.model.model import Model
from xvfl.model.run_dir import RunDir
from xvfl.model.workflow import evaluate_run, predict_run
from xvfl.options import Options, resolve_options
from xvfl.training.calibration import calibrate
from xvfl.training.loop import Trainer
from xvfl.training.predict import score

pytestmark = pytest.mark.usefixtures("limited_threads")
ROWS = 200
BANK, SHOP, Y = make_tables(ROWS)
BOTH = {"bank": BANK, "shop": SHOP}
SIZES = NetConfig(embedding_dim=8, hidden_dim=16, skip_rank=4, number_embedding_dim=2)
TRAIN = TrainConfig(epochs=2, device="cpu")
UPLOAD_CONFIG = CONFIG.replace("epochs = 3", "epochs = 2") + (
    '\n[privacy]\nlabel_protection = "no_gradients"\n'
)


def small(**changes: Any) -> XVFLClassifier:
    """Return a small classifier without gradients."""
    options = {
        "embedding_dim": 8,
        "hidden_dim": 16,
        "epochs": 2,
        "device": "cpu",
        "verbose": False,
        "label_protection": "no_gradients",
        "threshold": 0.5,
    }
    return XVFLClassifier(**by_section({**options, **changes}))


def prepared(unlabeled: bool = True) -> InMemoryDataset:
    """Prepare the tables; every fourth row has no label."""
    labels = Y.where(np.arange(ROWS) % 4 > 0).dropna()
    plan = PreparationPlan({}, Splits(0.1, 0.15, 0), None, "none", unlabeled)
    return prepare_in_memory(BOTH, labels, plan)


def resolved(dataset: InMemoryDataset, privacy: PrivacyConfig) -> Options:
    """Resolve the options of a run in one process."""
    return resolve_for_dataset(dataset, SIZES, LossConfig(), TRAIN, privacy)


def fit_by_hand(dataset: InMemoryDataset, options: Options) -> tuple[nn.Module, dict[str, Any]]:
    """Train encoders, compute uploads and train heads, one line after the other."""
    config, seeds, views, nets = encoder_config(options), [0], {}, {}
    for at, (name, table) in enumerate(dataset.tables.items()):
        net = nets[name] = build_encoder(name, table.layout, config, seeds)
        handles = dataset.rows.handles[dataset.train, at]
        training = EncoderTraining(name, net, table, handles[handles >= 0], config, seeds)
        list(training.run())
        worker = PartyWorker(name, net, table, seeds)
        views[name] = compute_views(worker, torch.arange(len(table)), config.masked_copies)
    method, federation = build_heads(views, options, seeds, dataset.task, image=False)
    trainer = Trainer(federation, method, dataset.rows.take(dataset.train), options.train)
    validation = dataset.rows.take(dataset.validation)
    list(trainer.run(lambda: score(method, federation, validation, dataset.task)))
    trainer.load_best()
    temperatures = calibrate(method, federation, validation, dataset.task)
    return method.heads, {**nets, "temperatures": temperatures}


def test_fit_does_what_the_functions_of_an_upload_do() -> None:
    dataset = prepared()
    options = resolved(dataset, PrivacyConfig("no_gradients"))
    heads, by_hand = fit_by_hand(dataset, options)
    model = fit(dataset, TrainingPlan(options)).model
    assert_equal_weights(model.method.heads, heads)
    for name in BOTH:
        assert_equal_weights(model.parties[name], by_hand[name])
    assert model.temperatures == by_hand["temperatures"]


def assert_equal_weights(first: nn.Module, second: nn.Module) -> None:
    """Compare weights bit for bit."""
    a, b = first.state_dict(), second.state_dict()
    assert a.keys() == b.keys() and all(torch.equal(a[key], b[key]) for key in a)


def test_options_are_those_of_a_coordinator_on_the_same_uploads() -> None:
    dataset = prepared()
    options = resolved(dataset, PrivacyConfig("no_gradients"))
    federated = resolve_options(
        replace(SIZES, embedding_dim=8),
        LossConfig(),
        TRAIN,
        PrivacyConfig("auto"),
        federated=True,
        image=False,
        parties=2,
        rows=dataset.row_counts().labeled,
    )
    assert options == federated
    assert (options.net.heads, options.net.members) == (4, 1)
    assert not options.loss.cross_completion


def test_the_encoder_has_the_sizes_epochs_and_precision_of_the_options() -> None:
    options = resolved(prepared(), PrivacyConfig("no_gradients", epsilon=2.0, delta=1e-6))
    config = encoder_config(options)
    expected = EncoderConfig(
        epochs=2,
        embedding_dim=8,
        hidden_dim=16,
        skip_rank=4,
        number_embedding_dim=2,
        epsilon=2.0,
        delta=1e-6,
    )
    assert config == expected
    defaults = XVFLClassifier(label_protection="no_gradients", epochs=1, device="cpu")
    model = defaults.fit(BOTH, Y).model_
    assert model.net == encoder_net_config(EncoderConfig())


def test_encoders_learn_from_training_rows_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    learned = {}

    class Spy(EncoderTraining):
        def __init__(self, name: str, net: Any, table: Any, handles: Any, *rest: Any) -> None:
            super().__init__(name, net, table, handles, *rest)
            learned[name] = set(handles.tolist())

    monkeypatch.setattr("xvfl.model.encoder_runs.EncoderTraining", Spy)
    dataset = prepared()
    fit(dataset, TrainingPlan(resolved(dataset, PrivacyConfig("no_gradients"))))
    assert dataset.row_counts().unlabeled > 0
    for at, name in enumerate(BOTH):
        handles = dataset.rows.handles[:, at]
        held_out = torch.cat([dataset.validation, dataset.test])
        assert not learned[name] & set(handles[held_out].tolist())
        assert learned[name] == set(handles[dataset.train].tolist()) - {-1}


@pytest.fixture(scope="module")
def fitted() -> XVFLClassifier:
    """Return a fitted classifier."""
    return small(epochs=15, embedding_dim=0, hidden_dim=0).fit(BOTH, Y)


def test_it_predicts_in_every_mode_also_after_loading(
    fitted: XVFLClassifier, tmp_path: Path
) -> None:
    fitted.save(tmp_path)
    loaded = XVFLClassifier.load(tmp_path)
    for mode, party in (("collaborative", None), ("local", "shop"), ("assisted", "bank")):
        table = fitted.predict_table(BOTH, mode, party)
        pd.testing.assert_frame_equal(loaded.predict_table(BOTH, mode, party), table)
        assert (table["completed"] == 0).all()
    assert (fitted.predict(BOTH) == Y).mean() > 0.8
    assert loaded.get_params()["net__heads"] == 4 and isinstance(loaded.model_.method, Members)
    again = loaded.set_params(epochs=1, device="cpu", verbose=False).fit(BOTH, Y)
    assert again.model_.net == fitted.model_.net
    pd.testing.assert_frame_equal(loaded.complete(BOTH, "bank"), fitted.complete(BOTH, "bank"))
    assert fitted.complete(BOTH, "bank")["age"].notna().all()


def test_a_full_row_and_a_row_without_peers_are_decided_alone(fitted: XVFLClassifier) -> None:
    assisted = fitted.predict_table(BOTH, "assisted", "bank")
    local = fitted.model_.predict(BOTH, "local", "bank").frame()
    alone = ~assisted["parties"].str.contains("shop")
    assert alone.any() and not alone.all()
    shown = [name for name in assisted if name.startswith("proba")]
    assert (assisted[alone][shown] - local[alone][shown]).abs().to_numpy().max() < 0.2


@pytest.mark.parametrize("method", ["xvfl", "standalone", "vanilla", "laser", "laser+mask"])
def test_other_methods_train_heads_on_uploads(method: str) -> None:
    few = Y.where(np.arange(ROWS) % 3 > 0)
    model = small(method=method, epochs=1, heads=2).fit(BOTH, few)
    assert model.row_counts_["unlabeled"] > 0
    mode = "local" if method == "standalone" else "collaborative"
    party = "bank" if mode == "local" else None
    assert np.isfinite(model.predict_proba(BOTH, mode, party).to_numpy()).all()


@pytest.mark.parametrize("k", [3, 8])
def test_three_and_eight_parties(k: int) -> None:
    values = np.random.default_rng(0).normal(size=(ROWS, k))
    tables = {f"p{i}": pd.DataFrame({"x": values[:, i]}, BANK.index) for i in range(k)}
    model = small(epochs=1, heads=2).fit(tables, Y)
    for mode, party in (("collaborative", None), ("local", "p0"), ("assisted", f"p{k - 1}")):
        assert np.isfinite(model.predict_proba(tables, mode, party).to_numpy()).all()


def test_methods_with_two_encoders_are_rejected(two_encoders: str) -> None:
    with pytest.raises(ConfigError, match=r"upload .*choose one of .*laser"):
        small(method=two_encoders).fit(BOTH, Y)


def test_members_are_rejected() -> None:
    with pytest.raises(ConfigError, match="set `heads`"):
        small(members=2).fit(BOTH, Y)


def test_numbers_and_images() -> None:
    rng = np.random.default_rng(0)
    ids = list(BANK.index)
    parties = {"a": Images(rng.random((ROWS, 8, 8)), ids), "shop": SHOP}
    sizes = {"embedding_dim": 8, "hidden_dim": 16, "n_blocks": 1, "base_channels": 8}
    options = {"epochs": 1, "device": "cpu", "verbose": False, "heads": 2}
    model = XVFLRegressor(**by_section({**sizes, **options}), label_protection="no_gradients")
    model.fit(parties, BANK["balance"])
    assert np.isfinite(model.predict(parties)).all()


def test_custom_nets_train_alone() -> None:
    bottoms = {"bank": nn.Linear(5 + 3, 8)}
    head = nn.Linear(8, 2)
    model = small(bottoms=bottoms, head=head, epochs=1).fit(BOTH, Y)
    assert model.model_.head_net is not None and model.model_.head_net.heads == 1
    assert np.isfinite(model.predict_proba(BOTH).to_numpy()).all()
    with pytest.raises(ConfigError, match="heads: expected 1 with custom nets"):
        small(head=head, heads=2).fit(BOTH, Y)


def test_warm_start_continues_encoders_and_heads() -> None:
    model = small(warm_start=True, epochs=1, learning_rate=1e-9).fit(BOTH, Y)
    heads = {key: each.clone() for key, each in model.model_.method.heads.state_dict().items()}
    encoder = {key: each.clone() for key, each in model.model_.parties["bank"].state_dict().items()}
    model.fit(BOTH, Y)
    after = model.model_.method.heads.state_dict()
    assert all(torch.allclose(heads[key], after[key], atol=1e-5) for key in heads)
    trained = model.model_.parties["bank"].state_dict()
    assert any(not torch.equal(encoder[key], trained[key]) for key in encoder)
    assert all(torch.allclose(encoder[key], trained[key], atol=0.5) for key in encoder)


def interrupt_after(count: int) -> ProgressCallback:
    """Return a callback that raises SIGINT at an update, counted over all phases."""
    updates = itertools.count(1)

    def show(update: ProgressUpdate) -> None:
        if next(updates) == count:
            signal.raise_signal(signal.SIGINT)

    return show


@pytest.mark.slow
def test_a_run_stopped_in_any_phase_resumes_with_the_same_weights(tmp_path: Path) -> None:
    config = write_run_inputs(tmp_path, UPLOAD_CONFIG)
    updates: list[str] = []
    train(config, tmp_path / "whole", show=lambda update: updates.append(update.label))
    phases = ["encoder of bank", "encoder of shop", ""]
    assert list(dict.fromkeys(updates)) == phases
    for at in (2, updates.index(phases[1]) + 2, updates.index("") + 2):
        out = tmp_path / str(at)
        assert train(config, out, show=interrupt_after(at)).interrupted
        assert not (out / "manifest.json").exists() and has_no_temporary_files(out)
        assert train(config, out, resume=True, show=interrupt_after(2)).interrupted
        assert not train(config, out, resume=True).interrupted
        assert_same_run(out, tmp_path / "whole")
        assert sorted(path.name for path in (out / "encoders").iterdir()) == [
            "bank.json",
            "bank.safetensors",
            "shop.json",
            "shop.safetensors",
        ]


def test_a_changed_configuration_does_not_resume(tmp_path: Path) -> None:
    config = write_run_inputs(tmp_path, UPLOAD_CONFIG)
    assert train(config, tmp_path / "run", show=interrupt_after(2)).interrupted
    config.write_text(UPLOAD_CONFIG.replace("hidden_dim = 16", "hidden_dim = 24"))
    with pytest.raises(RunError, match="configuration or the tables changed"):
        train(config, tmp_path / "run", resume=True)


@pytest.mark.slow
def test_a_run_folder_evaluates_and_predicts(tmp_path: Path) -> None:
    config = write_run_inputs(tmp_path, UPLOAD_CONFIG)
    said = run_xvfl("train", config, "--out", tmp_path / "run")
    assert said.code == 0, said.err
    folder = RunDir(tmp_path / "run")
    modes = {line.mode for line in evaluate_run(folder).lines}
    assert modes >= {"local", "assisted", "collaborative"}
    inputs = {"bank": str(tmp_path / "bank.csv"), "shop": str(tmp_path / "shop.parquet")}
    out = tmp_path / "predictions.csv"
    predict_run(folder, inputs, "collaborative", None, out, None, lambda text, share: None)
    expected = Model.load(folder).predict(BOTH, "collaborative").frame()
    assert len(pd.read_csv(out)) <= len(expected)


def test_tables_on_disk_are_rejected(tmp_path: Path) -> None:
    for name, table in BOTH.items():
        table.assign(churned=Y).reset_index().to_parquet(tmp_path / f"{name}.parquet")
    text = "out_of_core = true\n" + UPLOAD_CONFIG.replace("bank.csv", "bank.parquet")
    (tmp_path / "run.toml").write_text(text)
    with pytest.raises(ConfigError, match="set `out_of_core = false`"):
        train(tmp_path / "run.toml", tmp_path / "run")


@pytest.mark.slow
def test_epsilon_uploads_noise_and_trains_any_method(tmp_path: Path) -> None:
    model = small(epsilon=8.0, heads=2).fit(BOTH, Y)
    assert model.model_.net.embedding_dim == 8
    fresh = small(epsilon=8.0, heads=2, epochs=1).fit(BOTH, Y)
    for name in BOTH:
        assert_equal_weights(model.model_.parties[name], fresh.model_.parties[name])
    statement = model.model_.differential_privacy
    assert statement is not None and statement.n_releases == 1
    worker = model.model_.worker("bank", prepared().tables["bank"])
    assert isinstance(worker, PrivateWorker) and worker.noise_std == statement.noise_std
    model.save(tmp_path)
    loaded = XVFLClassifier.load(tmp_path)
    pd.testing.assert_frame_equal(loaded.predict_proba(BOTH), model.predict_proba(BOTH))
    manifest = json.loads((tmp_path / "manifest.json").read_text())
    assert manifest["differential_privacy"]["epsilon"] == 8.0


def test_epsilon_does_not_start_from_trained_encoders() -> None:
    options = {"epochs": 1, "warm_start": True, "skip_rank": 0, "number_embedding_dim": 0}
    model = small(**options).fit(BOTH, Y)
    with pytest.raises(ConfigError, match="expected a previous model with `epsilon`"):
        model.set_params(epsilon=1.0).fit(BOTH, Y)


def test_which_features_are_missing_is_hidden_with_epsilon() -> None:
    dataset = prepared()
    options = resolved(dataset, PrivacyConfig("no_gradients", epsilon=4.0))
    model = fit(dataset, TrainingPlan(options)).model
    frames = {"bank": BANK.head(4), "shop": SHOP.head(4)}
    encoded = {name: encode(model.encoders[name], each) for name, each in frames.items()}
    rows, _ = model.rows_of(encoded, list(BANK.index[:4]))
    held = rows.handles >= 0
    assert torch.equal(rows.full, held) and torch.equal(rows.seen, held)
