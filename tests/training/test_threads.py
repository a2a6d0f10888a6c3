import platform

import pytest
import torch

from xvfl.primitives.layout import Feature, Layout
from xvfl.training.threads import limit_threads

CPU = torch.device("cpu")
TABLE, STRIP = Layout((Feature("a", "numeric", 1),)), Layout((), (3, 4, 4))


def inside(layout: Layout, threads: int) -> tuple[int, bool]:
    """Give threads and oneDNN as work on the layout has them; both must be put back."""
    before, onednn = torch.get_num_threads(), bool(torch.backends.mkldnn.enabled)
    torch.set_num_threads(threads)
    try:
        with limit_threads({"a": layout}, CPU):
            found = torch.get_num_threads(), bool(torch.backends.mkldnn.enabled)
        assert (torch.get_num_threads(), bool(torch.backends.mkldnn.enabled)) == (threads, onednn)
    finally:
        torch.set_num_threads(before)
    return found


@pytest.mark.parametrize(
    ("layout", "threads", "expected"),
    [(TABLE, 2, (1, False)), (STRIP, 1, (1, False)), (STRIP, 2, (2, True))],
)
def test_one_thread_on_arm_goes_without_onednn(
    layout: Layout, threads: int, expected: tuple[int, bool], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(platform, "machine", lambda: "aarch64")
    assert inside(layout, threads) == expected


def test_elsewhere_onednn_stays(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(platform, "machine", lambda: "x86_64")
    assert inside(TABLE, 2) == (1, True)
