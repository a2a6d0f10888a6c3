"""Run and model folders: manifest, encoders, weights, checkpoints, records. No pickle anywhere.

manifest.json           format, parties, classes, configuration, calibration
encoders/PARTY.json     how each party encodes its own table
model.safetensors       weights of the best epoch
checkpoint.safetensors  everything needed to go on (run folders only)
records.jsonl           one line an epoch (run folders only)
config.toml             the configuration as given (run folders only)

All but the records are written beside their place and moved there when whole, so a full disk or a
power cut leaves the last good one; of the records it may cost the last line.
"""

import json
import math
import os
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from safetensors import SafetensorError, safe_open
from safetensors.torch import save
from torch import Tensor

from xvfl.errors import RunError

FORMAT = 2
MANIFEST, MODEL, CHECKPOINT, RECORDS = (
    "manifest.json",
    "model.safetensors",
    "checkpoint.safetensors",
    "records.jsonl",
)


class RunDir:
    """One run or model folder."""

    def __init__(self, path: str | Path) -> None:
        self.path = Path(path)
        self._staged: list[tuple[Path, Path]] | None = None

    def __truediv__(self, name: str) -> Path:
        return self.path / name

    def create(self) -> "RunDir":
        """Make the folder."""
        try:
            self.path.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise RunError(f"{self.path}: cannot be made ({error.strerror})") from error
        return self

    def has(self, name: str) -> bool:
        """Say whether a file is there."""
        return (self.path / name).is_file()

    def write_text(self, name: str, text: str) -> None:
        """Write a text file whole or not at all."""
        self._whole(name, lambda temporary: temporary.write_text(text, encoding="utf-8"))

    def write_bytes(self, name: str, data: bytes) -> None:
        """Write a file whole or not at all."""
        self._whole(name, lambda temporary: temporary.write_bytes(data))

    def write_json(self, name: str, data: Mapping[str, Any]) -> None:
        """Write a JSON file whole or not at all."""
        self.write_text(name, json.dumps(_plain(data), indent=1, ensure_ascii=False) + "\n")

    def read_json(self, name: str) -> dict[str, Any]:
        """Read a JSON file of the folder."""
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
        """Read the manifest of this version of xvfl."""
        if not self.path.is_dir():
            raise RunError(f"{self.path}: no such run folder; `xvfl train CONFIG --out` makes one")
        data = self.read_json(MANIFEST)
        if data.get("format") != FORMAT:
            raise RunError(
                f"{self.path}: written in format {data.get('format')!r} by xvfl "
                f"{data.get('version', '?')}, this xvfl reads format {FORMAT}; "
                "train it again or use the version that wrote it"
            )
        return data

    def save_tensors(
        self, name: str, tensors: Mapping[str, Tensor], about: Mapping[str, Any]
    ) -> None:
        """Write tensors and a JSON note in one file, whole or not at all."""
        copies = {key: value.detach().cpu().contiguous().clone() for key, value in tensors.items()}
        note = {"about": json.dumps(about)}
        self._whole(name, lambda temporary: temporary.write_bytes(save(copies, metadata=note)))

    def load_tensors(self, name: str) -> tuple[dict[str, Tensor], dict[str, Any]]:
        """Read tensors and their note."""
        path = self.path / name
        if not path.is_file():
            raise RunError(f"{self.path}: {name} is missing; {self._advice(name)}")
        try:
            with safe_open(path, framework="pt") as file:
                tensors = {key: file.get_tensor(key) for key in file.keys()}  # noqa: SIM118
                about: dict[str, Any] = json.loads((file.metadata() or {}).get("about", "{}"))
        except (SafetensorError, OSError, ValueError) as error:
            raise RunError(
                f"{path}: cut short or damaged ({error}); {self._advice(name)}"
            ) from error
        return tensors, about

    def append_record(self, record: Mapping[str, Any]) -> None:
        """Add one line to the records."""
        line = json.dumps(_plain(record))
        try:
            with (self.path / RECORDS).open("a", encoding="utf-8") as file:
                file.write(line + "\n")
        except OSError as error:
            raise RunError(
                f"{self.path / RECORDS}: cannot be written ({error.strerror})"
            ) from error

    def records(self) -> list[dict[str, Any]]:
        """Read the records; a line cut short by a crash is passed over."""
        path = self.path / RECORDS
        if not path.is_file():
            return []
        found = []
        for line in path.read_text(encoding="utf-8", errors="replace").splitlines():
            try:
                found.append(json.loads(line))
            except ValueError:
                continue
        return found

    def keep_records(self, wanted: Callable[[dict[str, Any]], bool]) -> None:
        """Forget the records that a resumed run will write again."""
        lines = [json.dumps(record) for record in self.records() if wanted(record)]
        self.write_text(RECORDS, "".join(line + "\n" for line in lines))

    @contextmanager
    def together(self) -> Iterator[None]:
        """Put what is written inside into place at the end, all of it or nothing."""
        staged = self._staged = []
        try:
            yield
            for temporary, path in staged:
                os.replace(temporary, path)
        finally:
            self._staged = None
            for temporary, _ in staged:
                temporary.unlink(missing_ok=True)

    def _advice(self, lost: str) -> str:
        if self.has(CHECKPOINT) and not self.has(MANIFEST) and lost != CHECKPOINT:
            return "the run was cut short: continue it with `xvfl train CONFIG --out RUN --resume`"
        return "the folder is not a whole run: train it again into another"

    def _whole(self, name: str, write: Callable[[Path], object]) -> None:
        path = self.path / name
        temporary = path.with_name(f".{path.name}.{os.getpid()}.tmp")
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            write(temporary)
            with temporary.open("rb") as file:
                os.fsync(file.fileno())
            if self._staged is None:
                os.replace(temporary, path)
            else:
                self._staged.append((temporary, path))
        except OSError as error:
            temporary.unlink(missing_ok=True)
            reason = error.strerror or str(error)
            raise RunError(
                f"{path}: could not be written ({reason}); what was there before is untouched"
            ) from error


def _plain(value: Any) -> Any:
    """Turn what JSON has no number for into null."""
    if isinstance(value, Mapping):
        return {key: _plain(each) for key, each in value.items()}
    if isinstance(value, (list, tuple)):
        return [_plain(each) for each in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value
