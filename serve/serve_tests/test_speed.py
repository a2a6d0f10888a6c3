"""One row by ONNX against one row by torch, in the same run."""

import time
from collections.abc import Callable

import pandas as pd
import pytest
import torch

from serve_tests.models import train
from xvfl.data.encoded import Encoded
from xvfl.model.export.bundle_export import build_bundle
from xvfl.training.predict import logits
from xvfl_serve.bundle import unpack
from xvfl_serve.predictor import Predictor

REPEATS = 100


def seconds(function: Callable[[], object]) -> float:
    start = time.perf_counter()
    function()
    return time.perf_counter() - start


@pytest.mark.slow
def test_one_row_is_faster() -> None:
    trained = train()
    model, predictor = trained.model, Predictor(unpack(build_bundle(trained.model)))
    frame = trained.sources["left"]
    assert isinstance(frame, pd.DataFrame)
    row, one = trained.request_rows("left")[0], frame.iloc[:1]
    output = predictor.choose("local", "left")
    (rows,) = predictor.encode(output, [row])
    encoded = {"left": Encoded(["a"], rows.values, rows.codes, rows.observed, [""])}
    method = model.method.select_parties([0])

    def torch_nets() -> torch.Tensor:
        return logits(method, model.rows_of(encoded, ["a"])[1], torch_rows, "local", 0)

    torch_rows = model.rows_of(encoded, ["a"])[0]
    pairs = {
        "request": (
            lambda: model.predict({"left": one}, "local", "left"),
            lambda: predictor.predict([row], "local", "left"),
        ),
        "nets": (torch_nets, lambda: predictor.run(output.graph, ["left"], [rows], ["logits"])),
    }
    for name, (by_torch, by_onnx) in pairs.items():
        by_torch()
        # In turns, so that other work on the machine affects both alike.
        times = [(seconds(by_torch), seconds(by_onnx)) for _ in range(REPEATS)]
        slow, fast = (min(each) for each in zip(*times, strict=True))
        print(f"one row, {name}: torch {slow * 1e3:.2f} ms, ONNX {fast * 1e3:.2f} ms")
        # Four to twelve times on an idle machine.
        assert slow >= 2 * fast
