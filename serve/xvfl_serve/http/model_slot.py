"""The bundle that a server serves; it is replaced while requests are answered."""

import asyncio
import logging
from dataclasses import dataclass
from pathlib import Path

from xvfl_serve.errors import BundleError, RequestError, ServeError
from xvfl_serve.http.metrics import Metrics
from xvfl_serve.http.settings import Settings
from xvfl_serve.predictor import Predictor
from xvfl_serve.release_state import read_release_state

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
        self._release_state = settings.release and _file_state(settings.release)
        self.revoked = ""
        """Why the bundle may not be used any more; empty if it may."""
        self.current = self._load()

    def predictor(self) -> Predictor:
        """Return the current predictor, for a prediction; raise if its head is revoked."""
        if self.revoked:
            raise RequestError(self.revoked, status=410)
        return self.current

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
            self._check_release()

    async def _replace(self) -> None:
        before = self.current.bundle.digest
        try:
            predictor = await asyncio.to_thread(self._load)
        except ServeError as error:
            self.metrics.add_reload("rejected")
            log.error("the new bundle is rejected, the current one stays: %s", error)
            return
        self.current, self.revoked = predictor, ""
        self.metrics.add_reload("loaded")
        log.info("bundle %.12s replaces %.12s", predictor.bundle.digest, before)

    def _check_release(self) -> None:
        """Stop predicting when the head is revoked; a replaced one stays until the new bundle."""
        path = self.settings.release
        if path is None or (state := _file_state(path)) == self._release_state:
            return
        self._release_state = state
        try:
            release = read_release_state(path)
        except BundleError as error:
            log.error("%s", error)
            return
        try:
            release.check(self.current.bundle, self.settings.bundle.name)
            self.revoked = ""
        except BundleError as error:
            log.error("%s", error)
            self.revoked = str(error) if release.revoked is not None else ""

    def _load(self) -> Predictor:
        each = self.settings
        predictor = Predictor.load(each.bundle, each.public_key, each.threads)
        if each.release is not None:
            read_release_state(each.release).check(predictor.bundle, str(each.bundle))
        return predictor


def _file_state(path: Path) -> _FileState | None:
    try:
        found = path.stat()
    except OSError:
        return None
    return _FileState(found.st_mtime_ns, found.st_size, found.st_ino)
