"""Write tables piece by piece, whole or not at all."""

import os
from contextlib import suppress
from pathlib import Path
from types import TracebackType
from typing import Any

import pandas as pd

from xvfl.errors import InputError


class TableWriter:
    """Writes frames one after another to a .csv or .parquet file, which appears when all are in."""

    def __init__(self, path: Path) -> None:
        """Begin beside the file's place."""
        check_output(path)
        self.path = path
        self._temporary = path.with_name(f".{path.name}.{os.getpid()}.tmp")
        self._parquet: Any = None
        self._begun = False

    def __enter__(self) -> "TableWriter":
        self._temporary.unlink(missing_ok=True)
        return self

    def add(self, frame: pd.DataFrame) -> None:
        """Write a frame's rows; a named index becomes the first column."""
        plain = frame if frame.index.name is None else frame.reset_index()
        try:
            if self.path.suffix.lower() == ".csv":
                plain.to_csv(self._temporary, index=False, mode="a", header=not self._begun)
            else:
                self._add_parquet(plain)
        except OSError as error:
            raise self._failed(error) from error
        self._begun = True

    def _add_parquet(self, plain: pd.DataFrame) -> None:
        import pyarrow as pa
        import pyarrow.parquet

        if self._parquet is None:
            schema = pa.Schema.from_pandas(plain, preserve_index=False)
            self._parquet = pyarrow.parquet.ParquetWriter(self._temporary, schema)
        table = pa.Table.from_pandas(plain, self._parquet.schema, preserve_index=False)
        self._parquet.write_table(table)

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        try:
            if self._parquet is not None:
                self._parquet.close()
            if kind is None:
                os.replace(self._temporary, self.path)
        except OSError as failed:
            raise self._failed(failed) from failed
        finally:
            with suppress(OSError):
                self._temporary.unlink()

    def _failed(self, error: OSError) -> InputError:
        return InputError(
            f"{self.path}: cannot be written ({error.strerror or error}); "
            "check the folder and the space left"
        )


def write_table(frame: pd.DataFrame, path: Path) -> None:
    """Write a .csv or .parquet file whole or not at all; a named index becomes the first column."""
    with TableWriter(Path(path)) as writer:
        writer.add(frame)


def check_output(path: Path) -> None:
    """Refuse a name that a table could not be written to, before the work is done."""
    if path.suffix.lower() not in (".csv", ".parquet"):
        raise InputError(f"{path}: expected a name ending in .csv or .parquet; rename the file")
    if not path.parent.is_dir():
        raise InputError(f"{path}: cannot be written (no folder {path.parent}); make it first")
