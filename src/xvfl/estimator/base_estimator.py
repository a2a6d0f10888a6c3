"""What both scikit-learn compatible estimators share: fit, predict, complete, save and load."""

import warnings
from collections.abc import Mapping, Sequence
from dataclasses import asdict, fields
from pathlib import Path
from typing import Any, ClassVar, Literal, TypeVar

import numpy as np
import pandas as pd
from sklearn.base import BaseEstimator
from sklearn.utils import check_random_state
from sklearn.utils.validation import check_is_fitted
from torch import nn

from xvfl.config import (
    LossConfig,
    NetConfig,
    PrivacyConfig,
    TaskKind,
    TrainConfig,
    build,
    require_no_class_weight,
)
from xvfl.data.party_frame import (
    is_party_frame,
    weights_by_id,
)
from xvfl.data.sources import Source, source_ids
from xvfl.dataset.in_memory import prepare_in_memory
from xvfl.dataset.overlap import check_labels, check_tables
from xvfl.dataset.prepare import PreparationPlan
from xvfl.dataset.row_weights import weigh_rows
from xvfl.dataset.splits import Splits
from xvfl.errors import InputError, RunError, warn
from xvfl.estimator.estimator_inputs import (
    Tables,
    every_problem_of,
    ids_as_text,
    labels_by_id,
    original_ids,
    read_given_tables,
    read_tables,
    read_tables_and_labels,
    table_options,
    tables_of_previous_fit,
    warn_unknown_ids,
)
from xvfl.methods import Mode
from xvfl.model.custom_nets import CustomNets
from xvfl.model.decision_rule import check_threshold
from xvfl.model.explain.explain_model import ExplainOptions, explain
from xvfl.model.explain.explanation import Explanation
from xvfl.model.fit_report import REPORT, FitReport, read_report
from xvfl.model.fitting import TrainingPlan, fit, resolve_for_dataset, uses_unlabeled
from xvfl.model.given_tables import predict_given
from xvfl.model.model import Model
from xvfl.model.prediction import used_tables
from xvfl.model.progress import progress_bar, show_overlap, show_report, work_bar
from xvfl.model.run_dir import RunDir
from xvfl.model.stream_predict import PredictionSummary
from xvfl.nets import NetOrBuilder

E = TypeVar("E", bound="XVFLEstimator")
CONFIGURED: dict[str, type] = {"net": NetConfig, "loss": LossConfig, "train": TrainConfig}
"""The sections of a configuration that are parameters."""
MOVED = {
    option.name: section for section, config in CONFIGURED.items() for option in fields(config)
}
"""The section of each option; those that are no parameter of version 0.4 were one of 0.3."""


