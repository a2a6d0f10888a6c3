"""The coordinator's trained heads: a run folder for each, and which of them predicts.

heads/N/      run folder of head N: checkpoint, records, evaluation, weights, manifest
heads.json    the heads that have been in use, the current one last

A head is trained in a folder of its own and becomes the current one when it is finished, so that
training never changes what predicts. Interactive training and version 0.3 have one head, in the
state folder itself.
"""

from xvfl.errors import RunError
from xvfl.model.run_dir import MANIFEST, RunDir
from xvfl.system.locks import file_lock

FOLDER, INDEX, LOCK = "heads", "heads.json", "heads.lock"


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
        names = [path.name for path in self._folder.path.glob(f"{FOLDER}/*")]
        number = max((int(name) for name in names if name.isdecimal()), default=0)
        if number and not self._head(number).has(MANIFEST):
            return self._head(number)
        if (number or self._folder.has(MANIFEST)) and not retrain:
            return None
        return self._head(number + 1).create()

    def promote(self, head: RunDir) -> None:
        """Use a finished head from now on."""
        number = int(head.path.name)
        with file_lock(self._folder / LOCK):
            used = [each for each in self._used() if each != number]
            self._folder.write_json(INDEX, {"used": [*used, number]})

    @property
    def previous(self) -> RunDir:
        """Run folder of the head before the current one."""
        used = self._used()
        if len(used) < 2:
            raise RunError(f"{self._folder.path}: no earlier head; this is the first one")
        return self._head(used[-2])

    def go_back(self) -> RunDir:
        """Use the head before the current one again; return its folder."""
        with file_lock(self._folder / LOCK):
            head = self.previous
            self._folder.write_json(INDEX, {"used": self._used()[:-1]})
        return head

    def _used(self) -> list[int]:
        if not self._folder.has(INDEX):
            return []
        return [int(each) for each in self._folder.read_json(INDEX)["used"]]

    def _head(self, number: int) -> RunDir:
        return RunDir(self._folder / f"{FOLDER}/{number}")
