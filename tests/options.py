"""Resolved options for tests that build nets, methods and trainers directly."""

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from xvfl.config import NO_PROTECTION, LossConfig, NetConfig, PrivacyConfig, TrainConfig

if TYPE_CHECKING:
    from xvfl.options import Options


def resolved(
    net: NetConfig | None = None,
    loss: LossConfig | None = None,
    train: TrainConfig | None = None,
    privacy: PrivacyConfig = NO_PROTECTION,
    federated: bool = True,
    image: bool = False,
    parties: int = 2,
    rows: int = 0,
    numbers: int = 0,
    custom_nets: bool = False,
) -> "Options":
    """Resolve options; by default of two tables in a federation without protection."""
    # Imported here: `scripts/version` runs tests with older versions, which have no such module.
    from xvfl.options import resolve_options

    return resolve_options(
        net or NetConfig(),
        loss or LossConfig(),
        train or TrainConfig(),
        privacy,
        federated=federated,
        image=image,
        parties=parties,
        rows=rows,
        numbers=numbers,
        custom_nets=custom_nets,
    )


def by_section(options: Mapping[str, Any]) -> dict[str, Any]:
    """Move the options of an estimator that are no parameters into `net`, `loss` and `train`."""
    from xvfl import XVFLClassifier
    from xvfl.estimator.base_estimator import MOVED

    own, sorted_options = XVFLClassifier().get_params(deep=False), dict[str, Any]()
    for name, value in options.items():
        if name in own or name not in MOVED:
            sorted_options[name] = value
        else:
            sorted_options.setdefault(MOVED[name], {})[name] = value
    return sorted_options
