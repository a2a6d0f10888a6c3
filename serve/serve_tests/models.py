"""Models of real data with gaps, and their rows as a request holds them."""

import warnings
from dataclasses import dataclass
from functools import cache, cached_property
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
from sklearn.datasets import load_digits

from tests.small_tables import make_tables
from xvfl import XVFLClassifier
from xvfl.config import (
    NO_PROTECTION,
    LossConfig,
    NetConfig,
    PrivacyConfig,
    TableOptions,
    TrainConfig,
)
from xvfl.data.images import Images
from xvfl.data.sources import Source
from xvfl.dataset.in_memory import prepare_in_memory
from xvfl.dataset.prepare import PreparationPlan
from xvfl.dataset.splits import Splits
from xvfl.errors import DataWarning
from xvfl.methods import method_spec
from xvfl.model.export.bundle_export import build_bundle
from xvfl.model.fitting import TrainingPlan, fit, resolve_for_dataset
from xvfl.model.model import Model

ROWS = 1000
NET, LOSS = NetConfig(), LossConfig()
SIDES = ("left", "right")


@dataclass(frozen=True)
class Trained:
    """A trained model, and rows with gaps to predict."""

    model: Model
    sources: dict[str, Source]

    @property
    def ids(self) -> list[str]:
        """Ids of all rows."""
        first = self.sources["left"]
        return list(first.ids if isinstance(first, Images) else first.index)

    def request_rows(self, party: str) -> list[Any]:
        """Return a party's rows as a request holds them; None where it does not hold one."""
        return self._request_rows[party]

    @cached_property
    def _request_rows(self) -> dict[str, list[Any]]:
        return {party: self._rows_of(source) for party, source in self.sources.items()}

    def _rows_of(self, source: Source) -> list[Any]:
        if isinstance(source, Images):
            held = dict(zip(source.ids, source.pixels, strict=True))
            return [{"image": held[each].tolist()} if each in held else None for each in self.ids]
        return [
            cells(source.loc[each]) if each in source.index else None  # type: ignore[arg-type]
            for each in self.ids
        ]

    def joint_rows(self) -> list[dict[str, Any]]:
        """Return the rows of both parties."""
        by_party = [self.request_rows(name) for name in SIDES]
        return [dict(zip(SIDES, each, strict=True)) for each in zip(*by_party, strict=True)]


def cells(row: "pd.Series[Any]") -> dict[str, Any]:
    """Return the cells of a row as JSON values; missing ones are null."""
    return {
        str(name): None if pd.isna(value) else getattr(value, "item", lambda value=value: value)()
        for name, value in row.items()
    }


@cache
def digits_with_gaps(images: bool = False, rows: int = ROWS) -> tuple[dict[str, Source], pd.Series]:
    """Return 1,000 digits, or fewer, halved between two parties: rows full, partial and absent.

    As tables, some pixels are categories, with few and with many values.
    """
    pixels, y = load_digits(return_X_y=True)
    halves = np.split(pixels[:rows].reshape(-1, 8, 8), 2, axis=2)
    ids = pd.Index([f"digit-{i:04d}" for i in range(rows)], name="id")
    rng = np.random.default_rng(0)
    sources: dict[str, Source] = {}
    for side, half in zip(SIDES, halves, strict=True):
        gaps = (rng.random((rows, 8, 4)) < 0.4) & (rng.random(rows) < 0.7)[:, None, None]
        gaps |= (rng.random(rows) < 0.1)[:, None, None]
        held = np.flatnonzero(rng.random(rows) < (0.8 if side == "right" else 1.1))
        with_gaps = np.where(gaps, np.nan, half)
        if images:
            sources[side] = Images(with_gaps[held], ids[held].tolist())
        else:
            columns = [f"pixel {i}" for i in range(32)]
            frame = pd.DataFrame(with_gaps.reshape(rows, 32), index=ids, columns=columns)
            frame["shade"] = frame["pixel 10"].map(lambda value: f"s{value:.0f}", "ignore")
            code = frame["pixel 11"].fillna(0) * 17 + frame["pixel 18"]
            frame["code"] = code.map(lambda value: f"c{value:.0f}", "ignore")
            sources[side] = frame.iloc[held]
    return sources, pd.Series(y[:rows], index=ids)


def train(
    net: NetConfig = NET,
    loss: LossConfig = LOSS,
    images: bool = False,
    privacy: PrivacyConfig = NO_PROTECTION,
    epochs: int = 2,
    rows: int = ROWS,
) -> Trained:
    """Train a small model for a few epochs."""
    sources, y = digits_with_gaps(images, rows)
    train = TrainConfig(epochs=epochs, device="cpu", batch_size=256)
    plan = PreparationPlan(
        {name: TableOptions() for name in SIDES},
        Splits(0.0, train.validation_fraction, 0),
        loss.full_threshold,
        train.class_weight,
        method_spec(loss.method).uses_unlabeled,
    )
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DataWarning)  # Some pixels are always white.
        dataset = prepare_in_memory(sources, y, plan)
        options = resolve_for_dataset(dataset, net, loss, train, privacy)
        result = fit(dataset, TrainingPlan(options))
    return Trained(result.model, sources)


def write_bundles(folder: Path) -> None:
    """Train two small models and write bundles of them: of the bank, of both parties, of images."""
    bank, shop, y = make_tables(300)
    for seed, name in enumerate(("bank", "other")):
        model = XVFLClassifier(epochs=2, embedding_dim=8, hidden_dim=32, random_state=seed)
        model.fit({"bank": bank, "shop": shop}, y)
        (folder / f"{name}.xvfl").write_bytes(build_bundle(model.model_, "bank"))
    (folder / "both.xvfl").write_bytes(build_bundle(model.model_))
    images = train(NetConfig(16, 32, 2, 8), images=True, epochs=1, rows=200)
    (folder / "images.xvfl").write_bytes(build_bundle(images.model, "left"))
