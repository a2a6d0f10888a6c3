import platform

import pytest
import torch

from xvfl.training.threads import limit_threads

CPU = torch.device("cpu")


def inside(image: bool, threads: int) -> tuple[int, bool]:
    """Return threads and oneDNN inside the context; both must be restored after it."""
    before, onednn = torch.get_num_threads(), bool(torch.backends.mkldnn.enabled)
    torch.set_num_threads(threads)
    try:
        with limit_threads(image, CPU):
            found = torch.get_num_threads(), bool(torch.backends.mkldnn.enabled)
        assert (torch.get_num_threads(), bool(torch.backends.mkldnn.enabled)) == (threads, onednn)
    finally:
        torch.set_num_threads(before)
    return found


@pytest.mark.parametrize(
    ("image", "threads", "expected"),
    [(False, 2, (1, False)), (True, 1, (1, False)), (True, 2, (2, True))],
)
def test_one_thread_on_arm_goes_without_onednn(
    image: bool, threads: int, expected: tuple[int, bool], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(platform, "machine", lambda: "aarch64")
    assert inside(image, threads) == expected


def test_elsewhere_onednn_stays(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(platform, "machine", lambda: "x86_64")
    assert inside(False, 2) == (1, True)
