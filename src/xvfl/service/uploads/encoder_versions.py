"""Which version of its encoder a party trains and uploads: only its operator allows the next one.

encoder_version.json    the version; 1 before the operator has allowed another one
"""

from xvfl.errors import RunError
from xvfl.model.run_dir import RunDir
from xvfl.service.uploads.party_encoder import ENCODER, WEIGHTS, is_trained
from xvfl.service.uploads.withdrawn import Withdrawn

VERSION = "encoder_version.json"


def current_version(folder: RunDir) -> int:
    """Return the version that a party's operator has allowed."""
    return int(folder.read_json(VERSION)["version"]) if folder.has(VERSION) else 1


def allow_next_version(folder: RunDir, keep_encoder: bool = False) -> int:
    """Allow the next version, from the next start of the party; return its number.

    Earlier encoders stay in the folder: heads that were trained on their uploads need them to
    predict. With `keep_encoder`, the next version has the encoder of the current one, and all
    matched rows are embedded and uploaded again.
    """
    version = current_version(folder)
    trained = is_trained(folder, version)
    if not trained and (keep_encoder or not Withdrawn(folder).covers(version)):
        raise RunError(
            f"{folder.path}: version {version} is not trained yet; start the party, or run "
            "`xvfl upload export`, first"
        )
    if keep_encoder:
        for name in (ENCODER, WEIGHTS):
            data = (folder / f"encoders/{version}/{name}").read_bytes()
            folder.write_bytes(f"encoders/{version + 1}/{name}", data)
    folder.write_json(VERSION, {"version": version + 1})
    return version + 1
