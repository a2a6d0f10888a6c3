"""Time a training step of the demo's task by threads and oneDNN; the reason for `small_kernels`.

    python benchmarks/cpu_kernels.py

Compare ratios within one run: absolute times on shared machines mean little.
"""

import itertools
import statistics
import time

import torch

from xvfl.config import LossConfig
from xvfl.experiments.demo import TRAIN, digits
from xvfl.experiments.trial import Setting, Trial
from xvfl.federation.train import Trainer

WARM, TIMED = 20, 60


def milliseconds(threads: int, onednn: bool) -> float:
    """Give the median time of a step."""
    torch.set_num_threads(threads)
    torch.backends.mkldnn.enabled = onednn
    trial = Trial(digits(), [Setting("xvfl+", 0.5, 0, loss=LossConfig(), train=TRAIN)])
    trainer = Trainer(trial.federation, trial.method, trial.rows("train"), TRAIN)
    steps = trainer.run(lambda: 0.0)
    times = []
    for _ in range(WARM + TIMED):
        started = time.perf_counter()
        next(steps)
        times.append(1000 * (time.perf_counter() - started))
    return statistics.median(times[WARM:])


def main() -> None:
    """Print a table."""
    print("threads  oneDNN  ms/step")
    for threads, onednn in itertools.product((1, torch.get_num_threads()), (True, False)):
        print(f"{threads:7}  {'on' if onednn else 'off':>6}  {milliseconds(threads, onednn):7.1f}")


if __name__ == "__main__":
    main()
