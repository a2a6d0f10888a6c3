"""XVFLClassifier: vertical federated learning with the manners of scikit-learn.

Tables go in as a dictionary of parties, and answers come back indexed by id, because the parties
hold different rows.
"""

import warnings
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Literal

import numpy as np
import pandas as pd
from numpy.typing import NDArray
from pandas.api.types import is_string_dtype
from sklearn.base import BaseEstimator, ClassifierMixin
from sklearn.utils.validation import check_is_fitted
from torch import nn

from xvfl.config import LossConfig, NetConfig, TableOptions, TrainConfig, build
from xvfl.data.encoder import Images
from xvfl.data.frames import read_table
from xvfl.data.labels import labels_of_party, read_labels
from xvfl.data.sources import Source
from xvfl.data.text import as_text
from xvfl.dataset.in_memory import prepare_in_memory
from xvfl.dataset.splits import Splits
from xvfl.errors import DataWarning, InputError
from xvfl.methods import Mode
from xvfl.model.custom_nets import CustomNets
from xvfl.model.fitting import TrainingPlan, fit
from xvfl.model.model import Model
from xvfl.model.prediction import Prediction
from xvfl.model.progress import progress_bar
from xvfl.model.run_dir import RunDir
from xvfl.nets import NetOrBuilder

Table = Any
"""A pandas or polars frame, a file name, "sql:…", or `Images`."""


