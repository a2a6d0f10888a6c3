"""xvfl: vertical federated learning for parties whose rows and columns only partly overlap.

Names are imported on first use, so that the training core needs only torch and numpy.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

from xvfl.version import VERSION as __version__

if TYPE_CHECKING:
    from xvfl.config import (
        Config,
        LabelsConfig,
        LossConfig,
        NetConfig,
        PartyConfig,
        TableOptions,
        TrainConfig,
    )
    from xvfl.data.images import Images
    from xvfl.errors import (
        CertificateError,
        ConfigError,
        DataWarning,
        InputError,
        MatchingError,
        ModeError,
        PartyError,
        RunError,
        WireError,
        XVFLError,
    )
    from xvfl.estimator import XVFLClassifier
    from xvfl.methods import Federation, Method

_MODULES = {
    "xvfl.estimator": ("XVFLClassifier",),
    "xvfl.data.images": ("Images",),
    "xvfl.config": (
        "Config",
        "LabelsConfig",
        "LossConfig",
        "NetConfig",
        "PartyConfig",
        "TableOptions",
        "TrainConfig",
    ),
    "xvfl.errors": (
        "CertificateError",
        "ConfigError",
        "DataWarning",
        "InputError",
        "MatchingError",
        "ModeError",
        "PartyError",
        "RunError",
        "WireError",
        "XVFLError",
    ),
    "xvfl.methods": ("Federation", "Method"),
}
"""Public names by the module that defines them."""

_MODULE_OF = {name: module for module, names in _MODULES.items() for name in names}

__all__ = [
    "CertificateError",
    "Config",
    "ConfigError",
    "DataWarning",
    "Federation",
    "Images",
    "InputError",
    "LabelsConfig",
    "LossConfig",
    "MatchingError",
    "Method",
    "ModeError",
    "NetConfig",
    "PartyConfig",
    "PartyError",
    "RunError",
    "TableOptions",
    "TrainConfig",
    "WireError",
    "XVFLClassifier",
    "XVFLError",
    "__version__",
]


def __getattr__(name: str) -> Any:
    if name in _MODULE_OF:
        return getattr(import_module(_MODULE_OF[name]), name)
    raise AttributeError(f"module 'xvfl' has no attribute {name!r}")


def __dir__() -> list[str]:
    return __all__
