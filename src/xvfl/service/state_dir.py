"""The state folder of a process: private to its user, with the process's log.

The folder holds secrets, weights and counts of requests: other users may not read it, and at
startup their permissions are removed from what an earlier version left readable. The mode of keys
and tokens is kept: somebody may have copied them, so a warning is logged.
"""

from fnmatch import fnmatch
from pathlib import Path

from xvfl.certs.release_key import PRIVATE_KEY
from xvfl.errors import RunError
from xvfl.model.run_dir import RunDir
from xvfl.service.config import CoordinatorConfig, PartyProcessConfig
from xvfl.service.secret import SECRET
from xvfl.system.event_log import EventLog
from xvfl.system.files import is_open_to_others, make_private, set_private_umask
from xvfl.trail.trail_file import Trail

MAX_NAMED = 5
"""Files of others that an event names."""
KEYS = (SECRET, PRIVATE_KEY, "upload.key")
FILES = """
*.safetensors *.tmp alignment.json approvals.* bundle completion.json encoder.json encoders
encoder_version.json evaluation.json explanation.* heads heads.json heads.lock held_out.json
listener.* log.jsonl* manifest.json matching_sessions.jsonl missing.json missing_rates.json peers
prediction receipts records.jsonl release.json release.pub releases releases.json releases.lock
requests-* run.json runs-* secret_requests split.json trail.jsonl uploads withdrawn.*
withdrawn_ids.json
"""
OWN = (*KEYS, *FILES.split())
"""Names that processes write into their state folder, beside the folder of a local party."""


def open_state_dir(
    config: CoordinatorConfig | PartyProcessConfig,
    process: str,
    show: bool = True,
    create: bool = True,
) -> tuple[RunDir, EventLog]:
    """Open the state folder and the log of a process; files that it writes are private.

    Parameters
    ----------
    config : CoordinatorConfig or PartyProcessConfig
        The configuration of the process.
    process : str
        Its name in the log.
    show : bool, default=True
        Print the log on standard error as well.
    create : bool, default=True
        Create the folder if it does not exist.

    Raises
    ------
    RunError
        If the folder does not exist and may not or cannot be created.

    """
    folder = RunDir(config.state_dir)
    if not create and not folder.path.is_dir():
        raise RunError(f"{folder.path}: no such state folder; check `state_dir`")
    set_private_umask()
    folder.create()
    own, others = _entries(config, folder)
    changed, failed = make_private(own if others else [folder.path], keep=KEYS)
    log = EventLog(folder.path, process, show, config.log_format == "json", Trail)
    if others:
        reason = "other users may read it: it has files of others; choose a folder of its own"
        event = {"event": "state_dir_shared", "folder": str(folder.path), "reason": reason}
        log({**event, "files": others[:MAX_NAMED]})
    if changed:
        log({"event": "state_made_private", "folder": str(folder.path), "files": changed})
    if failed:
        reason = (
            "other users can access files of this folder, and their mode cannot be changed; run "
            f"`chmod -R go= {folder.path}` as their owner"
        )
        log({"event": "state_not_private", "folder": str(folder.path), "reason": reason})
    for path in _secret_files(config, folder):
        if is_open_to_others(path):
            reason = (
                f"other users can read it; run `chmod 600 {path}`, and replace it if another user "
                "may have read it"
            )
            log({"event": "secret_readable", "file": str(path), "reason": reason})
    return folder, log


def _entries(
    config: CoordinatorConfig | PartyProcessConfig, folder: RunDir
) -> tuple[list[Path], list[str]]:
    """Return what processes wrote into a state folder, and the names of all else in it."""
    local = config.local_party if isinstance(config, CoordinatorConfig) else None
    names = OWN if local is None else (*OWN, local.name)
    own, others = list[Path](), list[str]()
    for path in sorted(folder.path.iterdir()):
        if any(fnmatch(path.name, each) for each in names) and not path.is_symlink():
            own.append(path)
        else:
            others.append(path.name)
    return own, others


def _secret_files(config: CoordinatorConfig | PartyProcessConfig, folder: RunDir) -> list[Path]:
    """Return the files that only this process may read."""
    names = [config.tls.private_key, config.status_tokens, config.status_private_key]
    if isinstance(config, CoordinatorConfig):
        names.append(config.signing_key)
    if config.prediction is not None:
        names += [config.prediction.tokens, config.prediction.private_key]
    return [*(Path(name) for name in names if name), *(folder / name for name in KEYS)]
