"""Notice parties whose values leave their own history, and decide what to do about them."""

from typing import Literal

AnomalyPolicy = Literal["warn", "clip", "leave_out"]
