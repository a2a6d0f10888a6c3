"""At the coordinator: labels as shares, requests for predictions, and their answers."""

import json
import secrets
from dataclasses import asdict, dataclass
from pathlib import Path
from tempfile import TemporaryDirectory

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from xvfl.certs import PeerVerifier
from xvfl.certs.signed_document import SignedDocument
from xvfl.errors import InputError, RunError, WireError, XVFLError
from xvfl.primitives.metrics import all_metrics, regression_metrics
from xvfl.primitives.task import Regression
from xvfl.service.coordinator_service import CoordinatorService
from xvfl.service.labeled_rows import LabeledRows, MatchedLabels
from xvfl.service.secret import load_secret, run_seed
from xvfl.service.secret_shares.nodes import Agreement, check_owners, public_key, read_agreement
from xvfl.service.secret_shares.sealed_arrays import read_arrays, write_arrays
from xvfl.service.secret_shares.shares import (
    ANSWER,
    PRIVATE,
    PUBLIC,
    REQUEST,
    TASK,
    ShareFolder,
    first_weights,
    run_program,
    send_shares,
)
from xvfl.service.uploads.file_exchange import KEY
from xvfl.service.uploads.upload_run import load_labeled_rows

PARTS = ("training", "validation", "test")
NO_LABEL = len(PARTS)
MAX_ANSWER_BYTES = 2**30


@dataclass(frozen=True)
class Predicted:
    """What the nodes answered."""

    frame: pd.DataFrame
    """A row for each id: probability of each class, or the number."""
    scores: dict[str, float]
    """Scores of the rows that have a label; empty without such rows."""


