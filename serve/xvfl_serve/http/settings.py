"""Settings of the server."""

from dataclasses import dataclass
from pathlib import Path

from xvfl_serve.http.access import Access


@dataclass(frozen=True)
class Settings:
    """What a server serves, and its limits.

    Parameters
    ----------
    bundle : Path
        The bundle. If the file is replaced, the new one is loaded.
    name : str
        Name of the model in the Open Inference Protocol.
    public_key : Path, optional
        The key that must have signed the bundle.
    access : Access
        Who may send requests; by default this machine, without a token.
    max_rows : int, default=10000
        Largest number of rows of a request.
    max_bytes : int, default=16777216
        Largest body of a request.
    max_cells : int, default=2000000
        Largest number of values of a request, and of its answer. A value takes about 100 bytes.
    max_seconds : float, default=30.0
        Longest time to receive and to answer a request.
    poll_seconds : float, default=1.0
        How often the bundle's file is checked for a replacement.
    threads : int, default=1
        Threads of the nets.
    release : Path, optional
        The party's release.json. A bundle whose head is revoked or replaced is rejected.
    """

    bundle: Path
    name: str
    public_key: Path | None = None
    access: Access = Access("127.0.0.1")
    max_rows: int = 10_000
    max_bytes: int = 16 * 2**20
    max_cells: int = 2_000_000
    max_seconds: float = 30.0
    poll_seconds: float = 1.0
    threads: int = 1
    release: Path | None = None
