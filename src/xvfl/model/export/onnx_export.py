"""Write a prediction graph as ONNX. Needs the package onnx."""

import io
import warnings
from collections.abc import Sequence

import onnx
import torch
from torch import Tensor

from xvfl.model.export.prediction_graph import PredictionGraph
from xvfl.primitives.layout import Layout

OPSET = 18
EXAMPLE_ROWS = 5
"""Rows of the example with which a graph is traced."""
ROWS = "rows"
"""Name of the dimension that is any number of rows."""


def to_onnx(graph: PredictionGraph, numbers: Sequence[int], outputs: Sequence[str]) -> bytes:
    """Trace a graph; its inputs are named by the `numbers` of its parties."""
    names, examples = [], []
    for layout, number in zip(graph.layouts, numbers, strict=True):
        for kind, example in _examples(layout).items():
            names.append(f"p{number}.{kind}")
            examples.append(example)
    buffer = io.BytesIO()
    with torch.no_grad(), warnings.catch_warnings():
        # Torch recommends its newer exporter, which takes fifty times as long; and its tracer
        # warns of every size that is fixed.
        warnings.simplefilter("ignore")
        torch.onnx.export(
            graph,
            tuple(examples),
            buffer,  # type: ignore[arg-type]
            input_names=names,
            output_names=list(outputs),
            opset_version=OPSET,
            dynamic_axes={name: {0: ROWS} for name in (*names, *outputs)},
            dynamo=False,
        )
    model = onnx.load_model_from_string(buffer.getvalue())
    for node in model.graph.node:
        # Where in this machine's sources the node was traced.
        node.doc_string = ""
    data: bytes = model.SerializeToString(deterministic=True)
    return data


def _examples(layout: Layout) -> dict[str, Tensor]:
    n = EXAMPLE_ROWS
    shape = layout.image or (layout.dense,)
    inputs = {
        "values": torch.rand(n, *shape),
        "observed": torch.ones(n, layout.raw, dtype=torch.bool),
    }
    if layout.hashed:
        inputs["codes"] = torch.zeros(n, len(layout.hashed), dtype=torch.long)
    return inputs
