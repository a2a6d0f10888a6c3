"""A training step captured as a CUDA graph and replayed, without kernel launch overhead.

A captured step reads its inputs from static tensors. Its shapes must be fixed, and it must not
synchronize with the device. Tests compare it with the plain step.
"""

import gc
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import torch
from torch import Tensor

StepFunction = Callable[[Tensor, int | Tensor, float | Tensor], dict[str, Tensor]]
"""A step: maps row indices, step number and learning rate to the terms of the loss."""

WARM_UP = 3
"""Plain steps before capture, so that lazy initialization is done."""


class CudaGraphStep:
    """A step that runs plainly for `WARM_UP` calls, then is captured and replayed."""

    def __init__(self, index: Tensor, rate: float) -> None:
        """Allocate the static inputs; `index` is an example of the row indices."""
        self._index = torch.zeros_like(index)
        self._number = torch.zeros((), dtype=torch.long, device=index.device)
        self._rate = torch.full((), rate, device=index.device)
        self._graph: torch.cuda.CUDAGraph | None = None
        self._terms: dict[str, Tensor] = {}
        self._side = torch.cuda.Stream()  # type: ignore[no-untyped-call]
        self._done = 0

    def __call__(
        self, function: StepFunction, index: Tensor, step: int, rate: float
    ) -> dict[str, Tensor]:
        """Run one step of `function`, which must be the same in every call.

        No reference to it is stored, to avoid a reference cycle with its owner.
        """
        self._index.copy_(index)
        self._number.fill_(step)
        self._rate.fill_(rate)
        if self._done < WARM_UP:
            self._done += 1
            return self._plain(function)
        if self._graph is None:
            self._graph = torch.cuda.CUDAGraph()
            with (
                _no_garbage_collection(),
                torch.cuda.graph(self._graph, capture_error_mode="thread_local"),
            ):
                self._terms = function(self._index, self._number, self._rate)
        self._graph.replay()
        return self._terms

    def _plain(self, function: StepFunction) -> dict[str, Tensor]:
        self._side.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(self._side):
            terms = function(self._index, self._number, self._rate)
        torch.cuda.current_stream().wait_stream(self._side)
        return terms


@contextmanager
def _no_garbage_collection() -> Iterator[None]:
    """Disable garbage collection during capture: freeing an older graph would break it."""
    gc.collect()
    enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if enabled:
            gc.enable()
