"""Predict from bundles of xvfl: numpy and ONNX Runtime, no torch; and serve them over HTTP.

Names are imported when first used: `xvfl_serve.encoding` and `xvfl_serve.row_report`, which
training uses too, need numpy alone.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from xvfl_serve.bundle import Bundle, read_bundle
    from xvfl_serve.errors import BundleError, RequestError, ServeError
    from xvfl_serve.predictor import Options, Predictor

__all__ = [
    "Bundle",
    "BundleError",
    "Options",
    "Predictor",
    "RequestError",
    "ServeError",
    "read_bundle",
]
_MODULES = {
    **dict.fromkeys(("Bundle", "read_bundle"), "bundle"),
    **dict.fromkeys(("BundleError", "RequestError", "ServeError"), "errors"),
    **dict.fromkeys(("Options", "Predictor"), "predictor"),
}


def __getattr__(name: str) -> Any:
    if name not in _MODULES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(f"{__name__}.{_MODULES[name]}"), name)
