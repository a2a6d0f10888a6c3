"""The bundle that a server serves; it is replaced while requests are answered."""

import asyncio
import logging
from dataclasses import dataclass
from pathlib import Path

from xvfl_serve.errors import ServeError
from xvfl_serve.http.metrics import Metrics
from xvfl_serve.http.settings import Settings
from xvfl_serve.predictor import Predictor

log = logging.getLogger("xvfl_serve")


@dataclass(frozen=True)
class _FileState:
    """What changes if a file is replaced."""

    modified: int
    size: int
    inode: int


class ModelSlot:
    """Holds the current predictor.

    A request takes the predictor once and keeps it to its end, so that a replacement disturbs no
    request. A new bundle that cannot be loaded is rejected, and the current one stays.
    """

    def __init__(self, settings: Settings, metrics: Metrics) -> None:
        self.settings, self.metrics = settings, metrics
        self._state: _FileState | None = _file_state(settings.bundle)
        self.current = self._load()

    def request_reload(self) -> None:
        """Load the file again at the next check, even if it is unchanged."""
        self._state = None

    async def watch(self) -> None:
        """Load the file whenever it is replaced."""
        while True:
            await asyncio.sleep(self.settings.poll_seconds)
            state = _file_state(self.settings.bundle)
            if state is not None and state != self._state:
                self._state = state
                await self._replace()

    async def _replace(self) -> None:
        before = self.current.bundle.digest
        try:
            predictor = await asyncio.to_thread(self._load)
        except ServeError as error:
            self.metrics.add_reload("rejected")
            log.error("the new bundle is rejected, the current one stays: %s", error)
            return
        self.current = predictor
        self.metrics.add_reload("loaded")
        log.info("bundle %.12s replaces %.12s", predictor.bundle.digest, before)

    def _load(self) -> Predictor:
        each = self.settings
        return Predictor.load(each.bundle, each.public_key, each.threads)


def _file_state(path: Path) -> _FileState | None:
    try:
        found = path.stat()
    except OSError:
        return None
    return _FileState(found.st_mtime_ns, found.st_size, found.st_ino)
