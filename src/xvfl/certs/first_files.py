"""What operators start from: configurations to fill in, and all files of a new federation."""

import json
from collections.abc import Sequence
from pathlib import Path

from xvfl.certs import pem_files
from xvfl.certs.authority import Authority, create_authority
from xvfl.certs.kit import Kit, create_kit
from xvfl.certs.names import check_name
from xvfl.certs.pem_files import OWNER_ONLY, WORLD_READABLE
from xvfl.errors import CertificateError

COORDINATOR = "coordinator"
COORDINATOR_CONFIG = """\
# Configuration of the coordinator; see the page Deploy of the documentation.
# File names are relative to the folder of this file.
listen = "0.0.0.0:{port}"
parties = {parties}
state_dir = "coordinator-state"
status_address = "127.0.0.1:8480"
signing_key = "{folder}/coordinator.release.key"
revocation_list = "{folder}/ca.crl"

[tls]
ca_certificate = "{folder}/ca.crt"
certificate = "{folder}/coordinator.crt"
private_key = "{folder}/coordinator.key"

[labels]
table = "LABELS.csv"              # the ids and the labels: .csv, .csv.gz, .parquet, .xlsx
id_column = "ID"
column = "LABEL"
task = "classification"           # or "regression", for a number

[matching]
max_ids = 10_000_000              # largest number of ids of a party, as agreed

# The ids that may be predicted, and the address of the HTTP endpoint; see the page "Predict with
# the federation". Delete the section if nothing is predicted together.
[prediction]
ids = "NEW-IDS.csv"               # with the id column of the labels
address = "127.0.0.1:7490"
"""


def write_federation(
    folder: Path, days: int, address: str, parties: Sequence[str]
) -> tuple[Authority, list[tuple[Path, Kit]], Path]:
    """Create an authority, the coordinator's certificate and configuration, and kits.

    Files of the authority and of the coordinator's certificate are in the folder, the others
    beside it.

    Parameters
    ----------
    folder : Path
        The folder of the authority; it may not exist.
    days : int
        Validity of the authority in days.
    address : str
        HOST:PORT at which parties reach the coordinator.
    parties : sequence of str
        Their names.

    Returns
    -------
    tuple
        The authority, the kits with their files, and the file of the configuration.

    """
    host, _, port = address.rpartition(":")
    if not (host and port.isdecimal()):
        raise CertificateError(f"--coordinator: expected HOST:PORT, got {address!r}")
    for name in parties:
        check_name(name)
    config, beside = folder.parent / "coordinator.toml", folder.parent
    paths = [beside / f"{name}.kit" for name in parties]
    pem_files.check_absent(config, *paths)
    authority = create_authority(folder, days)
    authority.issue(COORDINATOR, [host.strip("[]")])
    names = json.dumps(list(parties))
    text = COORDINATOR_CONFIG.format(port=port, parties=names, folder=folder.name)
    pem_files.write_new(config, text.encode(), OWNER_ONLY)
    kits = [create_kit(folder, name, COORDINATOR, address) for name in parties]
    for path, kit in zip(paths, kits, strict=True):
        pem_files.write_new(path, kit.to_bytes(), WORLD_READABLE)
    return authority, list(zip(paths, kits, strict=True)), config