class XVFLEstimator(BaseEstimator):  # type: ignore[misc]
    """What `XVFLClassifier` and `XVFLRegressor` have in common; parameters are attributes."""

    _task: ClassVar[TaskKind]
    net: NetConfig | Mapping[str, Any] | None
    loss: LossConfig | Mapping[str, Any] | None
    train: TrainConfig | Mapping[str, Any] | None

    def get_params(self, deep: bool = True) -> dict[str, Any]:
        """Return the parameters; if `deep`, those of `net`, `loss` and `train` as `net__members`.

        Parameters
        ----------
        deep : bool, default=True
            Whether to add the options in `net`, `loss` and `train`.

        Returns
        -------
        dict
            Values by name.
        """
        params: dict[str, Any] = super().get_params(deep)
        if deep:
            for name in CONFIGURED.keys() & params.keys():
                options = vars(self._configured(name)).items()
                params |= {f"{name}__{key}": value for key, value in options}
        return params

    def set_params(self: E, **params: Any) -> E:
        """Set parameters; those of `net`, `loss` and `train` as `loss__lambda1=0.5`.

        Parameters
        ----------
        **params
            Values by name.

        Returns
        -------
        self
            The estimator.
        """
        own = set(super().get_params(deep=False))
        rest = {}
        for name, value in params.items():
            section, separator, key = name.partition("__")
            if section in CONFIGURED and separator:
                self._set_option(section, key, value)
            elif name in own or name not in MOVED:
                rest[name] = value
            else:
                self._set_old({name: value})
        super().set_params(**rest)
        return self

    def _configured(self, section: str) -> Any:
        """Return `net`, `loss` or `train`; the defaults if it is None."""
        given = getattr(self, section)
        if isinstance(given, CONFIGURED[section]):
            return given
        return build(CONFIGURED[section], given or {}, f"{type(self).__name__}: {section}")

    def _set_option(self, section: str, key: str, value: Any) -> None:
        options = {**vars(self._configured(section)), key: _plain(value)}
        setattr(self, section, build(CONFIGURED[section], options, f"{section}__{key}"))

    def _set_old(self, old: Mapping[str, Any]) -> None:
        """Accept parameters that are now options of `net`, `loss` or `train`."""
        for name, value in old.items():
            if name not in MOVED:
                raise TypeError(
                    f"{type(self).__name__}.__init__() got an unexpected keyword argument {name!r}"
                )
            section = MOVED[name]
            config = CONFIGURED[section].__name__
            warnings.warn(
                f"the parameter {name} is now an option of `{section}`: "
                f"{section}={config}({name}=…); it will not be accepted in version 0.5",
                FutureWarning,
                stacklevel=4,
            )
            self._set_option(section, name, value)

    def __sklearn_tags__(self) -> Any:
        tags = super().__sklearn_tags__()
        tags.input_tags.allow_nan = tags.input_tags.categorical = tags.input_tags.string = True
        return tags

    def fit(self: E, X: Tables, y: Any, sample_weight: Any = None) -> E:
        """Train on the tables of the parties and the labels.

        Parameters
        ----------
        X : dict of DataFrame, str, Path or Images
            The table of each party, by party name: a pandas DataFrame, a polars DataFrame or
            LazyFrame, an Arrow table, the name of a .csv, .csv.gz, .parquet or .xlsx file,
            `"sql:SELECT …"` executed by DuckDB, or `Images`. Two parties or more. Or one DataFrame
            indexed by id with (party, column) columns, as `pd.concat(tables, axis=1)` builds it;
            tools of scikit-learn can select its rows.
        y : Series, one-column DataFrame or tuple of (party, column)
            Labels indexed by id, or the column of a party's table that contains them: classes, or
            numbers for `XVFLRegressor`. A row without a label is one whose id is not in `y`, or
            whose label is missing (NaN, None or NA). `"xvfl+"` trains on these rows too
            (`use_unlabeled`); other methods leave them out. -1 is a label like any other number.
            With one DataFrame as `X`, also an array in the order of its rows.
        sample_weight : array of shape (n_labels,) or Series, default=None
            Weight of each label in the loss: in the order of `y`, or indexed by id. Only ratios
            matter. Validation rows count equally.

        Returns
        -------
        self
            The fitted estimator.

        Raises
        ------
        InputError
            If tables, ids or labels cannot be used; the message lists the problems of all tables.
        ConfigError
            If a parameter is invalid.
        RunError
            If training diverges.

        Warns
        -----
        DataWarning
            If columns or rows are ignored, if a classifier predicts all validation rows to be of
            one class, or if Ctrl-C stops training; the best epoch so far is kept then.
        """
        net, loss, train, privacy = self._sections()
        threshold = _plain(getattr(self, "threshold", None))
        check_threshold(threshold)
        previous: Model | None = getattr(self, "model_", None) if self.warm_start else None
        unlabeled = self.use_unlabeled and uses_unlabeled(loss, privacy)
        options = {
            name: table_options(name, each) for name, each in (self.table_options or {}).items()
        }
        try:
            sources, labels = self._sources_and_labels(X, y, allow_missing=unlabeled)
        except InputError as error:
            raise every_problem_of(error, X, y, self.id_column, options) from error
        if previous is not None:
            sources = tables_of_previous_fit(sources, previous, options)
        splits = Splits(0.0, train.validation_fraction, train.random_state)
        preparation = PreparationPlan(
            options,
            splits,
            loss.full_threshold,
            train.class_weight,
            unlabeled,
            None if previous is None else previous.encoders,
            self._task,
        )
        try:
            dataset = prepare_in_memory(sources, labels, preparation)
        except InputError as error:
            raise every_problem_of(error, X, y, self.id_column, options) from error
        if previous is not None and dataset.classes != previous.classes:
            raise InputError(
                f"warm_start: expected the classes of the previous fit, {previous.classes}, got "
                f"{dataset.classes}; fit a new model"
            )
        class_weight = getattr(self, "class_weight", None)
        by_class = class_weight if isinstance(class_weight, Mapping) else None
        if sample_weight is not None or by_class is not None:
            by_id = None if sample_weight is None else self._weights(X, y, sample_weight)
            dataset = weigh_rows(dataset, by_id, by_class)
        show_overlap(dataset.overlap(), self.verbose)
        nets = CustomNets(self.bottoms, self.completers, self.head)
        resolved = resolve_for_dataset(dataset, net, loss, train, privacy, nets)
        plan = TrainingPlan(resolved, nets, previous, threshold)
        with progress_bar(self.verbose) as on_progress:
            result = fit(dataset, plan, on_progress=on_progress)
        if result.interrupted and result.diverged:
            raise KeyboardInterrupt
        if result.interrupted:
            text = f"training was interrupted after {len(result.records)} epochs"
            warn(f"{text}; the best epoch is kept")
        self._set_model(result.model, result.records)
        self.row_counts_ = asdict(result.rows)
        self.overlap_ = pd.DataFrame.from_dict(result.overlap, orient="index")
        self.report_ = result.report
        if result.report is not None:
            show_report(result.report, self.verbose)
        return self

    def predict(
        self,
        X: Tables,
        mode: Mode | None = None,
        party: str | None = None,
        ids: Sequence[Any] | None = None,
        strict: bool = False,
    ) -> Any:
        """Predict the class, or the number, of each row.

        Parameters
        ----------
        X : dict of DataFrame, str, Path or Images
            The tables of some or all parties, by party name; None: a party that gives nothing.
        mode : str, default=None
            Prediction mode: `"local"`, `"assisted"`, `"collaborative"` or `"peers"`. By default
            `"collaborative"` if `X` has the tables of all parties and `party` is None, else
            `"local"`.
        party : str, default=None
            The predicting party, in all modes but `"collaborative"`. Optional if `X` has one table.
        ids : sequence, default=None
            Ids of the rows to predict. By default the rows of `party`, or of all tables in `X`.
        strict : bool, default=False
            Refuse a table without rows, or without a column used in training. By default they count
            as missing, with a note.

        Returns
        -------
        Series of shape (n_rows,)
            Classes or numbers, indexed by id. With one DataFrame as `X`, an array in the order of
            its rows.

        Raises
        ------
        ModeError
            If the method does not support the mode, or a table that the mode needs is not given.
        InputError
            If a table cannot be used.
        """
        prediction = self.predict_table(X, mode, party, ids, strict)["prediction"]
        return prediction.to_numpy() if is_party_frame(X) else prediction

    def predict_table(
        self,
        X: Tables,
        mode: Mode | None = None,
        party: str | None = None,
        ids: Sequence[Any] | None = None,
        strict: bool = False,
    ) -> pd.DataFrame:
        """Predict each row, and report how the prediction was obtained.

        Parameters
        ----------
        X : dict of DataFrame, str, Path or Images
            The tables of some or all parties, by party name; None: a party that gives nothing.
        mode : str, default=None
            Prediction mode; see `predict`.
        party : str, default=None
            The predicting party; see `predict`.
        ids : sequence, default=None
            Ids of the rows to predict; see `predict`.
        strict : bool, default=False
            Refuse absent columns and parties; see `predict`.

        Returns
        -------
        DataFrame
            Indexed by id, with the columns `prediction`; `proba_CLASS` for each class of a
            classifier; `mode`, the mode used (`prior` for a row without observed features or with
            an unknown id); `parties`, the contributing parties joined by `+`; `completed`, the
            share of features that were completed; and `notes` on unusual values, such as an
            unknown category, and on columns and parties that are not given.

        Raises
        ------
        ModeError
            If the method does not support the mode, or a table that the mode needs is not given.
        InputError
            If a table cannot be used.

        Warns
        -----
        DataWarning
            If rows have no observed feature or an unknown id; their prediction is the class prior,
            or the mean label. If ids of two tables differ only in spelling, or hardly any id
            occurs in both. If an absent column seems to be renamed.
        """
        check_is_fitted(self, "model_")
        if ids is None and isinstance(X, pd.DataFrame):
            ids = list(X.index)
        sources, rows = read_given_tables(X, self.id_column, self.model_), ids_as_text(ids)
        check_tables(self._used(sources, mode, party))
        table = predict_given(self.model_, sources, mode, party, rows, strict).frame()
        summary = PredictionSummary(self.model_.task.prior_name)
        summary.add(table)
        summary.warn()
        return table.set_axis(self._original_ids(X, table.index))

    def complete(
        self, X: Tables, party: str | None = None, ids: Sequence[Any] | None = None
    ) -> Any:
        """Fill missing values of the tables, in their own columns and units.

        Observed values are unchanged, and so are columns that were ignored in training.

        Parameters
        ----------
        X : dict of DataFrame, str, Path or Images
            The tables of some or all parties, by party name.
        party : str, default=None
            The party whose table to complete. By default all tables in `X`.
        ids : sequence, default=None
            Ids of the rows to complete, also of rows that the party does not hold. By default the
            rows of the table.

        Returns
        -------
        DataFrame, Images or dict
            The completed table of `party`, or a dictionary of completed tables by party name.

        Raises
        ------
        ModeError
            If the model was trained without cross completion, or the table of `party` is not given.
        InputError
            If a table cannot be used.
        """
        check_is_fitted(self, "model_")
        sources, rows = self._read(X), ids_as_text(ids)
        check_tables(sources)
        warn_unknown_ids(sources, rows or ())
        tables: dict[str, Any] = {}
        for name in sources if party is None else [party]:
            table = self.model_.complete(sources, name, rows)
            if isinstance(table, pd.DataFrame):
                table = table.set_axis(self._original_ids(X, table.index))
            tables[name] = table
        return tables if party is None else tables[party]

    def complete_details(
        self,
        X: Tables,
        party: str | None = None,
        ids: Sequence[Any] | None = None,
        *,
        level: float = 0.8,
        n_draws: int = 0,
        random_state: int | None = None,
    ) -> Any:
        """Fill missing values as `complete`, and describe each filled cell.

        Intervals and probabilities are calibrated on the validation rows of `fit`, with cells
        hidden at random: an interval holds the true value in a share `level` of such cells.

        Parameters
        ----------
        X : dict of DataFrame, str or Path
            The tables of some or all parties, by party name.
        party : str, default=None
            The party whose table to complete. By default all tables in `X`.
        ids : sequence, default=None
            Ids of the rows to complete; see `complete`.
        level : float, default=0.8
            Share of the true values that the intervals hold.
        n_draws : int, default=0
            Number of completed tables to draw from the distributions of the filled cells.
        random_state : int, default=None
            Seed of the draws. By default `random_state` of the training.

        Returns
        -------
        Completion or dict of Completion
            With the attributes `table`, `filled`, `cells`, `probabilities` and `draws`. A
            dictionary by party name if `party` is None.

        Raises
        ------
        ModeError
            If the model was trained without cross completion, or the table of `party` is not given.
        InputError
            If a table or a parameter cannot be used, or if draws are requested from a model
            without distributions of filled cells.

        Warns
        -----
        DataWarning
            If the model has no distributions of filled cells.
        """
        check_is_fitted(self, "model_")
        sources, rows = self._read(X), ids_as_text(ids)
        check_tables(sources)
        warn_unknown_ids(sources, rows or ())
        seed = self.model_.random_state if random_state is None else random_state
        details = {}
        for name in sources if party is None else [party]:
            self.model_.check_details(name, level, n_draws)
            rng = np.random.default_rng(seed)
            each = self.model_.complete_details(sources, name, rows, level, n_draws, rng)
            details[name] = each.rename_ids(lambda index: self._original_ids(X, index))
        return details if party is None else details[party]

    def explain(
        self,
        X: Tables,
        y: Any,
        *,
        metric: str | None = None,
        rows: Literal["all", "shared"] = "all",
        ids: Sequence[Any] | None = None,
        n_repeats: int = 5,
        n_samples: int = 300,
        max_rows: int = 1_500,
        completion: bool = True,
    ) -> Explanation:
        """Explain the model: what parties and features are worth, and what completion changed.

        Parties are compared on the same rows, by predictions of this model with every subset of
        them; nothing is trained again. Give rows that were not used in training.

        Parameters
        ----------
        X : dict of DataFrame, str, Path or Images
            The tables of some or all parties, by party name.
        y : Series, one-column DataFrame or tuple of (party, column)
            Labels, as in `fit`.
        metric : str, default=None
            Metric of all figures: `"auroc"`, `"accuracy"` or `"log_loss"` of a classifier, `"r2"`,
            `"squared_error"` or `"absolute_error"` of a regressor. By default AUROC for two
            classes, accuracy for more, and R² for numbers.
        rows : {"all", "shared"}, default="all"
            `"all"` labeled rows of the tables; or those that every party observes, which compares
            columns without regard to who holds more rows.
        ids : sequence, default=None
            Rows whose completion to describe. By default those that completion changed most.
        n_repeats : int, default=5
            Permutations of each feature. 0 leaves out the importance of features.
        n_samples : int, default=300
            Bootstrap samples of rows for the 95 % intervals. Those of the parties hold jointly
            for all parties.
        max_rows : int, default=1500
            Of more rows, a random sample is used.
        completion : bool, default=True
            Whether to compute what completion changed. With `completion=False` and `n_repeats=0`,
            only the worth of the parties is computed.

        Returns
        -------
        Explanation
            With the tables `parties`, `features` and `completed_cells`, `plot()`, `to_dict()` and
            `save_html()`.

        Raises
        ------
        InputError
            If no labeled id occurs in the tables, if all labels are equal and the metric needs
            two, or if a parameter is invalid.
        ModeError
            If the method does not predict collaboratively.

        Warns
        -----
        DataWarning
            If the ids of the tables, or of the labels, hardly match.
        """
        check_is_fitted(self, "model_")
        sources, labels = self._sources_and_labels(X, y, min_classes=1)
        self.model_.check_parties(sources)
        check_tables(sources)
        check_labels(labels.index, sources)
        options = ExplainOptions(
            metric, rows, n_repeats, n_samples, max_rows, ids_as_text(ids), completion
        )
        with work_bar("explaining", self.verbose) as report:
            return explain(self.model_, sources, labels, options, report)

    def save(self, path: str | Path) -> None:
        """Write the model to a folder, as JSON and safetensors.

        Custom nets are not stored, only their weights. `pickle` and `joblib` also work; unlike
        them, these files cannot execute code when loaded.

        Parameters
        ----------
        path : str or Path
            Folder, created if it does not exist.

        Raises
        ------
        RunError
            If the folder cannot be written.
        """
        check_is_fitted(self, "model_")
        folder = RunDir(path)
        self.model_.save(folder, {"id_column": self.id_column} if self.id_column else None)
        report: FitReport | None = getattr(self, "report_", None)
        if report is not None:
            folder.write_json(REPORT, report.to_dict())
        else:
            (folder / REPORT).unlink(missing_ok=True)

    @classmethod
    def load(
        cls: type[E],
        path: str | Path,
        *,
        id_column: str | Mapping[str, str] | None = None,
        bottoms: Mapping[str, NetOrBuilder] | None = None,
        completers: Mapping[str, NetOrBuilder] | None = None,
        head: nn.Module | None = None,
    ) -> E:
        """Read a model from a folder that `save` or `xvfl train` wrote.

        Parameters of the method and the nets are restored, parameters of the optimizer are not
        stored.

        Parameters
        ----------
        path : str or Path
            Model folder or run folder.
        id_column : str or dict of str, default=None
            Name of the id column in new tables. By default as in training.
        bottoms, completers, head : default=None
            The custom nets of training, if there were any.

        Returns
        -------
        self
            The fitted estimator.

        Raises
        ------
        RunError
            If the folder is missing, incomplete, damaged or of another format, if custom nets are
            missing, or if a classifier loads a model that predicts numbers or the reverse.
        """
        folder = RunDir(path)
        model = Model.load(folder, CustomNets(bottoms, completers, head))
        if model.task.kind != cls._task:
            other = "XVFLRegressor" if model.task.kind == "regression" else "XVFLClassifier"
            raise RunError(f"{folder.path}: a model for {model.task.kind}; load it with {other}")
        self = cls(
            id_column=id_column or folder.manifest().get("id_column"),
            bottoms=bottoms,
            completers=completers,
            head=head,
            random_state=model.random_state,
        )
        self.net, self.loss = model.head_net or model.net, model.loss
        names = super(XVFLEstimator, self).get_params(deep=False)
        for config in (self.net, self.loss, model.privacy):
            for key in vars(config).keys() & names.keys():
                setattr(self, key, getattr(config, key))
        records = [each for each in folder.records() if each.get("kind") == "epoch"]
        self._set_model(model, records)
        self.report_ = read_report(folder)
        return self

    def _set_model(self, model: Model, history: list[dict[str, Any]]) -> None:
        self.model_ = model
        self.history_ = history
        self.parties_ = list(model.encoders)
        self.n_features_in_ = sum(layout.raw for layout in model.layouts.values())
        self.feature_names_in_ = {
            name: list(getattr(encoder, "columns", [])) for name, encoder in model.encoders.items()
        }

    def _scored_labels(
        self, X: Tables, y: Any, mode: Mode | None, party: str | None, sample_weight: Any
    ) -> tuple[pd.Series, pd.Series, Any]:
        """Predict labeled rows; return predictions, labels and weights of the same rows."""
        check_is_fitted(self, "model_")
        sources, labels = read_tables_and_labels(
            X, y, self.id_column, self._task, min_classes=1, model=self.model_
        )
        used = self._used(sources, mode, party)
        check_tables(used)
        check_labels(labels.index, used)
        predicted = predict_given(self.model_, sources, mode, party).frame()["prediction"]
        common = labels.index.intersection(predicted.index, sort=False)
        if not self.model_.task.known(labels.to_numpy()).any():
            raise InputError(
                f"score: none of the labels is a class of the model, {self.model_.classes}; "
                "check their type: 1 is not '1'"
            )
        if not len(common):
            raise InputError("score: the tables and the labels share no id; check the id columns")
        weight = None if sample_weight is None else pd.Series(sample_weight, index=labels.index)
        weight = None if weight is None else weight.loc[common]
        return predicted.loc[common], labels.loc[common], weight

    def _used(
        self, sources: Mapping[str, Source], mode: Mode | None, party: str | None
    ) -> dict[str, Source]:
        """Select the tables that a prediction uses."""
        return used_tables(self.model_.resolve_request(sources, mode, party), sources)

    def _weights(self, X: Tables, y: Any, sample_weight: Any) -> pd.Series:
        """Index the sample weights by id."""
        if isinstance(X, pd.DataFrame):
            return weights_by_id(sample_weight, X.index)
        if isinstance(y, tuple):
            return weights_by_id(sample_weight, source_ids(self._read({y[0]: X[y[0]]})[y[0]]))
        return weights_by_id(sample_weight, labels_by_id(X, y, self.id_column).index)

    def _sections(self) -> tuple[NetConfig, LossConfig, TrainConfig, PrivacyConfig]:
        """Build and check the sections of a configuration from the parameters."""
        own = super().get_params(deep=False)
        given = {name: _plain(value) for name, value in own.items() if value is not None}
        given["random_state"] = self._seed()
        if isinstance(given.get("class_weight"), Mapping):
            given["class_weight"] = "none"
        sections = []
        for section in (*CONFIGURED, "privacy"):
            config = CONFIGURED.get(section, PrivacyConfig)
            options = vars(self._configured(section)) if section in CONFIGURED else {}
            chosen = {each.name: given[each.name] for each in fields(config) if each.name in given}
            sections.append(build(config, {**options, **chosen}, type(self).__name__))
        net, loss, train, privacy = sections
        require_no_class_weight(self._task, train)
        return net, loss, train, privacy

    def _seed(self) -> int:
        """Return the seed of all random numbers; None and a generator draw one."""
        if self.random_state is None or isinstance(self.random_state, np.random.RandomState):
            return int(check_random_state(self.random_state).randint(2**31 - 1))
        seed: int = _plain(self.random_state)
        return seed

    def _read(self, X: Tables) -> dict[str, Source]:
        return read_tables(X, self.id_column)

    def _original_ids(self, X: Tables, ids: pd.Index) -> pd.Index:
        return original_ids(X, self.id_column, ids)

    def _sources_and_labels(
        self, X: Tables, y: Any, min_classes: int = 2, allow_missing: bool = False
    ) -> tuple[dict[str, Source], pd.Series]:
        return read_tables_and_labels(X, y, self.id_column, self._task, min_classes, allow_missing)


def _plain(value: Any) -> Any:
    """Return a numpy scalar as a Python number."""
    return value.item() if isinstance(value, np.generic) else value
