"""Small requests that arrive at the same time are computed as one batch.

The first request opens a batch. It is computed when it is full, or when no further request has
joined it in the last turns of the event loop: while requests keep arriving, a larger batch takes
hardly longer than a small one; if none arrives, nobody waits.
"""

import asyncio
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from xvfl_serve.encoding.encoders import EncodedRows
from xvfl_serve.predictor import Predictor
from xvfl_serve.row_report import Output

Answers = list[dict[str, Any]]
Key = tuple[str, str, str]
"""Bundle, mode and party."""
MAX_REQUESTS = 16
"""A batch of so many requests is computed at once."""
QUIET_TURNS = 2
"""A batch is computed if no request joins it in so many turns of the event loop."""


@dataclass
class _Batch:
    predictor: Predictor
    output: Output
    requests: list[tuple[list[EncodedRows], "asyncio.Future[Answers]"]] = field(
        default_factory=list
    )


class Batcher:
    """Collects requests that arrive in consecutive turns of the event loop."""

    def __init__(self) -> None:
        self._batches: dict[Key, _Batch] = {}

    async def answer(
        self, predictor: Predictor, output: Output, encoded: list[EncodedRows]
    ) -> Answers:
        """Predict encoded rows together with those of other requests."""
        loop = asyncio.get_running_loop()
        key = predictor.bundle.digest, output.mode, output.party
        if key not in self._batches:
            self._batches[key] = _Batch(predictor, output)
            loop.call_soon(self._collect, loop, key, 0, QUIET_TURNS)
        future: asyncio.Future[Answers] = loop.create_future()
        self._batches[key].requests.append((encoded, future))
        return await future

    def _collect(self, loop: asyncio.AbstractEventLoop, key: Key, before: int, turns: int) -> None:
        """Compute a batch that is full, or that did not grow in the last turns."""
        size = len(self._batches[key].requests)
        turns = QUIET_TURNS if size > before else turns - 1
        if size >= MAX_REQUESTS or not turns:
            self._compute(key)
        else:
            loop.call_soon(self._collect, loop, key, size, turns)

    def _compute(self, key: Key) -> None:
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
