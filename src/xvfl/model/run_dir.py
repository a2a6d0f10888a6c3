"""Run and model folders: manifest, encoders, weights, checkpoints, records. No pickle.

manifest.json           format, parties, classes, configuration, calibration
encoders/PARTY.json     how each party encodes its table
model.safetensors       weights of the best epoch
cells.safetensors       the model that fills the cells of tables, and their distributions
checkpoint.safetensors  state from which training resumes (run folders only)
records.jsonl           one line per epoch (run folders only)
config.toml             the configuration as given (run folders only)
report.json             rows, columns, validation scores and use of completion in the training
evaluation.json         metrics of the test rows (run folders only)
run.json, missing.json  what is trained, and what is missing where (run folders only)
log.jsonl               events of a coordinator or party

Writes are atomic: after a crash or with a full disk the previous file is intact. Records are
appended; a crash may lose the last line.
"""

import json
import math
import os
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

from safetensors import SafetensorError, safe_open

from xvfl.errors import RunError
from xvfl.system.files import append_jsonl, atomic_write, flush_to_disk, read_jsonl, temporary_path
from xvfl.version import VERSION

if TYPE_CHECKING:
    from torch import Tensor

FORMAT = 2
"""Version of the folder's layout; a folder of another format is rejected."""
MANIFEST, MODEL, CELLS, CHECKPOINT, RECORDS, EVALUATION = (
    "manifest.json",
    "model.safetensors",
    "cells.safetensors",
    "checkpoint.safetensors",
    "records.jsonl",
    "evaluation.json",
)


class RunDir:
    """A run or model folder."""

    def __init__(self, path: str | Path) -> None:
        self.path = Path(path)
        self._staged: list[tuple[Path, Path]] | None = None

    def __truediv__(self, name: str) -> Path:
        return self.path / name

    def create(self) -> "RunDir":
        """Create the folder if it does not exist."""
        try:
            self.path.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise RunError(f"{self.path}: cannot be created ({error.strerror})") from error
        return self

    def has(self, name: str) -> bool:
        """Return whether the folder has a file of this name."""
        return (self.path / name).is_file()

    def write_text(self, name: str, text: str) -> None:
        """Write a text file atomically."""
        self._write(name, lambda temporary: temporary.write_text(text, encoding="utf-8"))

    def write_bytes(self, name: str, data: bytes) -> None:
        """Write a binary file atomically."""
        self._write(name, lambda temporary: temporary.write_bytes(data))

    def write_json(self, name: str, data: Mapping[str, Any]) -> None:
        """Write a JSON file atomically; NaN and infinity become null."""
        self.write_text(name, json.dumps(finite_json(data), indent=1, ensure_ascii=False) + "\n")

    def read_json(self, name: str) -> dict[str, Any]:
        """Read a JSON file."""
        path = self.path / name
        try:
            data: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))
        except FileNotFoundError as error:
            raise RunError(f"{self.path}: {name} is missing; {self._advice(name)}") from error
        except (OSError, ValueError) as error:
            raise RunError(f"{path}: cannot be read ({error}); {self._advice(name)}") from error
        if not isinstance(data, dict):
            raise RunError(f"{path}: expected a JSON object; {self._advice(name)}")
        return data

    def manifest(self) -> dict[str, Any]:
        """Read the manifest; reject another format."""
        if not self.path.is_dir():
            raise RunError(f"{self.path}: no such model or run folder; check the path")
        data = self.read_json(MANIFEST)
        if data.get("format") != FORMAT:
            raise self._other_format(data.get("version", "?"), data.get("format"))
        return data

    def save_tensors(
        self, name: str, tensors: "Mapping[str, Tensor]", metadata: Mapping[str, Any]
    ) -> None:
        """Write tensors and JSON metadata to one file atomically."""
        from safetensors.torch import save

        copies = {key: value.detach().cpu().contiguous().clone() for key, value in tensors.items()}
        header = {"format": str(FORMAT), "version": VERSION, "metadata": json.dumps(metadata)}
        self._write(name, lambda temporary: temporary.write_bytes(save(copies, metadata=header)))

    def load_tensors(self, name: str) -> "tuple[dict[str, Tensor], dict[str, Any]]":
        """Read tensors and their metadata; reject another format."""
        path = self.path / name
        if not path.is_file():
            raise RunError(f"{self.path}: {name} is missing; {self._advice(name)}")
        try:
            with safe_open(path, framework="pt") as file:
                header = file.metadata() or {}
                if header.get("format") != str(FORMAT):
                    raise self._other_format(header["version"], header.get("format"))
                tensors = {key: file.get_tensor(key) for key in file.keys()}  # noqa: SIM118
            metadata: dict[str, Any] = json.loads(header["metadata"])
        except (SafetensorError, OSError, KeyError, ValueError) as error:
            raise RunError(
                f"{path}: truncated or damaged ({error}); {self._advice(name)}"
            ) from error
        return tensors, metadata

    def append_record(self, record: Mapping[str, Any]) -> None:
        """Append one line to the records."""
        try:
            append_jsonl(self.path / RECORDS, finite_json(record))
        except OSError as error:
            raise RunError(
                f"{self.path / RECORDS}: cannot be written ({error.strerror})"
            ) from error

    def records(self) -> list[dict[str, Any]]:
        """Read the records; skip a line truncated by a crash."""
        return read_jsonl(self.path / RECORDS)

    def filter_records(self, condition: Callable[[dict[str, Any]], bool]) -> None:
        """Keep only the records that meet a condition."""
        lines = [json.dumps(record) for record in self.records() if condition(record)]
        self.write_text(RECORDS, "".join(line + "\n" for line in lines))

    @contextmanager
    def transaction(self) -> Iterator[None]:
        """Move files written inside the block into place at its end; on an error, none of them."""
        staged = self._staged = []
        try:
            yield
            for temporary, path in staged:
                os.replace(temporary, path)
        finally:
            self._staged = None
            for temporary, _ in staged:
                temporary.unlink(missing_ok=True)

    def _other_format(self, version: object, written: object) -> RunError:
        return RunError(
            f"{self.path}: written by xvfl {version} in format {written}, this version reads "
            f"format {FORMAT}; train the model again, or install the version "
            "that wrote it"
        )

    def _advice(self, missing: str) -> str:
        if self.has(CHECKPOINT) and not self.has(MANIFEST) and missing != CHECKPOINT:
            return "training did not finish: run `xvfl train CONFIG --out RUN --resume`"
        return "not a complete run: restore the folder from a backup, or train again"

    def _write(self, name: str, write: Callable[[Path], object]) -> None:
        path = self.path / name
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            if self._staged is None:
                with atomic_write(path) as temporary:
                    write(temporary)
            else:
                temporary = temporary_path(path)
                self._staged.append((temporary, path))
                write(temporary)
                flush_to_disk(temporary)
        except OSError as error:
            reason = error.strerror or str(error)
            raise RunError(
                f"{path}: could not be written ({reason}); the previous file is unchanged"
            ) from error


def finite_json(value: Any) -> Any:
    """Replace NaN and infinity, which JSON cannot represent, by None."""
    if isinstance(value, Mapping):
        return {key: finite_json(each) for key, each in value.items()}
    if isinstance(value, (list, tuple)):
        return [finite_json(each) for each in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value
