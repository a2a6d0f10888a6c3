"""A party's release.json: the number of its newest release, and whether it is revoked."""

import json
from dataclasses import dataclass
from pathlib import Path

from xvfl_serve.bundle import Bundle
from xvfl_serve.errors import BundleError


@dataclass(frozen=True)
class ReleaseState:
    """The newest release that a party has accepted from its coordinator."""

    number: int
    revoked: str | None
    """Reason of the revocation; None if the release is valid."""

    def check(self, bundle: Bundle, where: str) -> None:
        """Raise `BundleError` if the head in a bundle is revoked, replaced or not released."""
        number = bundle.manifest.get("training", {}).get("release")
        if number is None:
            raise BundleError(
                f"{where}: expected a released head, got a bundle without a release; export it "
                "from the party's folder, or leave out --release"
            )
        if self.revoked is not None:
            raise BundleError(
                f"{where}: the coordinator revoked release {number} ({self.revoked}); ask it for a "
                "new release and export it"
            )
        if number < self.number:
            raise BundleError(
                f"{where}: release {self.number} replaced release {number}; export the bundle again"
            )


def read_release_state(path: Path) -> ReleaseState:
    """Read the release.json in a party's state folder."""
    try:
        data = json.loads(path.read_text(encoding="utf-8"))
        return ReleaseState(int(data["number"]), data["revoked"])
    except OSError as error:
        raise BundleError(f"{path}: cannot be read ({error.strerror}); check --release") from error
    except (ValueError, TypeError, KeyError) as error:
        raise BundleError(
            f"{path}: expected a party's release.json ({error}); check --release"
        ) from error
