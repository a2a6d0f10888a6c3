"""The federation of two parties whose messages are recorded."""

from pathlib import Path

import numpy as np
import pandas as pd

from xvfl.certs import create_authority

PARTIES = ("bank", "shop")
N_TRAIN, N_NEW = 80, 8
COORDINATOR = """\
listen = "127.0.0.1:{port}"
parties = ["bank", "shop"]
state_dir = "main"
[tls]
ca_certificate = "certs/ca.crt"
certificate = "certs/coordinator.crt"
private_key = "certs/coordinator.key"
[labels]
table = "labels.csv"
id_column = "id"
column = "y"
[net]
hidden_dim = 8
[train]
epochs = 2
batch_size = 32
patience = 0
device = "cpu"
[prediction]
ids = "new.csv"
address = "127.0.0.1:{address}"
deadline = 20.0
"""
PARTY = """\
coordinator = "localhost:{port}"
table = "{name}.csv"
id_column = "id"
state_dir = "{name}"
[tls]
ca_certificate = "certs/ca.crt"
certificate = "certs/{name}.crt"
private_key = "certs/{name}.key"
[encoder]
epochs = 1
embedding_dim = 2
hidden_dim = 8
[prediction]
table = "{name}-new.csv"
deadline = 20.0
"""


def write_federation(folder: Path, port: int, address: int) -> None:
    """Write tables, certificates, configurations and the coordinator's secret."""
    rng = np.random.default_rng(0)
    ids, total = [f"c{i:03}" for i in range(N_TRAIN + N_NEW)], np.zeros(N_TRAIN + N_NEW)
    authority = create_authority(folder / "certs")
    authority.issue("coordinator", hosts=("localhost", "127.0.0.1"))
    for name in PARTIES:
        x = rng.normal(size=(len(ids), 2))
        total += x[:, 0]
        frame = pd.DataFrame({"id": ids, f"{name}0": x[:, 0], f"{name}1": x[:, 1]})
        frame[:N_TRAIN].to_csv(folder / f"{name}.csv", index=False)
        frame[N_TRAIN:].to_csv(folder / f"{name}-new.csv", index=False)
        (folder / f"{name}.toml").write_text(PARTY.format(port=port, name=name))
        authority.issue(name)
    labels = pd.DataFrame({"id": ids, "y": np.where(total > 0, "yes", "no")})
    labels[:N_TRAIN].to_csv(folder / "labels.csv", index=False)
    labels[["id"]][N_TRAIN:].to_csv(folder / "new.csv", index=False)
    (folder / "coordinator.toml").write_text(COORDINATOR.format(port=port, address=address))
    # The rows that are held out follow from it.
    (folder / "main" / "prediction").mkdir(parents=True)
    (folder / "main" / "secret.key").write_text(bytes(32).hex())
    (folder / "main" / "secret.key").chmod(0o600)


def new_ids() -> list[str]:
    """Return the ids that are predicted."""
    return [f"c{i:03}" for i in range(N_TRAIN, N_TRAIN + N_NEW)]
