"""How small nets compute on a CPU."""

import platform
from collections.abc import Iterator, Mapping
from contextlib import contextmanager

import torch

from xvfl.primitives.layout import Layout


@contextmanager
def limit_threads(layouts: Mapping[str, Layout], device: torch.device) -> Iterator[None]:
    """Compute tables with one thread; whatever has one thread on ARM, without oneDNN.

    Table nets multiply matrices of some hundred rows. A second thread gains them little and, on a
    busy machine, spends its time waiting. With one thread oneDNN's set-up on ARM costs more than it
    saves, and so does its way back through convolutions (docs/speed.md has the measurements).
    """
    if device.type != "cpu":
        yield
        return
    threads, onednn = torch.get_num_threads(), bool(torch.backends.mkldnn.enabled)
    if all(layout.image is None for layout in layouts.values()):
        torch.set_num_threads(1)
    if platform.machine() in ("aarch64", "arm64") and torch.get_num_threads() == 1:
        _set_onednn(False)
    try:
        yield
    finally:
        torch.set_num_threads(threads)
        _set_onednn(onednn)


def _set_onednn(enabled: bool) -> None:
    torch.backends.mkldnn.enabled = enabled  # type: ignore[assignment]
