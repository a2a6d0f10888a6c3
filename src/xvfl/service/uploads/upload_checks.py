"""Find suspicious uploads: constant or too large embeddings, noise, wrong or repeated rows.

If a party's columns say something about the label, a linear model on its embeddings predicts the
label better than the mean label does.
Shapes: n rows, d embedding width, C outputs.
"""

from collections.abc import Mapping

import torch
from torch import Tensor

from xvfl.model.run_dir import RunDir
from xvfl.primitives.task import Regression
from xvfl.service.labeled_rows import LabeledRows
from xvfl.service.uploads.upload_store import UploadStore, stored_uploads

MAX_ROWS = 4096
"""Largest number of training rows, and of validation rows, of a party that are tested."""
MIN_ROWS = 20
"""Smallest number of each for a test."""
STANDARD_ERRORS = 2.0
"""A gain of fewer standard errors counts as chance."""
MIN_SPREAD = 1e-3
"""Smallest standard deviation of an embedding's numbers."""
PENALTY = 0.1
"""Weight of the L2 penalty of the linear model, per row."""
NOISE_TOLERANCE = 1.5
"""Factor on the largest mean square that noise makes plausible, in any direction."""
REPEATED_SHARE = 0.1
"""Largest share of rows with the embeddings of an earlier version, whose encoder was another."""
REPEATED = "many of its embeddings are those of version {}, which had another encoder"
TOO_LARGE = (
    "its embeddings are larger, or more alike, than those of length 1 with the noise of its ε"
)
CONSTANT = "its embeddings are nearly equal for all rows"
NO_SIGNAL = (
    "a linear model on its embeddings predicts validation rows no better than the mean label does: "
    "they may be noise or belong to other rows, or its columns say nothing about the label"
)


def find_problems(
    stores: Mapping[str, UploadStore], labeled: LabeledRows, folder: RunDir
) -> dict[str, str]:
    """Return the parties whose upload is suspicious, and why.

    `folder` is that of the coordinator, with earlier versions.
    """
    problems = {}
    for i, (name, store) in enumerate(stores.items()):
        seen = store.row_status() > 0
        parts = []
        for part in labeled.parts[:2]:
            rows = part[labeled.known[part] & (labeled.handles[part, i] >= 0)]
            rows = rows[seen[labeled.handles[rows, i]]][:MAX_ROWS]
            plain = store.views()[labeled.handles[rows, i], 0].double()
            parts.append((plain, _targets(labeled, rows)))
        problem = judge(*parts[0], *parts[1], store.manifest.noise_std)
        if problem := problem or find_repeated(store, folder):
            problems[name] = problem
    return problems


def find_repeated(store: UploadStore, folder: RunDir) -> str | None:
    """Tell whether an upload repeats the embeddings of an earlier version; None if it does not."""
    new, status = store.manifest, store.row_status()
    rows = torch.arange(0, new.rows, max(1, new.rows // MAX_ROWS))
    rows = rows[status[rows] > 0]
    for earlier in stored_uploads(folder, new.party):
        old = earlier.manifest
        alike = (old.session, old.width) == (new.session, new.width) and not earlier.missing
        if alike and old.version < new.version and old.encoder != new.encoder:
            same = (store.views()[rows, 0] == earlier.views()[rows, 0]).all(1)
            if float(same.double().mean()) > REPEATED_SHARE:
                return REPEATED.format(old.name)
    return None


def judge(x: Tensor, y: Tensor, new_x: Tensor, new_y: Tensor, noise_std: float = 0.0) -> str | None:
    """Return why embeddings (n, d) with targets (n, C) are suspicious, or None.

    `new_x` and `new_y` are those of validation rows. With noise, which is independent and widens
    the accepted range of numbers, the largest eigenvalue of their second moments is bounded.
    """
    if min(len(x), len(new_x)) < MIN_ROWS:
        return None
    if noise_std:
        likely = (1 + noise_std**2) * (1 + (x.shape[1] / len(x)) ** 0.5) ** 2
        if float(torch.linalg.eigvalsh(x.T @ x / len(x)).max()) > NOISE_TOLERANCE * likely:
            return TOO_LARGE
    mean, spread = x.mean(0), x.std(0)
    if float(spread.max()) < MIN_SPREAD:
        return CONSTANT
    spread = spread.clamp(min=MIN_SPREAD)
    x, new_x = (x - mean) / spread, (new_x - mean) / spread
    center = y.mean(0)
    gram = x.T @ x + PENALTY * len(x) * torch.eye(x.shape[1], dtype=x.dtype)
    weights = torch.linalg.solve(gram, x.T @ (y - center))
    before = (new_y - center).square().sum(1)
    gain = before - (new_y - center - new_x @ weights).square().sum(1)
    significant = gain.mean() > STANDARD_ERRORS * gain.std() / len(gain) ** 0.5
    return None if bool(significant) else NO_SIGNAL


def _targets(labeled: LabeledRows, rows: Tensor) -> Tensor:
    """Return one-hot classes, or numbers. (n, C)"""
    y = labeled.y[rows]
    if isinstance(labeled.task, Regression):
        return y.double().unsqueeze(1)
    return torch.nn.functional.one_hot(y, labeled.task.n_outputs).double()
