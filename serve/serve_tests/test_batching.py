"""Requests that arrive together are computed as batches, with the answers of single requests."""

import asyncio
from pathlib import Path
from typing import Any

import pytest

from xvfl_serve import Predictor, read_bundle
from xvfl_serve.bundle import Bundle
from xvfl_serve.http.batching import MAX_REQUESTS, Batcher


class CountingPredictor(Predictor):
    """Counts the rows of each computation."""

    def __init__(self, bundle: Bundle) -> None:
        self.sizes: list[int] = []
        super().__init__(bundle)

    def answer(self, output: Any, encoded: Any, options: Any = None) -> list[dict[str, Any]]:
        self.sizes.append(len(encoded[0].observed))
        return super().answer(output, encoded, options)


def test_requests_of_several_turns_share_a_batch(bundles: Path) -> None:
    predictor = CountingPredictor(read_bundle(bundles / "bank.xvfl"))
    rows = [{"age": 20 + i, "balance": None if i % 3 else 100.0 * i} for i in range(40)]
    predictor.sizes = []
    expected = [predictor.predict([row])[0] for row in rows]
    assert predictor.sizes == [1] * 40
    predictor.sizes = []
    batcher, output = Batcher(), predictor.choose(None, None)

    async def request(number: int) -> list[dict[str, Any]]:
        for _ in range(number // 8):  # five groups, each one turn of the event loop later
            await asyncio.sleep(0)
        return await batcher.answer(predictor, output, predictor.encode(output, [rows[number]]))

    async def all_requests() -> list[list[dict[str, Any]]]:
        return await asyncio.gather(*map(request, range(40)))

    answers = asyncio.run(all_requests())
    assert sum(predictor.sizes) == 40 and len(predictor.sizes) <= 5
    assert max(predictor.sizes) >= MAX_REQUESTS
    for (answer,), alone in zip(answers, expected, strict=True):
        assert answer["prediction"] == alone["prediction"]
        assert answer["probabilities"] == pytest.approx(alone["probabilities"], abs=1e-6)
    predictor.sizes = []
    asyncio.run(request(0))
    assert predictor.sizes == [1], "a single request waits for no other"
