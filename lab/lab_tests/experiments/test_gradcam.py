"""Grad-CAM shows what a net looks at."""

import torch
from torch import Tensor, nn

from xvfl_lab.experiments.gradcam import grad_cam


class Corner(nn.Module):
    """Sees the upper left quarter alone, twice as strongly as it is."""

    def forward(self, x: Tensor) -> Tensor:
        seen = torch.zeros_like(x)
        seen[:, :, :2, :2] = 2 * x[:, :, :2, :2]
        return seen


def images() -> Tensor:
    return torch.rand(3, 2, 4, 4, generator=torch.Generator().manual_seed(0)) + 0.1


def test_a_net_that_looks_at_one_corner_is_shown_to() -> None:
    x, net = images().requires_grad_(), Corner()
    (cam,) = grad_cam([net], lambda: net(x).mean((1, 2, 3)))
    assert cam is not None and (cam[:, :2, :2] > 0).all()
    cam[:, :2, :2] = 0
    assert not cam.any()


def test_channels_weigh_as_the_score_does_and_evidence_against_is_left_out() -> None:
    x = torch.zeros(1, 2, 2, 2, requires_grad=True)
    with torch.no_grad():
        x[0, 0, 0, 0] = x[0, 1, 1, 1] = 1.0
    net = nn.Identity()
    for sign in (1, -1):
        (cam,) = grad_cam([net], lambda s=sign: s * (net(x)[:, 0] - net(x)[:, 1]).sum((1, 2)))
        expected = torch.zeros(1, 2, 2)
        expected[0, (1 - sign) // 2, (1 - sign) // 2] = 1.0
        torch.testing.assert_close(cam, expected)


def test_each_row_has_its_own_map_and_a_part_that_did_not_run_has_none() -> None:
    x, net, idle = images().requires_grad_(), nn.Conv2d(2, 3, 3, padding=1), nn.Identity()
    together = grad_cam([net, idle], lambda: net(x).relu().square().mean((1, 2, 3)))
    alone = grad_cam([net], lambda: net(x[1:2]).relu().square().mean((1, 2, 3)))
    assert together[1] is None and together[0] is not None and alone[0] is not None
    torch.testing.assert_close(together[0][1:2], alone[0])


def test_nothing_is_left_behind() -> None:
    x, net = images(), nn.Conv2d(2, 3, 1)
    grad_cam([net], lambda: net(x).mean((1, 2, 3)))
    assert not net._forward_hooks and net.weight.grad is None