class LabelHolder:
    """The coordinator of a federation with `secret`; it never sees an embedding."""

    def __init__(self, service: CoordinatorService) -> None:
        config, alignment = service.config, service.alignment
        if config.secret is None:
            raise RunError('expected secret = "spu" in the configuration; see `xvfl secret --help`')
        self._peers = PeerVerifier(config.tls.ca_certificate, config.revocation_list)
        self.agreement: Agreement = read_agreement(config.secret_options, self._peers)
        missing = [n for n in config.parties if alignment is None or n not in alignment.matches]
        if alignment is None or missing:
            raise RunError(f"ids are not matched with {', '.join(missing)}; run `xvfl align` first")
        self._service, self._config, self._folder = service, config, service.folder
        matched = MatchedLabels(service.labels, service.ids, alignment)
        self._rows: LabeledRows = load_labeled_rows(config, matched, config.parties)
        held = np.stack([alignment.matches[n].handles >= 0 for n in config.parties]).any(0)
        self._ids = pd.Index(service.ids)[held]
        self._sessions = [alignment.matches[n].session.hex() for n in config.parties]

    def share_labels(self, out: Path) -> list[Path]:
        """Write the task with shares of the labels, a file for each node."""
        rows, regression = self._rows, isinstance(self._rows.task, Regression)
        if not regression and len(rows.task.classes) != 2:
            raise InputError(
                f"labels: expected two classes or a number, got {len(rows.task.classes)} classes; "
                "heads on shares have one output"
            )
        with ShareFolder(self._config.state_dir) as folder:
            y = np.where(rows.known.numpy(), rows.y.double().nan_to_num().numpy(), 0.0)
            folder.save(PRIVATE, "y", y.astype(np.float32).reshape(-1, 1))
            hidden = self.agreement.options.hidden
            shapes = {"p": (len(rows.names) + 1, hidden), "v": (hidden, 1), "c": (1, 1)}
            for name, shape in shapes.items():
                folder.save(PRIVATE, name, first_weights(shape, hidden))
            folder.save(PUBLIC, "handles", rows.handles.int().numpy())
            folder.save(PUBLIC, "part", self._parts())
            content = {"what": TASK, "task": self._task(not regression)}
            return send_shares(
                self.agreement, self._config.tls, "coordinator", folder.path, content, out
            )

    def ask(self, rows: NDArray[np.int64], out: Path) -> list[Path]:
        """Write a request for predictions of rows, a file for each node."""
        name = secrets.token_hex(8)
        key = public_key(self._folder).hex()
        self._folder.write_json(f"secret_requests/{name}.json", {"rows": rows.tolist()})
        out.mkdir(parents=True, exist_ok=True)
        written = []
        with ShareFolder(self._config.state_dir) as folder:
            folder.save(PUBLIC, "rows", rows.astype(np.int32))
            for node in self.agreement.nodes:
                content = {
                    "what": REQUEST,
                    "name": name,
                    "key": key,
                    "agreement": self.agreement.digest,
                    "node": node.name,
                    "folder": str(folder.path / PUBLIC),
                }
                path = out / f"coordinator.{REQUEST}.{node.name}"
                write_arrays(path, self._config.tls, node.key, content)
                written.append(path)
        return written

    def rows_of(self, part: str) -> NDArray[np.int64]:
        """Return the rows of a part that have a label."""
        return np.flatnonzero(self._parts() == PARTS.index(part))

    def rows_with(self, ids: list[str]) -> NDArray[np.int64]:
        """Return the rows of ids."""
        rows = self._ids.get_indexer(pd.Index(ids))
        if unknown := [each for each, row in zip(ids, rows, strict=True) if row < 0]:
            raise InputError(f"no party holds id {unknown[0]!r} ({len(unknown)} of {len(ids)} ids)")
        return np.asarray(rows, np.int64)

    def read_answers(self, files: list[Path]) -> Predicted:
        """Verify and combine the answers of the three nodes."""
        with TemporaryDirectory(prefix="answers-", dir=self._config.state_dir) as name:
            folder, found = Path(name), {}
            for number, path in enumerate(files):
                document = self._open(path, folder / str(number))
                asked = document.get("name", str)
                found[document.owner] = folder / str(number) / "answer.npy", asked
            check_owners(sorted(found), self.agreement)
            shares, names = zip(*(found[each] for each in sorted(found)), strict=True)
            if len(set(names)) > 1:
                raise RunError("the answers are to different requests")
            program, out = self.agreement.options.program, folder / "numbers.npy"
            run_program(program, "combine", *shares, "--out", out)
            numbers = np.load(out, allow_pickle=False).astype(np.float64)[:, 0]
        return self._predicted(self._asked(names[0]), numbers)

    def _open(self, path: Path, folder: Path) -> SignedDocument:
        """Verify and decrypt an answer to a folder."""
        key = self._folder / KEY
        try:
            document = read_arrays(path, key, self._peers.check, lambda _: folder, MAX_ANSWER_BYTES)
            if document.get("what", str) != ANSWER:
                raise WireError("expected an answer of a node")
        except (OSError, XVFLError) as error:
            raise RunError(f"{path}: the answer is rejected: {error}") from error
        return document

    def _asked(self, name: str) -> NDArray[np.int64]:
        known = {path.stem for path in (self._folder / "secret_requests").glob("*.json")}
        if name not in known:
            raise RunError("the answers are not to a request of this coordinator")
        return np.array(self._folder.read_json(f"secret_requests/{name}.json")["rows"], np.int64)

    def _predicted(self, rows: NDArray[np.int64], numbers: NDArray[np.float64]) -> Predicted:
        if len(rows) != len(numbers):
            raise RunError(f"expected answers for {len(rows)} rows, got {len(numbers)}")
        task, y = self._rows.task, self._rows.y.numpy()[rows]
        known = self._rows.known.numpy()[rows]
        index = pd.Index(self._ids[rows], name="id")
        if isinstance(task, Regression):
            values = task.mean + task.scale * numbers
            frame = pd.DataFrame({"prediction": values}, index)
            truth = task.mean + task.scale * y[known]
            scores = regression_metrics(values[known], truth) if known.any() else {}
            return Predicted(frame, scores)
        proba = np.clip(np.stack([1 - numbers, numbers], 1), 0, 1)
        frame = pd.DataFrame(proba, index, [f"proba_{each}" for each in task.classes])
        both = len(set(y[known].tolist())) == 2
        return Predicted(frame, all_metrics(proba[known], y[known]) if both else {})

    def _parts(self) -> NDArray[np.uint8]:
        parts = np.full(len(self._rows.y), NO_LABEL, np.uint8)
        for number, rows in enumerate(self._rows.parts):
            parts[rows.numpy()] = number
        parts[~self._rows.known.numpy()] = NO_LABEL
        return parts

    def _task(self, classification: bool) -> str:
        seed = run_seed(load_secret(self._folder), "secret order") % 2**32
        return json.dumps(
            {
                "parties": list(self._config.parties),
                "sessions": self._sessions,
                "classification": classification,
                "seed": seed,
                **asdict(self._config.secret_training),
            }
        )
