"""Retire a head: delete its parameters, keep its record."""

import shutil

from xvfl.model.registry.head_facts import RETIRED, TRAINING_LOCK, file_digest
from xvfl.model.run_dir import CHECKPOINT, MANIFEST, MODEL, RunDir
from xvfl.model.run_summary import now_text


def retire_head(head: RunDir, by: str) -> None:
    """Delete the parameters of a head.

    The caller makes sure that the head is neither the current one nor in training. Of a head that
    is not finished, nothing stays but the note that it was retired, so that its number is not
    given again.

    Parameters
    ----------
    head : RunDir
        Run folder of the head.
    by : str
        Who retires it.
    """
    note = {"time": now_text(), "by": by, "digest": file_digest(head / MODEL)}
    # First: a head without all of its parameters must not be used.
    head.write_json(RETIRED, note)
    if head.has(MANIFEST):
        for name in (MODEL, CHECKPOINT):
            (head / name).unlink(missing_ok=True)
        return
    for path in head.path.iterdir():
        if path.is_dir() and not path.is_symlink():
            shutil.rmtree(path)
        elif path.name not in (RETIRED, TRAINING_LOCK):
            path.unlink()
