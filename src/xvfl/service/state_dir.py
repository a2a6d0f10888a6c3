"""The state folder of a process: private to its user, with the process's log.

The folder holds secrets, weights and counts of requests: other users may not read what processes
write there. Modes of existing folders, keys and tokens are not changed: somebody may have copied
the contents, so a warning is logged.
"""

from pathlib import Path

from xvfl.certs.release_key import PRIVATE_KEY
from xvfl.errors import RunError
from xvfl.model.run_dir import RunDir
from xvfl.service.config import CoordinatorConfig, PartyProcessConfig
from xvfl.service.log import EventLog, LogFunction
from xvfl.service.secret import SECRET
from xvfl.system.files import is_open_to_others, set_private_umask

KEYS = (SECRET, PRIVATE_KEY, "upload.key")


def open_state_dir(
    config: CoordinatorConfig | PartyProcessConfig,
    process: str,
    show: bool = True,
    create: bool = True,
) -> tuple[RunDir, LogFunction]:
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
    log = EventLog(folder.path, process, show).write
    if is_open_to_others(folder.path):
        reason = f"other users can access this folder; run `chmod -R go= {folder.path}`"
        log({"event": "state_not_private", "folder": str(folder.path), "reason": reason})
    for path in _secret_files(config, folder):
        if is_open_to_others(path):
            reason = (
                f"other users can read it; run `chmod 600 {path}`, and replace it if another user "
                "may have read it"
            )
            log({"event": "secret_readable", "file": str(path), "reason": reason})
    return folder, log


def _secret_files(config: CoordinatorConfig | PartyProcessConfig, folder: RunDir) -> list[Path]:
    """Return the files that only this process may read."""
    names: list[str | None] = [config.tls.private_key]
    if isinstance(config, CoordinatorConfig):
        names.append(config.signing_key)
    if config.prediction is not None:
        names += [config.prediction.tokens, config.prediction.private_key]
    return [*(Path(name) for name in names if name), *(folder / name for name in KEYS)]
