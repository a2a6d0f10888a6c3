"""Write tables chunk by chunk, atomically."""

from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pandas as pd

from xvfl.errors import InputError
from xvfl.system.files import atomic_write


class TableWriter:
    """Writes frames to a .csv or .parquet file, which appears when the context ends."""

    def __init__(self, path: Path) -> None:
        check_output(path)
        self.path = path
        self._stack = ExitStack()
        self._temporary = path
        self._parquet: Any = None
        self._empty = True

    def __enter__(self) -> "TableWriter":
        self._temporary = self._stack.enter_context(atomic_write(self.path))
        return self

    def add(self, frame: pd.DataFrame) -> None:
        """Write a frame's rows; a named index becomes the first column."""
        plain = frame if frame.index.name is None else frame.reset_index()
        try:
            if self.path.suffix.lower() == ".csv":
                with self._temporary.open("w" if self._empty else "a", newline="") as file:
                    plain.to_csv(file, index=False, header=self._empty)
            else:
                self._add_parquet(plain)
        except OSError as error:
            raise self._failure(error) from error
        self._empty = False

    def _add_parquet(self, plain: pd.DataFrame) -> None:
        import pyarrow as pa
        import pyarrow.parquet

        if self._parquet is None:
            schema = pa.Schema.from_pandas(plain, preserve_index=False)
            self._parquet = self._stack.enter_context(
                pyarrow.parquet.ParquetWriter(self._temporary, schema)
            )
        table = pa.Table.from_pandas(plain, self._parquet.schema, preserve_index=False)
        self._parquet.write_table(table)

    def __exit__(self, *error: Any) -> None:
        try:
            self._stack.__exit__(*error)
        except OSError as failure:
            raise self._failure(failure) from failure

    def _failure(self, error: OSError) -> InputError:
        return InputError(
            f"{self.path}: cannot be written ({error.strerror or error}); "
            "check the folder and the free disk space"
        )


def write_table(frame: pd.DataFrame, path: Path) -> None:
    """Write a .csv or .parquet file atomically; a named index becomes the first column."""
    with TableWriter(Path(path)) as writer:
        writer.add(frame)


def check_output(path: Path) -> None:
    """Reject a path that a table cannot be written to, before any work is done."""
    if path.suffix.lower() not in (".csv", ".parquet"):
        raise InputError(f"{path}: expected a name ending in .csv or .parquet; rename the file")
    if not path.parent.is_dir():
        raise InputError(f"{path}: cannot be written (no folder {path.parent}); create it first")
