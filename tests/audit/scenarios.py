"""Scenarios of interactive training to audit.

`python -m tests.audit.scenarios bank` prints every figure as a table.

`python -m tests.audit.scenarios members` compares what a decoder reads from one and three members.
"""

import os
import sys
import warnings
from dataclasses import replace
from pathlib import Path

import pandas as pd
import pytest
from sklearn.datasets import load_digits

from xvfl.audit.findings import Finding
from xvfl.audit.interactive_audit import Attacks, AuditOptions, audit
from xvfl.audit.simulation import Scenario, configured_protection, simulate
from xvfl.config import LossConfig, NetConfig, PrivacyConfig, TableOptions, TrainConfig
from xvfl.dataset.in_memory import prepare_in_memory
from xvfl.dataset.prepare import PreparationPlan
from xvfl.dataset.splits import Splits
from xvfl.errors import DataWarning

BANK = Path(os.environ.get("XVFL_DATA", "")) / "tabular" / "bank_full.parquet"
BANK_PARTIES = {
    "client": ["age", "job", "marital", "education", "default", "balance", "housing", "loan"],
    "campaign": ["contact", "day", "month", "campaign", "pdays", "previous", "poutcome"],
}
needs_bank = pytest.mark.skipif(not BANK.is_file(), reason="XVFL_DATA holds no Bank Marketing")
replaces_bank = pytest.mark.skipif(BANK.is_file(), reason="Bank Marketing is audited instead")


def bank(rows: int = 6000, epochs: int = 20) -> Scenario:
    """Bank Marketing: a client takes a deposit or not."""
    frame = pd.read_parquet(BANK).sample(rows, random_state=0)
    frame.index = pd.Index([f"client {i}" for i in range(rows)])
    frame["pdays"] = frame["pdays"].where(frame["pdays"] >= 0)
    tables = {name: frame[columns] for name, columns in BANK_PARTIES.items()}
    return _scenario(tables, frame["y"], epochs)


def digits(rows: int = 1797, epochs: int = 20, net: NetConfig | None = None) -> Scenario:
    """Scanned digits, half an image each."""
    x, y = load_digits(return_X_y=True)
    ids = pd.Index([f"digit {i}" for i in range(rows)])
    images = x[:rows].reshape(rows, 8, 8) / 16
    halves = {"left": images[:, :, :4], "right": images[:, :, 4:]}
    tables = {
        name: pd.DataFrame(half.reshape(rows, 32), ids, [f"pixel {j}" for j in range(32)])
        for name, half in halves.items()
    }
    return _scenario(tables, pd.Series(y[:rows].astype(str), ids), epochs, net)


def _scenario(
    tables: dict[str, pd.DataFrame], labels: pd.Series, epochs: int, net: NetConfig | None = None
) -> Scenario:
    options = {name: TableOptions(na_values=("unknown",)) for name in tables}
    plan = PreparationPlan(options, Splits(0.0, 0.15, 0))
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DataWarning)  # Constant pixels.
        dataset = prepare_in_memory(tables, labels, plan)
    train = TrainConfig(epochs=epochs, device="cpu")
    return Scenario(dataset, net or NetConfig(), LossConfig(), train, PrivacyConfig("noise"))


def markdown(findings: list[Finding]) -> str:
    """Format findings as a table."""
    lines = ["| attack | attacker → target | metric | chance | own data | off | noise |"]
    lines.append("|---|---|---|---|---|---|---|")
    for each in findings:
        key = each.key
        values = (each.chance, each.without_federation, each.unprotected, each.protected)
        figures = " | ".join(f"{value:.3f}" for value in values)
        lines.append(f"| {key.attack} | {key.attacker} → {key.target} | {key.metric} | {figures} |")
    return "\n".join(lines)


def decoder_figures(members: int) -> list[str]:
    """Decode the features of 3,000 rows of Bank Marketing from the embeddings of all members."""
    scenario = bank(3000, 10)
    scenario = replace(scenario, net=replace(scenario.net, members=members))
    simulation = simulate(scenario, configured_protection(scenario.privacy))
    attacks = Attacks(simulation, AuditOptions(max_rows=1000))
    for name in scenario.names:
        attacks._decoders(name)
    return [
        f"{members} members, {key.attack}, {key.target}, {key.metric}: {found.value:.3f}"
        for key, found in attacks.found.items()
    ]


if __name__ == "__main__":
    if sys.argv[1] == "members":
        print(*decoder_figures(1), *decoder_figures(3), sep="\n")
        sys.exit()
    result = audit({"bank": bank, "digits": digits}[sys.argv[1]]())
    print(result.about, markdown(result.findings), sep="\n")
