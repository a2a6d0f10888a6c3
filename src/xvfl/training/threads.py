"""CPU settings for small nets."""

import platform
from collections.abc import Iterator
from contextlib import contextmanager

import torch


@contextmanager
def limit_threads(image: bool, device: torch.device) -> Iterator[None]:
    """Compute tables with one CPU thread, and one thread on ARM without oneDNN.

    Table nets multiply matrices of a few hundred rows. A second thread gains little, and on a busy
    machine it spends its time waiting. With one thread, oneDNN's setup on ARM costs more than it
    saves, also in the backward pass of convolutions (measurements: docs/speed.md). No effect on
    other devices.
    """
    if device.type != "cpu":
        yield
        return
    threads, onednn = torch.get_num_threads(), bool(torch.backends.mkldnn.enabled)
    if not image:
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
