"""The bundle that a server serves; it is replaced while requests are answered."""

import asyncio
import logging
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from pathlib import Path
from threading import Lock, Timer

from xvfl_serve.errors import RequestError, ServeError
from xvfl_serve.http.metrics import Metrics
from xvfl_serve.http.settings import Settings
from xvfl_serve.http.size_limits import SizeLimits
from xvfl_serve.predictor import Predictor
from xvfl_serve.release_state import ReleaseState, read_release_state

log = logging.getLogger("xvfl_serve")
SLOW_LOAD_S = 60
"""A bundle that takes longer to load is reported."""


@dataclass(frozen=True)
class _FileState:
    """What changes if a file is replaced."""

    modified: int
    size: int
    inode: int


class ModelSlot:
    """Holds the current predictor.

    A request takes the predictor once and keeps it to its end, so that a replacement disturbs no
    request. A new bundle that cannot be loaded is rejected, and the current one stays. A bundle
    whose release was revoked is never used again, also after a newer release.
    """

    def __init__(self, settings: Settings, metrics: Metrics) -> None:
        self.settings, self.metrics = settings, metrics
        self._bundle_file: _FileState | None = _file_state(settings.bundle)
        self._release_file: _FileState | None = None
        self._release: ReleaseState | None = None
        self._logged: dict[str, str] = {}
        self._release_lock = Lock()
        self._read_release()
        self.current = self._load()
        self.limits = SizeLimits.of_model(settings, self.current)

    @property
    def revoked(self) -> str:
        """Why the current bundle may not be used any more; empty if it may."""
        if self._release is None:
            return ""
        return self._release.revoked(self.current.bundle, self.settings.bundle.name)

    def predictor(self) -> Predictor:
        """Return the current predictor, for a prediction; raise if its head is revoked."""
        if revoked := self.revoked:
            raise RequestError(revoked, status=410)
        return self.current

    def request_reload(self) -> None:
        """Load the file again at the next check, even if it is unchanged."""
        self._bundle_file = None

    async def watch(self) -> None:
        """Check the files of bundle and release, until cancelled.

        Neither check waits for the other: a bundle may take long to load, and a revocation holds at
        once.
        """
        async with asyncio.TaskGroup() as checks:
            checks.create_task(self._repeat("bundle", self._check_bundle))
            if self.settings.release is not None:
                checks.create_task(self._repeat("release", self._check_release))

    async def _repeat(self, name: str, check: Callable[[], Awaitable[None]]) -> None:
        """Repeat a check whatever it raises; log each new error, and count all."""
        while True:
            await asyncio.sleep(self.settings.poll_seconds)
            try:
                await check()
                self._logged.pop(name, None)
            except Exception as error:
                self.metrics.add_watch_error(name)
                text = " ".join(f"{type(error).__name__}: {error}".split())
                if self._logged.get(name) != text:
                    self._logged[name] = text
                    log.exception("checking for a new %s failed, will retry: %s", name, text)

    async def _check_bundle(self) -> None:
        """Load the bundle if its file was replaced."""
        state = _file_state(self.settings.bundle)
        if state is None or state == self._bundle_file:
            return
        self._bundle_file = state
        before = self.current.bundle.digest
        try:
            loaded = await asyncio.to_thread(self._load)
        except ServeError as error:
            self.metrics.add_reload("rejected")
            log.error("the new bundle is rejected, the current one stays: %s", error)
            return
        except Exception:
            self.metrics.add_reload("rejected")
            raise
        self.current, self.limits = loaded, SizeLimits.of_model(self.settings, loaded)
        self.metrics.add_reload("loaded")
        log.info("bundle %.12s replaces %.12s", self.current.bundle.digest, before)

    async def _check_release(self) -> None:
        """Read release.json if it was replaced; a replaced head stays until the new bundle."""
        before = self.revoked
        await asyncio.to_thread(self._read_release)
        if self.revoked and self.revoked != before:
            log.error("%s", self.revoked)

    def _read_release(self) -> None:
        path = self.settings.release
        if path is None:
            return
        with self._release_lock:
            state = _file_state(path)
            if state is None or state != self._release_file:
                self._release = read_release_state(path).after(self._release)
                self._release_file = state

    def _load(self) -> Predictor:
        each = self.settings
        slow = Timer(
            SLOW_LOAD_S,
            log.error,
            [
                "%s is still being loaded after %d s; if this does not end, replace the bundle and "
                "restart the server",
                each.bundle,
                SLOW_LOAD_S,
            ],
        )
        slow.daemon = True
        slow.start()
        try:
            predictor = Predictor.load(each.bundle, each.public_key, each.threads)
        finally:
            slow.cancel()
        self._read_release()
        if self._release is not None:
            self._release.check(predictor.bundle, str(each.bundle))
        return predictor


def _file_state(path: Path) -> _FileState | None:
    try:
        found = path.stat()
    except OSError:
        return None
    return _FileState(found.st_mtime_ns, found.st_size, found.st_ino)
