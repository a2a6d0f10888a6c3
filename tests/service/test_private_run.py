"""A run with differential privacy, in processes: what it states, and what a party allows."""

import json
from pathlib import Path

import pandas as pd
import pytest
import torch

from tests.command_line import run_xvfl
from tests.service.test_service import COORDINATOR, SHOP, start, wait_for, write
from xvfl.service.log import read_log

pytestmark = pytest.mark.slow
PRIVATE = """
[loss]
method = "laser"
[privacy]
epsilon = 8.0
"""
LIMITS = """
[limits]
max_epsilon = EPSILON
"""


def start_both(folder: Path, max_epsilon: float):  # type: ignore[no-untyped-def]
    write(folder)
    (folder / "coordinator.toml").write_text(COORDINATOR + PRIVATE)
    shop = pd.read_csv(folder / "shop.csv")
    shop.loc[:20, ["spent", "visits"]] = None
    shop.to_csv(folder / "shop.csv", index=False)
    main = start(folder, "coordinator", "coordinator.toml")
    address = str(wait_for(folder / "main", "listening", main)["address"])
    port = address.rpartition(":")[2]
    limits = LIMITS.replace("EPSILON", str(max_epsilon))
    (folder / "shop.toml").write_text(SHOP.replace("PORT", port) + limits)
    return main, start(folder, "party", "shop.toml")


def test_every_side_states_epsilon_and_missing_features_stay_hidden(tmp_path: Path) -> None:
    main, shop = start_both(tmp_path, max_epsilon=8.0)
    out, err = main.communicate(timeout=600)
    assert main.returncode == 0, err
    shop.communicate(timeout=600)
    assert "differential privacy: ε = 8, δ = 1e-05 for each row at each party" in out
    stated = json.loads((tmp_path / "main" / "manifest.json").read_text())["differential_privacy"]
    assert (stated["epsilon"], stated["sensitivity"], stated["n_releases"]) == (8.0, 2.0, 1)
    for side in ("main", "shop"):
        (event,) = [e for e in read_log(tmp_path / side) if e["event"] == "differential_privacy"][
            :1
        ]
        assert event["noise_std"] == stated["noise_std"]
        assert event["adjacency"] == "replace all features of one row at one party"
    from safetensors.torch import load_file

    checkpoint = next((tmp_path / "main").glob("checkpoint*.safetensors"))
    status = load_file(checkpoint)["row_status/shop"]
    assert torch.equal(status, torch.full_like(status, 2))
    bundle = json.loads((tmp_path / "shop" / "bundle" / "manifest.json").read_text())
    assert bundle["differential_privacy"]["epsilon"] == 8.0
    target = tmp_path / "predicted.csv"
    table = f"shop={tmp_path / 'shop.csv'}"
    said = run_xvfl("predict", str(tmp_path / "shop"), "--input", table, "--output", str(target))
    assert said.code == 0, said.err
    assert len(pd.read_csv(target)) == 210


def test_a_party_rejects_a_larger_epsilon(tmp_path: Path) -> None:
    main, shop = start_both(tmp_path, max_epsilon=2.0)
    try:
        event = wait_for(tmp_path / "shop", "request_rejected", shop)
        assert "allows ε up to 2 (δ = 1e-05)" in str(event)
    finally:
        for process in (main, shop):
            process.terminate()
            process.communicate(timeout=60)
