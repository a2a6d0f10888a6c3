"""Several members in processes over mutual TLS: train, resume after kills, evaluate, release."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
import torch

from tests.command_line import run_xvfl
from tests.options import resolved
from tests.service.test_service import INTERACTIVE, SHOP, start, wait_for
from xvfl.certs import create_authority
from xvfl.config import NO_PROTECTION, LossConfig, NetConfig, build
from xvfl.data.frames import read_table
from xvfl.data.labels import read_labels
from xvfl.dataset.splits import Splits
from xvfl.federation.run_settings import RunSettings
from xvfl.matching.alignment import load_coordinator_alignment
from xvfl.methods.pooling import decision_weights
from xvfl.model.evaluation import evaluate, model_predictions
from xvfl.model.model import Model
from xvfl.model.run_dir import MODEL, RunDir
from xvfl.primitives.task import task_from_dict
from xvfl.service.config import load_party_config
from xvfl.service.labeled_rows import LabeledRows, MatchedLabels
from xvfl.service.party_inputs import PartyInputs
from xvfl.service.party_release import RUN
from xvfl.service.party_service import PartyService
from xvfl.service.secret import load_secret, run_seed
from xvfl.system.event_log import read_log

MEMBERS, PARTIES, ROWS = 3, ("bank", "shop"), 200
COORDINATOR = """\
listen = "127.0.0.1:0"
parties = ["bank", "shop"]
revocation_list = "certs/ca.crl"
state_dir = "main"
release_to = ["bank", "shop"]
checkpoint_interval = 2
[tls]
ca_certificate = "certs/ca.crt"
certificate = "certs/coordinator.crt"
private_key = "certs/coordinator.key"
[labels]
table = "labels.csv"
id_column = "customer"
column = "churned"
[privacy]
label_protection = "off"
[net]
members = 3
embedding_dim = 64
hidden_dim = 128
[loss]
unmasked_copies = 0.125
[train]
epochs = 10
learning_rate = 0.002
batch_size = 32
patience = 0
device = "cpu"
"""
PAUSE_AFTER_THREE_EPOCHS = """
import runpy, time
from xvfl.system.event_log import EventLog

write = EventLog.write

def write_and_pause(self, event):
    write(self, event)
    while event["event"] == "epoch" and event["epoch"] == 3:
        time.sleep(0.01)

EventLog.write = write_and_pause
runpy.run_module("xvfl", run_name="__main__", alter_sys=True)
"""
"""The command line; training pauses after the third epoch until the process is killed."""


def write_files(folder: Path) -> None:
    rng = np.random.default_rng(3)
    ids = [f"c{i:03}" for i in range(ROWS)]
    x = rng.normal(size=(ROWS, 4))
    churned = np.where(x[:, 0] + x[:, 2] > 0, "yes", "no")
    x[:, [0, 2]] = np.where(rng.random((ROWS, 2)) < 0.1, np.nan, x[:, [0, 2]])
    codes = [f"k{i % 80}" for i in range(ROWS)]
    bank = pd.DataFrame({"customer": ids, "income": x[:, 0], "age": x[:, 1], "code": codes})
    shop = pd.DataFrame({"customer": ids, "spent": x[:, 2], "visits": x[:, 3]})
    bank.iloc[10:].to_csv(folder / "bank.csv", index=False)
    shop.iloc[:-10].to_csv(folder / "shop.csv", index=False)
    pd.DataFrame({"customer": ids, "churned": churned}).to_csv(folder / "labels.csv", index=False)
    authority = create_authority(folder / "certs")
    authority.issue("coordinator", hosts=("localhost",))
    for name in PARTIES:
        authority.issue(name)
    (folder / "coordinator.toml").write_text(COORDINATOR)


def one_process_model(folder: Path) -> Model:
    """Put the nets of both parties and the coordinator's heads into one model."""
    released = {name: Model.load(RunDir(folder / name / "bundle")) for name in PARTIES}
    heads, main = RunDir(folder / "main"), RunDir(folder / "main").manifest()
    first = released["bank"]
    assert first.net.members == MEMBERS
    model = Model(
        {name: each.encoders[name] for name, each in released.items()},
        {name: each.full_threshold[name] for name, each in released.items()},
        task_from_dict(main),
        main["prior"],
        build(NetConfig, main["net"], "net"),
        build(LossConfig, main["loss"], "loss"),
        0,
        privacy=NO_PROTECTION,
    )
    for name, each in released.items():
        model.parties[name].load_state_dict(each.parties[name].state_dict())
    model.method.heads.load_state_dict(heads.load_tensors(MODEL)[0])
    model.temperatures = main["temperatures"]
    decision_weights(model.method).update(main["decision_weights"])
    return model


