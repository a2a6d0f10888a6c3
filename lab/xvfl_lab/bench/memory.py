"""Peak memory of training steps, each contender in a process of its own."""

import resource
import sys
from concurrent.futures import ProcessPoolExecutor
from contextlib import suppress
from multiprocessing import get_context
from pathlib import Path

import torch

from xvfl_lab.bench.shapes import Shape, SyntheticRows, steps

STEPS = 5
CONTENDERS = ("xvfl", "reference", "xvfl+", "vanilla")


def peak(contender: str, shape: Shape) -> float:
    """Return by how many MiB some steps raise the peak memory of a new process."""
    with ProcessPoolExecutor(1, get_context("spawn")) as pool:
        return pool.submit(_peak_increase, contender, shape).result()


def _peak_increase(contender: str, shape: Shape) -> float:
    torch.set_num_threads(1)
    synthetic = SyntheticRows.of(shape)
    training = (
        synthetic.train_reference()
        if contender == "reference"
        else steps(synthetic.trainer(contender))
    )
    _reset_peak()
    before = _peak()
    for _ in range(STEPS):
        next(training)
    return _peak() - before


def _reset_peak() -> None:
    """Reset the peak; without effect where the system does not allow it."""
    with suppress(OSError):
        Path("/proc/self/clear_refs").write_text("5")


def _peak() -> float:
    """Return the peak memory of this process since the reset, in MiB."""
    unit = 1 if sys.platform == "darwin" else 1024
    with suppress(OSError):
        for line in Path("/proc/self/status").read_text().splitlines():
            if line.startswith("VmHWM:"):
                return int(line.split()[1]) / 1024
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * unit / 2**20
