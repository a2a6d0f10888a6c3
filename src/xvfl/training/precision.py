"""Precision, memory format and compilation of a party's net on a GPU."""

import shutil
from importlib.util import find_spec

import torch

from xvfl.config import TrainConfig
from xvfl.nets.party_net import PartyNet

MAX_COMPILED_SHAPES = 64
"""Batch shapes for which a net's forward pass is compiled, per process."""


def configure_precision(net: PartyNet, config: TrainConfig) -> None:
    """Configure the precision of a net on a GPU; no effect on a CPU.

    With bf16, image nets also use the channels-last memory format. If a compiler is available,
    they are compiled for the fixed shapes of training.
    """
    if config.precision == "float32" or not next(net.parameters()).is_cuda:
        return
    net.bf16 = True
    can_compile = find_spec("triton") and any(map(shutil.which, ("gcc", "cc", "clang")))
    if net.layout.image is None or not can_compile:
        return
    net.to(memory_format=torch.channels_last)  # type: ignore[call-overload]
    torch.backends.cudnn.benchmark = True
    torch._dynamo.config.recompile_limit = MAX_COMPILED_SHAPES
    net.bottom.compile(dynamic=False)
    net.completer.compile(dynamic=False)