class XVFLClassifier(ClassifierMixin, BaseEstimator):  # type: ignore[misc]
    """Classify rows whose columns several parties hold, with anything missing.

    >>> model = XVFLClassifier().fit({"bank": bank, "shop": shop}, y)
    >>> model.predict_proba({"bank": new_rows})          # the bank alone
    """

    def __init__(
        self,
        *,
        id_column: str | Mapping[str, str] | None = None,
        table_options: Mapping[str, TableOptions] | None = None,
        method: str = "xvfl+",
        lambda1: float | Sequence[float] = 0.1,
        lambda2: float | Sequence[float] = 0.1,
        self_completion: float = 1.0,
        n_masks: int = 2,
        stop_gradient: bool = False,
        detach_cue: bool = False,
        guidance: float = 0.5,
        reconstruction: float = 0.3,
        cross_completion: bool = True,
        aggregation: str = "mean",
        distillation_alpha: float = 0.5,
        distillation_temperature: float = 2.0,
        full_threshold: float | None = None,
        embedding_dim: int = 0,
        hidden_dim: int = 0,
        n_blocks: int = 4,
        base_channels: int = 32,
        epochs: int = 60,
        batch_size: int = 0,
        optimizer: str = "adamw",
        learning_rate: float = 2e-3,
        schedule: str = "cosine",
        momentum: float = 0.9,
        weight_decay: float = 1e-2,
        page_batch_size: int | None = None,
        page_probability: float | None = None,
        validation_fraction: float = 0.15,
        patience: int = 15,
        class_weight: str | None = None,
        random_state: int = 0,
        device: str = "auto",
        precision: str = "float32",
        bottoms: Mapping[str, NetOrBuilder] | None = None,
        completers: Mapping[str, NetOrBuilder] | None = None,
        head: nn.Module | None = None,
        verbose: bool | Literal["auto"] = "auto",
    ) -> None:
        """Set the parameters; `xvfl init` explains each of them.

        `id` names the id column, for all parties or by party; without it a frame's index counts.
        `verbose="auto"` shows progress in a terminal or a notebook.
        """
        self.id_column = id_column
        self.table_options = table_options
        self.method = method
        self.lambda1 = lambda1
        self.lambda2 = lambda2
        self.self_completion = self_completion
        self.n_masks = n_masks
        self.stop_gradient = stop_gradient
        self.detach_cue = detach_cue
        self.guidance = guidance
        self.reconstruction = reconstruction
        self.cross_completion = cross_completion
        self.aggregation = aggregation
        self.distillation_alpha = distillation_alpha
        self.distillation_temperature = distillation_temperature
        self.full_threshold = full_threshold
        self.embedding_dim = embedding_dim
        self.hidden_dim = hidden_dim
        self.n_blocks = n_blocks
        self.base_channels = base_channels
        self.epochs = epochs
        self.batch_size = batch_size
        self.optimizer = optimizer
        self.learning_rate = learning_rate
        self.schedule = schedule
        self.momentum = momentum
        self.weight_decay = weight_decay
        self.page_batch_size = page_batch_size
        self.page_probability = page_probability
        self.validation_fraction = validation_fraction
        self.patience = patience
        self.class_weight = class_weight
        self.random_state = random_state
        self.device = device
        self.precision = precision
        self.bottoms = bottoms
        self.completers = completers
        self.head = head
        self.verbose = verbose

    def fit(self, X: Mapping[str, Table], y: Any) -> "XVFLClassifier":
        """Train on the parties' tables and the labels.

        `y` is a Series (or one-column frame) indexed by id, or (party, column) where a party's own
        table holds the labels.
        """
        plan = self._plan()
        sources, labels = self._sources_and_labels(X, y)
        prepared = prepare_in_memory(
            sources,
            labels,
            {name: _options(name, each) for name, each in (self.table_options or {}).items()},
            Splits(0.0, self.validation_fraction, self.random_state),
            self.full_threshold,
            plan.train.class_weight,
        )
        with progress_bar(self.verbose) as on_progress:
            fitted = fit(prepared, plan, on_progress=on_progress)
        if fitted.interrupted and not fitted.records:
            raise KeyboardInterrupt
        if fitted.interrupted:
            text = f"training was interrupted after {len(fitted.records)} epochs"
            warnings.warn(f"{text}; the best of them is kept", DataWarning, stacklevel=2)
        self.model_ = fitted.model
        self.history_ = fitted.records
        self._describe()
        return self

    def predict(
        self,
        X: Mapping[str, Table],
        mode: Mode | None = None,
        party: str | None = None,
        ids: Sequence[str] | None = None,
    ) -> pd.Series:
        """Say the likeliest class of each row; see `predict_table` for the arguments."""
        return self.predict_table(X, mode, party, ids)["prediction"]

    def predict_proba(
        self,
        X: Mapping[str, Table],
        mode: Mode | None = None,
        party: str | None = None,
        ids: Sequence[str] | None = None,
    ) -> pd.DataFrame:
        """Give calibrated probabilities, one column a class, indexed by id."""
        said = self._predict(X, mode, party, ids)
        index = self._as_written(X, pd.Index(said.ids))
        return pd.DataFrame(said.proba, index=index, columns=said.classes)

    def predict_table(
        self,
        X: Mapping[str, Table],
        mode: Mode | None = None,
        party: str | None = None,
        ids: Sequence[str] | None = None,
    ) -> pd.DataFrame:
        """Predict, and say per row: mode used, who contributed, share completed, anything odd.

        Without `mode`, all parties' tables give a collaborative answer and fewer a local one.
        `party` says who predicts in `local` and `assisted`. `ids` chooses the rows.
        """
        table = self._predict(X, mode, party, ids).frame()
        return table.set_axis(self._as_written(X, table.index))

    def complete(
        self, X: Mapping[str, Table], party: str | None = None, ids: Sequence[str] | None = None
    ) -> Any:
        """Fill the gaps of the given tables, in their own columns and units.

        Observed values are untouched. With `party`, gives that party's table; without, a
        dictionary of all the given ones. `ids` may name rows that a party does not hold at all.
        """
        check_is_fitted(self, "model_")
        sources, rows = self._read(X), _texts(ids)
        made: dict[str, Any] = {}
        for name in sources if party is None else [party]:
            made[name] = self.model_.complete(sources, name, rows)
            if isinstance(made[name], pd.DataFrame):
                made[name] = made[name].set_axis(self._as_written(X, made[name].index))
        return made if party is None else made[party]

    def score(
        self,
        X: Mapping[str, Table],
        y: Any,
        mode: Mode | None = None,
        party: str | None = None,
        sample_weight: NDArray[np.floating[Any]] | None = None,
    ) -> float:
        """Give the accuracy over the labelled ids that the prediction covers."""
        check_is_fitted(self, "model_")
        sources, labels = self._sources_and_labels(X, y, min_classes=1)
        said = self.model_.predict(sources, mode, party).frame()["prediction"]
        common = labels.index.intersection(said.index, sort=False)
        if not labels.isin(self.model_.classes).any():
            raise InputError(
                f"score: none of the labels is a class of the model, {self.model_.classes}; "
                "check their type: 1 is not '1'"
            )
        if not len(common):
            raise InputError("score: the tables and the labels share no id; check the id columns")
        right = said.loc[common].to_numpy() == labels.loc[common].to_numpy()
        weight = None if sample_weight is None else pd.Series(sample_weight, index=labels.index)
        return float(np.average(right, weights=None if weight is None else weight.loc[common]))

    def save(self, path: str | Path) -> None:
        """Write the model to a folder."""
        check_is_fitted(self, "model_")
        self.model_.save(RunDir(path), {"id_column": self.id_column} if self.id_column else None)

    @classmethod
    def load(
        cls,
        path: str | Path,
        *,
        id_column: str | Mapping[str, str] | None = None,
        bottoms: Mapping[str, NetOrBuilder] | None = None,
        completers: Mapping[str, NetOrBuilder] | None = None,
        head: nn.Module | None = None,
    ) -> "XVFLClassifier":
        """Read a model from a folder that `save` or `xvfl train` wrote."""
        own = CustomNets(bottoms, completers, head)
        folder = RunDir(path)
        model = Model.load(folder, own)
        id_column = id_column or folder.manifest().get("id_column")
        self = cls(
            id_column=id_column,
            bottoms=bottoms,
            completers=completers,
            head=head,
            random_state=model.random_state,
        )
        for part in (model.net, model.loss):
            known = {key: value for key, value in vars(part).items() if key in self.get_params()}
            self.set_params(**known)
        self.model_ = model
        self._describe()
        return self

    def _describe(self) -> None:
        self.classes_ = np.asarray(self.model_.classes)
        self.parties_ = list(self.model_.encoders)
        self.feature_names_in_ = {
            name: list(getattr(encoder, "columns", []))
            for name, encoder in self.model_.encoders.items()
        }

    def _plan(self) -> TrainingPlan:
        given = self.get_params(deep=False)
        given = {k: v.item() if isinstance(v, np.generic) else v for k, v in given.items()}
        given["class_weight"] = given["class_weight"] or "none"
        for name in ("lambda1", "lambda2"):
            if isinstance(given[name], Sequence | np.ndarray) and not isinstance(given[name], str):
                given[name] = tuple(given[name])
        parts = []
        for kind in (NetConfig, LossConfig, TrainConfig):
            own = {key: given[key] for key in kind.__dataclass_fields__ if key in given}
            parts.append(build(kind, own, "XVFLClassifier"))
        own_nets = CustomNets(self.bottoms, self.completers, self.head)
        return TrainingPlan(parts[0], parts[1], parts[2], own_nets)

    def _read(self, X: Mapping[str, Table], min_rows: int = 0) -> dict[str, Source]:
        if not isinstance(X, Mapping):
            raise InputError(
                f"expected a dictionary of parties and tables, got {type(X).__name__}; "
                'write {"bank": bank_frame, "shop": shop_frame}'
            )
        return {name: self._read_one(name, table, min_rows) for name, table in X.items()}

    def _read_one(self, name: str, table: Table, min_rows: int) -> Source:
        if isinstance(table, Images):
            return table
        return read_table(table, id_column=self._id_column(name), party=name, min_rows=min_rows)

    def _id_column(self, party: str) -> str | None:
        return self.id_column.get(party) if isinstance(self.id_column, Mapping) else self.id_column

    def _as_written(self, X: Mapping[str, Table], texts: pd.Index) -> pd.Index:
        """Give ids as the tables write them: 7 rather than "7"."""
        back: dict[str, Any] = {}
        for name, table in X.items():
            back |= ids_as_written(table, self._id_column(name))
        index: pd.Index = pd.Index([back.get(each, each) for each in texts], name="id")
        return index

    def _sources_and_labels(
        self, X: Mapping[str, Table], y: Any, min_classes: int = 2
    ) -> tuple[dict[str, Source], pd.Series]:
        sources = self._read(X, min_rows=1 if min_classes > 1 else 0)
        if isinstance(y, tuple) and len(y) == 2:
            return labels_of_party(sources, *y, min_classes=min_classes)
        if isinstance(y, pd.DataFrame) and y.shape[1] == 1:
            y = y.iloc[:, 0]
        if not isinstance(y, pd.Series):
            raise InputError(
                f"y: expected a Series indexed by id or (party, column), got {type(y).__name__}; "
                "write pd.Series(labels, index=ids)"
            )
        return sources, read_labels(
            y, id_column=None, column=None, where="y", min_classes=min_classes
        )

    def _predict(
        self,
        X: Mapping[str, Table],
        mode: Mode | None,
        party: str | None,
        ids: Sequence[str] | None,
    ) -> Prediction:
        check_is_fitted(self, "model_")
        return self.model_.predict(self._read(X), mode, party, _texts(ids))


def _texts(ids: Sequence[Any] | None) -> list[str] | None:
    if ids is None:
        return None
    if isinstance(ids, str):
        raise InputError(f"ids: expected a list of ids, got the text {ids!r}; write [{ids!r}]")
    texts: list[str] = as_text(pd.Series(list(ids), dtype=object)).str.strip().tolist()
    return texts


def ids_as_written(table: Table, column: str | None) -> dict[str, Any]:
    """Map the text of each id of a frame or images to the id itself, where that is no text."""
    if isinstance(table, Images):
        raw = pd.Series(list(table.ids), dtype=object)
    elif isinstance(table, pd.DataFrame):
        raw = table[column] if column in table else table.index.to_series()
    else:
        return {}
    if is_string_dtype(raw):
        return {}
    return dict(zip(as_text(raw).str.strip(), raw.tolist(), strict=True))


def _options(party: str, given: TableOptions | Mapping[str, Any]) -> TableOptions:
    if isinstance(given, TableOptions):
        return given
    options: TableOptions = build(TableOptions, given, f"tables: {party}")
    return options
