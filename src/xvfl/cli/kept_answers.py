"""Answers that a prediction has received, in a file from which the same command continues."""

import json
import os
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from xvfl.errors import RunError
from xvfl_serve.row_report import REFUSED_MODE

Answers = list[dict[str, Any]]
"""The answers of one request."""


class KeptAnswers:
    """The answers of the first requests, one request a line, in a hidden file beside the output.

    Rows that a budget refuses are not kept, nor what follows them: they are requested again.

    Parameters
    ----------
    output : Path
        The file that the prediction writes.
    request : mapping
        What is predicted; a file of another request is not used.
    """

    def __init__(self, output: Path, request: Mapping[str, Any]) -> None:
        self.path = output.with_name(f".{output.name}.answers.jsonl")
        self.rows = 0
        """Rows whose answers are kept."""
        self._header = json.dumps(request, sort_keys=True).encode() + b"\n"
        self._stored: Iterator[Answers] | None = self._read()
        self._adds = True

    def get(self) -> Answers | None:
        """Return the kept answers of the next request; None after the last."""
        if self._stored is not None and (answers := next(self._stored, None)) is not None:
            return answers
        self._stored = None
        return None

    def add(self, answers: Answers) -> None:
        """Keep the answers of a request."""
        self._adds = self._adds and all(each["mode"] != REFUSED_MODE for each in answers)
        if self._adds:
            self._append(json.dumps(answers).encode() + b"\n")
            self.rows += len(answers)

    def finish(self) -> bool:
        """Delete the file if all answers are kept; return whether they are."""
        if self._adds:
            self.path.unlink(missing_ok=True)
        return self._adds

    def _read(self) -> Iterator[Answers]:
        """Read the kept answers; cut off what a crash has left unfinished."""
        end = 0
        if self.path.is_file():
            with self.path.open("rb") as file:
                if file.readline() == self._header:
                    end = file.tell()
                    while (line := file.readline()).endswith(b"\n"):
                        answers: Answers = json.loads(line)
                        end = file.tell()
                        self.rows += len(answers)
                        yield answers
        if end:
            os.truncate(self.path, end)
            return
        self.path.unlink(missing_ok=True)
        self._append(self._header)

    def _append(self, line: bytes) -> None:
        try:
            number = os.open(self.path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
            with os.fdopen(number, "wb") as file:
                file.write(line)
        except OSError as error:
            raise RunError(f"{self.path}: cannot be written ({error.strerror})") from error
