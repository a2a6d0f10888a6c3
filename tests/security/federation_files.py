"""Files of a coordinator and a party on loopback, and their processes."""

import subprocess
import sys
import time
from pathlib import Path

from tests.processes import SOURCES, until_finished
from xvfl.certs import create_authority
from xvfl.system.event_log import read_log

TLS = """\
[tls]
ca_certificate = "certs/ca.crt"
certificate = "certs/{name}.crt"
private_key = "certs/{name}.key"
"""
COORDINATOR = """\
listen = "127.0.0.1:0"
parties = ["shop"]
state_dir = "main"
[labels]
table = "labels.csv"
id_column = "customer"
column = "churned"
[timeouts]
join = 120.0
"""
SHOP = """\
coordinator = "localhost:{port}"
table = "shop.csv"
id_column = "customer"
state_dir = "shop"
"""
N_ROWS = 60


def write_files(folder: Path) -> None:
    """Write tables, certificates and the coordinator's configuration."""
    ids = [f"c{i:03}" for i in range(N_ROWS)]
    labels = [f"{each},{'yes' if i % 2 else 'no'}" for i, each in enumerate(ids)]
    shop = [f"{each},{i / 7},{i % 5}" for i, each in enumerate(ids)]
    (folder / "labels.csv").write_text("\n".join(("customer,churned", *labels)))
    (folder / "shop.csv").write_text("\n".join(("customer,spent,visits", *shop)))
    authority = create_authority(folder / "certs")
    authority.issue("coordinator", hosts=("localhost", "127.0.0.1"))
    authority.issue("shop")
    (folder / "coordinator.toml").write_text(COORDINATOR + TLS.format(name="coordinator"))


def write_party(folder: Path, port: int) -> None:
    """Write the party's configuration."""
    (folder / "shop.toml").write_text(SHOP.format(port=port) + TLS.format(name="shop"))


def start(folder: Path, *arguments: str) -> "subprocess.Popen[str]":
    """Start `xvfl` in a folder; new files are readable by others unless xvfl prevents it."""
    return subprocess.Popen(
        [sys.executable, "-m", "xvfl", *until_finished(*arguments)],
        cwd=folder,
        env={"PYTHONPATH": SOURCES, "PATH": "/usr/bin:/bin", "PYTHONIOENCODING": "utf-8"},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        encoding="utf-8",
        umask=0o022,
    )


def wait_for(folder: Path, event: str, process: "subprocess.Popen[str]") -> dict[str, object]:
    """Wait for an event in a log."""
    until = time.monotonic() + 300
    while True:
        for each in read_log(folder):
            if each["event"] == event:
                return each
        assert process.poll() is None, process.communicate()
        assert time.monotonic() < until, event
        time.sleep(0.02)
