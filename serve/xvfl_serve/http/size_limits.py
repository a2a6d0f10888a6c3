"""Size limits of one request, and of all requests in progress."""

import asyncio
import math
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager, contextmanager
from dataclasses import dataclass

from xvfl_serve.encoding.encoders import Encoder, ImageRows
from xvfl_serve.errors import RequestError
from xvfl_serve.http.settings import Settings
from xvfl_serve.json_size import FIELD_CELLS, MIN_DEPTH, OBJECT_CELLS, measure_json
from xvfl_serve.predictor import Predictor

ENVELOPE = 1000
"""Cells of a request besides its rows: field names, mode, ids."""
EXTRA_COLUMNS = 64
"""Columns of an upload besides those of the model, such as ids."""
ANSWER_CELLS = 16
"""An answer takes the memory of so many cells, besides its probabilities."""
SMALL = 20_000
"""Requests of fewer cells need not wait for others."""
SMALL_TOTAL = 25 * SMALL
"""Cells of all such requests in progress."""
CELL_BYTES = 11
"""Texts of so many bytes take the memory of a cell: up to 4 bytes a character, twice."""
BODIES = 4
"""Bodies of the largest size that may be received at the same time."""


@dataclass(frozen=True)
class SizeLimits:
    """Limits of a request, checked before its body is decoded.

    A cell is a value of a row, about 100 bytes once it is decoded; a list counts as one, an object
    as several.
    """

    rows: int
    cells: int
    text_bytes: int
    """Bytes of all texts of an upload, which compression and dictionaries multiply."""
    columns: int = EXTRA_COLUMNS
    depth: int = MIN_DEPTH
    answer_cells: int = ANSWER_CELLS
    """Cells of each answer."""
    completed_cells: int = 0
    """Cells of each answer's completed features."""
    max_cells: int = 0
    """Largest `cells` of any model."""
    seconds: float = 30.0

    @classmethod
    def of_model(cls, settings: Settings, predictor: Predictor) -> "SizeLimits":
        """Derive the limits from the settings and the columns of a model."""
        encoders = list(predictor.encoders.values())
        row = OBJECT_CELLS + sum(_row_cells(each) for each in encoders)
        dimensions = max(len(getattr(each, "own_shape", ())) for each in encoders)
        # In the Open Inference Protocol, each cell has a flag.
        cells = settings.max_rows * 2 * row + ENVELOPE
        return cls(
            settings.max_rows,
            min(settings.max_cells, cells),
            settings.max_bytes,
            EXTRA_COLUMNS + sum(len(_names(each)) for each in encoders),
            MIN_DEPTH + dimensions,
            ANSWER_CELLS + len(predictor.task.classes),
            row,
            settings.max_cells,
            settings.max_seconds,
        )

    @classmethod
    def of_ids(cls, max_rows: int, max_bytes: int) -> "SizeLimits":
        """Return the limits of a list of ids."""
        return cls(max_rows, 2 * max_rows + ENVELOPE, max_bytes)

    def check_json(self, body: bytes) -> int:
        """Reject JSON that is nested too deeply or too large; return its memory in cells."""
        size = measure_json(body)
        if size.depth > self.depth:
            raise RequestError(
                f"expected JSON, but it is nested too deeply: expected at most {self.depth} lists "
                f"and objects within each other, got {size.depth}",
                status=400,
            )
        return max(self.check_cells(size.cells), len(body) // CELL_BYTES)

    def check_cells(self, count: int) -> int:
        """Reject too many cells; return their number."""
        if count > self.cells:
            raise RequestError(
                f"rows: expected at most {self.cells} values, got {count} or more; send the rows "
                "in several requests",
                "rows",
                status=413,
            )
        return count

    def check_columns(self, count: int) -> None:
        """Reject too many columns of an upload."""
        if count > self.columns:
            raise RequestError(
                f"expected at most {self.columns} columns, those of the model and {EXTRA_COLUMNS} "
                f"others, got {count}; leave the others out",
                status=413,
            )

    def check_answers(self, rows: int, completed: bool) -> int:
        """Reject rows whose answers are too large together; return the cells of the answers."""
        each = self.answer_cells + (self.completed_cells if completed else 0)
        if rows * each > self.max_cells and rows > 1:
            raise RequestError(
                f"rows: expected at most {max(1, self.max_cells // each)} rows with answers of "
                f"this size, got {rows}; send them in several requests",
                "rows",
                status=413,
            )
        return rows * each


class CellSemaphore:
    """A weighted semaphore for the cells of large requests."""

    def __init__(self, cells: int, seconds: float) -> None:
        self.cells, self._seconds, self._held, self._small = cells, seconds, 0, 0
        self._turn, self._freed = asyncio.Lock(), asyncio.Event()

    @asynccontextmanager
    async def hold(self, cells: int) -> AsyncIterator[None]:
        """Acquire cells, in the order of the calls; small requests do not wait."""
        if cells <= SMALL:
            if self._small + cells > SMALL_TOTAL:
                raise _busy()
            self._small += cells
            try:
                yield
            finally:
                self._small -= cells
            return
        cells = min(cells, self.cells)
        try:
            async with asyncio.timeout(self._seconds), self._turn:
                while self._held + cells > self.cells:
                    self._freed.clear()
                    await self._freed.wait()
                self._held += cells
        except TimeoutError as error:
            raise _busy() from error
        try:
            yield
        finally:
            self._held -= cells
            self._freed.set()


class Admission:
    """Bounds what all requests in progress hold: bytes received, cells decoded and answered.

    A request acquires the cells of its answers while it holds those of its rows, never the reverse,
    so that no two wait for each other.
    """

    def __init__(self, max_bytes: int, max_cells: int, max_seconds: float) -> None:
        self.rows = CellSemaphore(max_cells, max_seconds)
        self.answers = CellSemaphore(max_cells, max_seconds)
        self._bytes, self._held_bytes = BODIES * max_bytes, 0

    @contextmanager
    def count_bytes(self) -> Iterator[Callable[[int], None]]:
        """Yield a function to call with the size of each received part of a body."""
        held = 0

        def add(size: int) -> None:
            nonlocal held
            held += size
            self._held_bytes += size
            if held > SMALL and self._held_bytes > self._bytes:
                raise _busy()

        try:
            yield add
        finally:
            self._held_bytes -= held


def _busy() -> RequestError:
    return RequestError("busy with other requests; send the request again later", status=503)


def _names(encoder: Encoder) -> list[str]:
    ignored = () if isinstance(encoder, ImageRows) else encoder.ignored
    return [*encoder.names, *ignored]


def _row_cells(encoder: Encoder) -> int:
    if not isinstance(encoder, ImageRows):
        return OBJECT_CELLS + FIELD_CELLS * len(_names(encoder))
    shape: tuple[int, ...] = encoder.own_shape
    lists = sum(math.prod(shape[:axis]) for axis in range(len(shape)))
    return OBJECT_CELLS + FIELD_CELLS + lists + math.prod(shape)
