"""A training step captured once as a CUDA graph and replayed: no waiting for the launcher.

A captured step reads its inputs from fixed places. Everything in it must have fixed shapes and
must not wait for the device; the plain step stays and is what this one is compared with.
"""

import gc
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import torch
from torch import Tensor

Learn = Callable[[Tensor, int | Tensor, float | Tensor], dict[str, Tensor]]
"""A step: the rows' index, the step's number and the learning rate to the terms of the loss."""

WARM_UP = 3
"""Steps run plainly before capture, so that everything lazily made is there."""


class CudaGraphStep:
    """A step that runs plainly for a while, then is captured and replayed."""

    def __init__(self, index: Tensor, rate: float) -> None:
        """Prepare the fixed inputs; `index` is an example of the rows' index."""
        self._index = torch.zeros_like(index)
        self._number = torch.zeros((), dtype=torch.long, device=index.device)
        self._rate = torch.full((), rate, device=index.device)
        self._graph: torch.cuda.CUDAGraph | None = None
        self._terms: dict[str, Tensor] = {}
        self._side = torch.cuda.Stream()  # type: ignore[no-untyped-call]
        self._done = 0

    def __call__(self, learn: Learn, index: Tensor, step: int, rate: float) -> dict[str, Tensor]:
        """Make one step of `learn`, the same each time.

        It is not kept: whoever owns it owns this too, and both should go at once.
        """
        self._index.copy_(index)
        self._number.fill_(step)
        self._rate.fill_(rate)
        if self._done < WARM_UP:
            self._done += 1
            return self._plain(learn)
        if self._graph is None:
            self._graph = torch.cuda.CUDAGraph()
            with _uncollected(), torch.cuda.graph(self._graph, capture_error_mode="thread_local"):
                self._terms = learn(self._index, self._number, self._rate)
        self._graph.replay()
        return self._terms

    def _plain(self, learn: Learn) -> dict[str, Tensor]:
        self._side.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(self._side):
            terms = learn(self._index, self._number, self._rate)
        torch.cuda.current_stream().wait_stream(self._side)
        return terms


@contextmanager
def _uncollected() -> Iterator[None]:
    """Keep the collector out of a capture: to free an older graph in one would break it."""
    gc.collect()
    collects = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if collects:
            gc.enable()
