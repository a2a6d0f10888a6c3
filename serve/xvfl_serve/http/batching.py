"""Small requests that arrive at the same time are computed as one batch.

The first request of a batch schedules its computation for the next turn of the event loop. Until
then, requests that have arrived meanwhile join it; nobody waits for a request that may come.
"""

import asyncio
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from xvfl_serve.encoding.encoders import EncodedRows
from xvfl_serve.predictor import Predictor
from xvfl_serve.row_report import Output

Answers = list[dict[str, Any]]


@dataclass
class _Batch:
    predictor: Predictor
    output: Output
    requests: list[tuple[list[EncodedRows], "asyncio.Future[Answers]"]] = field(
        default_factory=list
    )


class Batcher:
    """Collects the requests of one turn of the event loop."""

    def __init__(self) -> None:
        self._batches: dict[tuple[str, str, str], _Batch] = {}

    async def answer(
        self, predictor: Predictor, output: Output, encoded: list[EncodedRows]
    ) -> Answers:
        """Predict encoded rows together with those of other requests."""
        loop = asyncio.get_running_loop()
        key = predictor.bundle.digest, output.mode, output.party
        if key not in self._batches:
            self._batches[key] = _Batch(predictor, output)
            loop.call_soon(self._compute, key)
        future: asyncio.Future[Answers] = loop.create_future()
        self._batches[key].requests.append((encoded, future))
        return await future

    def _compute(self, key: tuple[str, str, str]) -> None:
        batch = self._batches.pop(key)
        parts = [encoded for encoded, _ in batch.requests]
        try:
            answers = batch.predictor.answer(batch.output, join_rows(parts))
        except Exception as error:
            for _, future in batch.requests:
                if not future.done():
                    future.set_exception(error)
            return
        start = 0
        for encoded, future in batch.requests:
            stop = start + len(encoded[0].observed)
            if not future.done():
                future.set_result(answers[start:stop])
            start = stop


def join_rows(parts: list[list[EncodedRows]]) -> list[EncodedRows]:
    """Concatenate the rows of several requests, party by party."""
    if len(parts) == 1:
        return parts[0]
    return [
        EncodedRows(
            np.concatenate([each.values for each in rows]),
            np.concatenate([each.codes for each in rows]),
            np.concatenate([each.observed for each in rows]),
            [notes for each in rows for notes in each.notes],
        )
        for rows in zip(*parts, strict=True)
    ]
