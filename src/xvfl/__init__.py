"""xvfl: vertical federated learning for parties whose rows and columns only partly overlap.

Names that need other packages are imported on first use, so that the training core needs only torch
and numpy.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

from xvfl.config import (
    Config,
    LabelsConfig,
    LossConfig,
    NetConfig,
    PartyConfig,
    PrivacyConfig,
    TableOptions,
    TrainConfig,
)
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
from xvfl.version import VERSION as __version__

if TYPE_CHECKING:
    from xvfl.data.images import Images
    from xvfl.dataset.inspection import describe
    from xvfl.estimator import XVFLClassifier, XVFLRegressor, scorer
    from xvfl.methods import Federation, Method

_MODULE_OF = {
    "Federation": "xvfl.methods",
    "Images": "xvfl.data.images",
    "Method": "xvfl.methods",
    "XVFLClassifier": "xvfl.estimator",
    "XVFLRegressor": "xvfl.estimator",
    "describe": "xvfl.dataset.inspection",
    "scorer": "xvfl.estimator",
}
"""Names that are imported on first use."""

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
    "PrivacyConfig",
    "RunError",
    "TableOptions",
    "TrainConfig",
    "WireError",
    "XVFLClassifier",
    "XVFLError",
    "XVFLRegressor",
    "__version__",
    "describe",
    "scorer",
]


def __getattr__(name: str) -> Any:
    if name in _MODULE_OF:
        return getattr(import_module(_MODULE_OF[name]), name)
    raise AttributeError(f"module 'xvfl' has no attribute {name!r}")


def __dir__() -> list[str]:
    return __all__