def one_process_evaluation(folder: Path, model: Model) -> list[dict[str, Any]]:
    """Evaluate the model on the coordinator's test rows, as it does: without temperatures."""
    temperatures, model.temperatures = model.temperatures, {}
    labels = read_labels(str(folder / "labels.csv"), id_column="customer", column="churned")
    alignment = load_coordinator_alignment(folder / "main" / "alignment.json")
    seed = run_seed(load_secret(RunDir(folder / "main")), "split 0")
    matched = MatchedLabels(labels, list(labels.index), alignment)
    labeled = LabeledRows.load(matched, PARTIES, Splits(0.2, 0.15, seed))
    test = set(np.asarray(labels.index)[labeled.parts[2].numpy()])
    sources = {}
    for name in PARTIES:
        frame = pd.read_csv(folder / f"{name}.csv")
        frame[frame["customer"].isin(test)].to_csv(folder / "test.csv", index=False)
        sources[name] = read_table(str(folder / "test.csv"), id_column="customer", party=name)
    chunk = sources, labels[labels.index.isin(test)]
    lines: list[dict[str, Any]] = evaluate(model_predictions(model, [chunk]), "test").to_dict()[
        "lines"
    ]
    model.temperatures = temperatures
    return lines


def unmasked_share_of(folder: Path, name: str, wanted: float | None) -> float:
    """Return the share of unmasked copies with which a matched party begins a run."""
    config = load_party_config(folder / f"{name}.toml")
    service = PartyService(
        PartyInputs.load(name, config, RunDir(folder / name)), lambda event: None
    )
    options = resolved(NetConfig(embedding_dim=16, hidden_dim=64, members=2))
    settings = RunSettings(
        "laser+mask", options.net, options.train, unmasked_copies=wanted, run=f"share-{wanted}"
    )
    # Ids are matched in a random order: all rows train, so that the share is always the same.
    assert service.table.match is not None
    training = torch.arange(len(service.table.match.rows))
    (share,) = service._start_run(settings, training).worker._unmasked.tolist()
    return float(share)


@pytest.mark.slow
def test_members_train_resume_evaluate_and_predict(tmp_path: Path) -> None:
    write_files(tmp_path)
    log = tmp_path / "main"
    running = {
        "main": start(tmp_path, "coordinator", "coordinator.toml", code=PAUSE_AFTER_THREE_EPOCHS)
    }
    try:
        port = str(wait_for(log, "listening", running["main"])["address"]).rpartition(":")[2]
        text = COORDINATOR.replace("127.0.0.1:0", f"127.0.0.1:{port}")
        (tmp_path / "coordinator.toml").write_text(text)
        for name in PARTIES:
            text = INTERACTIVE[1] + SHOP.replace("PORT", port).replace("shop", name)
            (tmp_path / f"{name}.toml").write_text(text)
            running[name] = start(tmp_path, "party", f"{name}.toml")
        while len([e for e in read_log(log) if e["event"] == "epoch"]) < 3:
            wait_for(log, "epoch", running["main"])
        for name in ("main", "shop"):
            running[name].kill()
            running[name].communicate()
        running["shop"] = start(tmp_path, "party", "shop.toml")
        running["main"] = start(tmp_path, "coordinator", "coordinator.toml")
        for process in running.values():
            _, err = process.communicate(timeout=600)
            assert process.returncode == 0, err
    finally:
        for process in running.values():
            process.kill()
            process.communicate()
    events = read_log(log)
    assert [e for e in events if e["event"] == "resumed" and e["step"] > 0]
    lines = json.loads((log / "evaluation.json").read_text())["lines"]
    model = one_process_model(tmp_path)
    expected_lines = one_process_evaluation(tmp_path, model)
    assert {line["mode"] for line in lines} == {"local", "assisted", "collaborative", "peers"}
    for line, expected_line in zip(lines, expected_lines, strict=True):
        if line["mode"] != "peers":  # A model also predicts rows that no peer has in full.
            assert line["metrics"] == pytest.approx(expected_line["metrics"], abs=1e-4), line
    scores = [e["score"] for e in events if e["event"] == "epoch"]
    assert len(scores) >= 10 and max(scores) > scores[0]
    for name in PARTIES:
        out, table = tmp_path / f"{name}-answers.csv", str(tmp_path / f"{name}.csv")
        said = run_xvfl("predict", tmp_path / name, f"{name}={table}", "--out", out)
        assert said.code == 0, said.err
        source = read_table(table, id_column="customer", party=name)
        expected = model.predict({name: source}, "local", name).frame()
        found = pd.read_csv(out).set_index("id")
        columns = ["proba_no", "proba_yes"]
        np.testing.assert_allclose(found[columns], expected.loc[found.index, columns], atol=1e-5)
    assert RunDir(tmp_path / "shop").read_json(RUN)["settings"]["unmasked_copies"] == 0.125
    assert unmasked_share_of(tmp_path, "shop", 0.25) == 0.25
    # It has few features, although some of their values are missing.
    assert pd.read_csv(tmp_path / "shop.csv")["spent"].isna().any()
    assert unmasked_share_of(tmp_path, "shop", None) == 0.5
    # The bank has a hashed category.
    assert unmasked_share_of(tmp_path, "bank", None) == 0.0
