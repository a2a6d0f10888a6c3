"""Encoders and layouts work without torch, and without what only a server needs."""

import pkgutil

import xvfl.data
from tests.processes import run_python

ENCODE = """
import sys
sys.modules.update(dict.fromkeys(["torch", "sklearn", "safetensors"]))
sys.modules.update(dict.fromkeys(["onnxruntime", "starlette", "uvicorn", "cryptography"]))
import importlib
for name in {names}:
    importlib.import_module(name)
import pandas as pd
from xvfl.config import TableOptions
from xvfl.data.encoder import TableEncoder
frame = pd.DataFrame({{"age": [20, 40], "job": ["cook", "nurse"]}})
encoder = TableEncoder.fit(frame, TableOptions(), "bank")
assert TableEncoder.from_dict(encoder.to_dict()).encode(frame).values.shape == (2, 3)
"""


def test_encoding_needs_no_torch() -> None:
    names = [f"xvfl.data.{module.name}" for module in pkgutil.iter_modules(xvfl.data.__path__)]
    assert "xvfl.data.encoder" in names
    done = run_python("-c", ENCODE.format(names=[*names, "xvfl.primitives.layout"]))
    assert done.returncode == 0, done.stderr
