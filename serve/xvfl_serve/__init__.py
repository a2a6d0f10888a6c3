"""Predict from bundles of xvfl: numpy and ONNX Runtime, no torch; and serve them over HTTP."""

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
