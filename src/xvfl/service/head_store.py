"""The coordinator's trained heads: a run folder for each, and which of them predicts.

heads/N/      run folder of head N: checkpoint, records, evaluation, weights, manifest
heads.json    the heads that have been in use, the current one last

`xvfl.model.registry` describes them.

A head is trained in a folder of its own and becomes the current one when it is finished, so that
training never changes what predicts. Interactive training and version 0.3 have one head, in the
state folder itself.
"""

from xvfl.errors import RunError
from xvfl.model.registry import INDEX, RETIRED, TRAINING_LOCK, head_numbers, retire_head
from xvfl.model.run_dir import MANIFEST, RunDir
from xvfl.system.locks import file_lock

LOCK = "heads.lock"


class HeadStore:
    """The heads of a coordinator's state folder."""

    def __init__(self, folder: RunDir) -> None:
        self._folder = folder

    @property
    def current(self) -> RunDir:
        """Run folder of the head that predicts; without one, the state folder."""
        used = self._used()
        return self._head(used[-1]) if used else self._folder

    @property
    def current_run(self) -> str:
        """Name of the run of the head that predicts; empty if it cannot be read."""
        try:
            return str(self.current.manifest()["run"])
        except (RunError, KeyError, TypeError, ValueError):
            return ""

    def in_training(self, retrain: bool) -> RunDir | None:
        """Return the run folder of a head that is not finished.

        Without one, start the first head, or with `retrain` another one; else return None.
        """
        heads = [self._head(number) for number in head_numbers(self._folder.path)]
        if heads and not (heads[0].has(MANIFEST) or heads[0].has(RETIRED)):
            return heads[0]
        if not retrain and any(each.has(MANIFEST) for each in (*heads, self._folder)):
            return None
        return self._head(int(heads[0].path.name) + 1 if heads else 1).create()

    def finished(self, number: int) -> RunDir:
        """Return the run folder of a head that can be used."""
        head = self._head(number)
        if head.has(RETIRED):
            problem = (
                "its parameters were deleted; train another one with --retrain, or use another"
            )
        elif not head.path.is_dir():
            problem = "no such head; use one of `xvfl heads list`"
        elif not head.has(MANIFEST):
            problem = "not finished; `xvfl coordinator` continues its training"
        else:
            return head
        raise RunError(f"head {number}: {problem}")

    def use(self, head: RunDir) -> None:
        """Use a finished head from now on; those that were used after it are taken back."""
        number = int(head.path.name)
        with file_lock(self._folder / LOCK):
            self.finished(number)
            used = self._used()
            before = used[: used.index(number)] if number in used else used
            self._folder.write_json(INDEX, {"used": [*before, number]})

    def retire(self, number: int, by: str) -> None:
        """Delete the parameters of a head that is neither the current one nor in training."""
        head, busy = self._head(number), "this head is in training; stop the coordinator first"
        with file_lock(self._folder / LOCK):
            used = self._used()
            if used[-1:] == [number]:
                raise RunError(f"head {number}: it is the current one; use another one first")
            if not head.path.is_dir() or head.has(RETIRED):
                raise RunError(f"head {number}: no such head, or retired; see `xvfl heads list`")
            with file_lock(head / TRAINING_LOCK, busy):
                self._folder.write_json(INDEX, {"used": [n for n in used if n != number]})
                retire_head(head, by)

    @property
    def previous(self) -> RunDir:
        """Run folder of the head before the current one."""
        used = self._used()
        if len(used) < 2:
            raise RunError(f"{self._folder.path}: no earlier head; this is the first one")
        return self._head(used[-2])

    def _used(self) -> list[int]:
        if not self._folder.has(INDEX):
            return []
        return [int(each) for each in self._folder.read_json(INDEX)["used"]]

    def _head(self, number: int) -> RunDir:
        return RunDir(self._folder / f"heads/{number}")
