"""Random shifts of training images."""

import torch

from xvfl.primitives.augment import shift_images
from xvfl.primitives.layout import Layout
from xvfl.primitives.rows import PartyTable

HEIGHT, WIDTH = 16, 9


def images(count: int) -> PartyTable:
    """Make random images, some pixels unobserved."""
    generator = torch.Generator().manual_seed(0)
    values = torch.rand(count, 3, HEIGHT, WIDTH, generator=generator)
    observed = torch.rand(count, HEIGHT * WIDTH, generator=generator) < 0.7
    codes = torch.zeros(count, 0, dtype=torch.long)
    return PartyTable(Layout(image=(3, HEIGHT, WIDTH)), values, codes, observed)


def test_each_pixel_comes_from_its_shifted_place() -> None:
    rows = images(40)
    uniform = torch.rand(40, 2, generator=torch.Generator().manual_seed(1))
    shifted = shift_images(rows, uniform, 0.25)
    shifts = set()
    for row in range(40):
        down, right = int(uniform[row, 0] * 9) - 4, int(uniform[row, 1] * 5) - 2
        shifts.add((down, right))
        for y in range(HEIGHT):
            for x in range(WIDTH):
                from_y, from_x = min(max(y + down, 0), 15), min(max(x + right, 0), 8)
                assert (shifted.values[row, :, y, x] == rows.values[row, :, from_y, from_x]).all()
                known = shifted.observed[row, y * WIDTH + x]
                assert known == rows.observed[row, from_y * WIDTH + from_x]
    assert len(shifts) > 20


def test_a_share_below_one_pixel_changes_nothing() -> None:
    rows = images(5)
    shifted = shift_images(rows, torch.rand(5, 2), 0.06)
    assert shifted.values.equal(rows.values) and shifted.observed.equal(rows.observed)
