"""Group normalization in the input's precision, for both memory formats of images."""

import torch
from torch import Tensor, nn
from torch.nn import functional as F


class GroupNorm(nn.GroupNorm):
    """`torch.nn.GroupNorm` that keeps bf16 (statistics are float32) and channels-last tensors.

    PyTorch's GPU kernel converts channels-last tensors to contiguous ones and back in every layer.
    """

    def forward(self, x: Tensor) -> Tensor:
        """Normalize each group of channels of each image."""
        weight, bias = self.weight.to(x.dtype), self.bias.to(x.dtype)
        with torch.autocast(x.device.type, enabled=False):
            if x.is_cuda and x.is_contiguous(memory_format=torch.channels_last):
                return channels_last(x, self.num_groups, weight, bias, self.eps)
            return F.group_norm(x, self.num_groups, weight, bias, self.eps)


def channels_last(x: Tensor, groups: int, weight: Tensor, bias: Tensor, eps: float) -> Tensor:
    """Normalize channels-last images with plain operations, which the compiler fuses."""
    rows, channels, height, width = x.shape
    each = x.permute(0, 2, 3, 1).reshape(rows, height * width, groups, channels // groups).float()
    variance, mean = torch.var_mean(each, (1, 3), correction=0, keepdim=True)
    plain = ((each - mean) * torch.rsqrt(variance + eps)).view(rows, height, width, channels)
    return (plain * weight + bias).to(x.dtype).permute(0, 3, 1, 2)
