"""How a party's net computes on a GPU: its precision, its images' order in memory, its kernels."""

import shutil
from importlib.util import find_spec

import torch

from xvfl.config import TrainConfig
from xvfl.nets.party_net import PartyNet

SHAPES = 64
"""How many shapes of batches a net's forward pass is compiled for, in one process."""


def configure_precision(net: PartyNet, config: TrainConfig) -> None:
    """Make a net compute as the configuration says; nothing changes on a CPU.

    In bf16, image nets also keep channels last and, where there is a compiler, have the operations
    between convolutions fused into few kernels for the fixed shapes of training.
    """
    if config.precision == "float32" or not next(net.parameters()).is_cuda:
        return
    net.bf16 = True
    if net.layout.image is None or not _can_compile():
        return
    net.to(memory_format=torch.channels_last)  # type: ignore[call-overload]
    torch.backends.cudnn.benchmark = True
    torch._dynamo.config.recompile_limit = SHAPES
    net.bottom.compile(dynamic=False)
    net.completer.compile(dynamic=False)


def _can_compile() -> bool:
    compiler = shutil.which("gcc") or shutil.which("cc") or shutil.which("clang")
    return find_spec("triton") is not None and compiler is not None
