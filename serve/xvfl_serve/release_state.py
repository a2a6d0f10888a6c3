"""A party's release.json: its newest release, and which releases the coordinator has revoked."""

from dataclasses import dataclass
from pathlib import Path
from typing import Any

from xvfl_serve.bundle import Bundle
from xvfl_serve.errors import BundleError
from xvfl_serve.json_size import load_json

MAX_BYTES = 2**20


@dataclass(frozen=True)
class Revocation:
    """The newest revocation; all releases before it may not be used any more."""

    number: int
    reason: str


@dataclass(frozen=True)
class ReleaseState:
    """The newest release that a party has accepted from its coordinator."""

    number: int
    revocation: Revocation | None = None
    """None if the coordinator has revoked nothing."""

    @classmethod
    def from_dict(cls, data: dict[str, Any]) -> "ReleaseState":
        """Build from the contents of release.json."""
        number, last = _number(data["number"]), data.get("last_revocation")
        if data["revoked"] is not None:
            return cls(number, Revocation(number, str(data["revoked"])))
        if last is None:
            return cls(number)
        return cls(number, Revocation(_number(last["number"]), str(last["reason"])))

    def revoked(self, bundle: Bundle, where: str) -> str:
        """Return why the head in a bundle may not be used any more; empty if it may."""
        number, last = _release_of(bundle, where), self.revocation
        if last is None or number > last.number:
            return ""
        return (
            f"{where}: the coordinator revoked release {number} ({last.reason}); ask it for a new "
            "release and export it"
        )

    def check(self, bundle: Bundle, where: str) -> None:
        """Raise `BundleError` if the head in a bundle is revoked, replaced or not released."""
        reason = self.revoked(bundle, where)
        if reason:
            raise BundleError(reason)
        number = _release_of(bundle, where)
        if number < self.number:
            raise BundleError(
                f"{where}: release {self.number} replaced release {number}; export the bundle again"
            )

    def after(self, before: "ReleaseState | None") -> "ReleaseState":
        """Keep the newest revocation: what was revoked before stays revoked."""
        known = [each.revocation for each in (self, before) if each and each.revocation]
        return ReleaseState(self.number, max(known, key=lambda each: each.number, default=None))


def read_release_state(path: Path) -> ReleaseState:
    """Read the release.json in a party's state folder."""
    try:
        with path.open("rb") as file:
            text = file.read(MAX_BYTES + 1)
        if len(text) > MAX_BYTES:
            raise ValueError(f"more than {MAX_BYTES} bytes")
        return ReleaseState.from_dict(load_json(text, 1000, 8))
    except OSError as error:
        raise BundleError(f"{path}: cannot be read ({error.strerror}); check --release") from error
    except (ValueError, TypeError, KeyError) as error:
        raise BundleError(
            f"{path}: expected a party's release.json ({error}); check --release"
        ) from error


def _release_of(bundle: Bundle, where: str) -> int:
    number = bundle.manifest.get("training", {}).get("release")
    if number is None:
        raise BundleError(
            f"{where}: expected a released head, got a bundle without a release; export it "
            "from the party's folder, or leave out --release"
        )
    return _number(number)


def _number(value: Any) -> int:
    if not isinstance(value, int) or isinstance(value, bool):
        raise BundleError(f"expected an integer as release number, got {str(value)[:50]!r}")
    return value
