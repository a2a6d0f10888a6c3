"""xvfl: vertical federated learning for parties whose rows and columns only partly overlap.

The names below load on first use, so that the training core imports with torch and numpy alone.
"""

import os
from importlib import import_module
from typing import Any

from xvfl.version import VERSION as __version__

# Torch's allocator on ARM hands freed memory back after 10 ms, and every training step would ask
# for its gradients' pages anew: an eighth of a step. Read when torch is first imported.
os.environ.setdefault("MIMALLOC_PURGE_DELAY", "10000")

__all__ = [
    "DataWarning",
    "Images",
    "TableOptions",
    "XVFLClassifier",
    "XVFLError",
    "__version__",
]

_HOMES = {
    "DataWarning": "xvfl.errors",
    "Images": "xvfl.data.encoder",
    "TableOptions": "xvfl.config",
    "XVFLClassifier": "xvfl.estimator",
    "XVFLError": "xvfl.errors",
}


def __getattr__(name: str) -> Any:
    if name in _HOMES:
        return getattr(import_module(_HOMES[name]), name)
    raise AttributeError(f"module 'xvfl' has no attribute {name!r}")


def __dir__() -> list[str]:
    return __all__
