"""Time a training step by threads and oneDNN; the reason for `limit_threads`.

For the scanned digits, and for strips of 16 × 8 pixels with the nets of `--quick`.

    python lab/benchmarks/cpu_kernels.py

Compare ratios within one run: absolute times on shared machines mean little.
"""

import itertools
import statistics
import time

import torch

from xvfl.config import LossConfig, NetConfig, TrainConfig
from xvfl.training.loop import Trainer
from xvfl_lab.bench.gpu import random_images
from xvfl_lab.bench.shapes import config, steps
from xvfl_lab.datasets.digits import digits
from xvfl_lab.datasets.image_sets import half_resolution
from xvfl_lab.experiments.figures import SMALL
from xvfl_lab.experiments.stacked_runs import RunConfig, StackedRuns
from xvfl_lab.task import Task

WARM, TIMED = 2, 15
TRAIN = TrainConfig(epochs=40, batch_size=128, learning_rate=5e-3, device="cpu")


def table() -> tuple[Task, NetConfig, TrainConfig]:
    """Return the scanned digits with the default nets."""
    return digits(), NetConfig(), TRAIN


def strips() -> tuple[Task, NetConfig, TrainConfig]:
    """Return images of the size of `xvfl-lab reproduce --quick`."""
    return half_resolution(random_images(400)), SMALL, config(50)


def milliseconds(task: Task, net: NetConfig, train: TrainConfig, onednn: bool) -> float:
    """Return the median time of a step in milliseconds."""
    torch.backends.mkldnn.enabled = onednn  # type: ignore[assignment]
    stack = StackedRuns(task, [RunConfig("xvfl+", 0.5, 0, net=net, loss=LossConfig(), train=train)])
    step = steps(Trainer(stack.federation, stack.method, stack.rows("train"), stack.options.train))
    times = []
    for _ in range(WARM + TIMED):
        started = time.perf_counter()
        next(step)
        times.append(1000 * (time.perf_counter() - started))
    return statistics.median(times[WARM:])


def main() -> None:
    """Print a table."""
    cores = torch.get_num_threads()
    print("        threads  oneDNN  ms/step")
    for make, threads, onednn in itertools.product((table, strips), (1, cores), (True, False)):
        torch.set_num_threads(threads)
        took = milliseconds(*make(), onednn)
        print(f"{make.__name__:6}  {threads:7}  {'on' if onednn else 'off':>6}  {took:7.1f}")


if __name__ == "__main__":
    main()
