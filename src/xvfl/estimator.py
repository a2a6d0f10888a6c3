"""XVFLClassifier: a scikit-learn compatible classifier for tables of several parties."""

import warnings
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any, Literal

import numpy as np
import pandas as pd
from numpy.typing import NDArray
from pandas.api.types import is_string_dtype
from sklearn.base import BaseEstimator, ClassifierMixin
from sklearn.utils import check_random_state
from sklearn.utils.validation import check_is_fitted
from torch import nn

from xvfl.config import (
    LossConfig,
    NetConfig,
    PrivacyConfig,
    TableOptions,
    TrainConfig,
    build,
)
from xvfl.data.frames import read_table
from xvfl.data.images import Images
from xvfl.data.labels import labels_of_party, read_labels
from xvfl.data.party_frame import (
    is_party_frame,
    labels_of_frame,
    split_frame,
    weights_by_id,
)
from xvfl.data.sources import Source, source_ids, take_ids
from xvfl.data.text import as_text
from xvfl.dataset.in_memory import InMemoryDataset, prepare_in_memory
from xvfl.dataset.prepare import PreparationPlan
from xvfl.dataset.row_weights import weigh_rows
from xvfl.dataset.splits import Splits
from xvfl.errors import DataWarning, InputError
from xvfl.methods import Mode, method_spec
from xvfl.model.custom_nets import CustomNets
from xvfl.model.decision_rule import check_threshold, class_factors, predicted_classes
from xvfl.model.explain.explain_model import ExplainOptions, explain
from xvfl.model.explain.explanation import Explanation
from xvfl.model.fitting import TrainingPlan, fit
from xvfl.model.model import Model
from xvfl.model.progress import progress_bar, show_overlap, work_bar
from xvfl.model.run_dir import RunDir
from xvfl.model.stream_predict import PredictionSummary
from xvfl.nets import NetOrBuilder

Table = Any
"""A pandas or polars DataFrame, a file name, "sql:…", or `Images`."""
Tables = Mapping[str, Table] | pd.DataFrame
"""Tables by party, or one DataFrame whose columns are (party, column) pairs."""
MIN_ROWS = 20
"""Fewer validation rows than this say nothing about predictions that are all of one class."""


class XVFLClassifier(ClassifierMixin, BaseEstimator):  # type: ignore[misc]
    """Classifier for rows whose features are held by several parties, with missing features.

    Every party holds a table with some of the rows and some of the columns. Rows are matched by
    id. Any feature, and any party's whole row, may be missing, in training and in prediction.

    Parameters
    ----------
    id_column : str or dict of str, default=None
        Name of the id column, for all parties or by party. By default the index of a DataFrame
        contains the ids.
    table_options : dict of TableOptions, default=None
        How to read the columns of a party's table, by party.
    method : str, default="xvfl+"
        Training method: `"xvfl+"` is the default, `"xvfl"` the paper's X-VFL. Baselines are
        `"standalone"`, `"vanilla"`, `"iavfl"`, `"fedcvt"`, `"laser"` and `"laser+mask"`.
    lambda1 : float or sequence of float, default=0.1
        Weight λ₁ of the loss DSAlign₁. Of several values the one with the best validation score is
        chosen.
    lambda2 : float or sequence of float, default=0.1
        Weight λ₂ of the loss DSAlign₂. Of several values the one with the best validation score is
        chosen.
    self_completion : float, default=1.0
        Weight of the self-completion loss of `"xvfl+"`: each party predicts alone from masked
        copies of a row, before and after completion. 0 is the loss of `"xvfl"`; `n_masks`,
        `guidance` and `reconstruction` then have no effect.
    n_masks : int, default=0
        Number of masked copies of each row per step in self completion, up to 31. 0 means 1 with
        several members, which draw a mask each, else 2.
    stop_gradient : bool, default=False
        Do not propagate gradients through the targets of DSAlign₁ and DSAlign₂.
    detach_cue : bool, default=False
        Do not propagate gradients through cues.
    guidance : float, default=0.5
        Weight of the joint prediction (soft label) against the true label in the targets of masked
        copies, 0 to 1.
    reconstruction : float, default=0.3
        Weight of the reconstruction loss: completers reproduce observed features.
    cross_completion : bool, default=True
        Complete missing features from the embeddings of other parties. False is an ablation.
    joint_masks : bool, default=True
        In self completion, also predict from the masked copies of all parties together. False is
        an ablation.
    aggregation : {"mean", "concat"}, default="mean"
        How X-VFL combines the embeddings of the parties: their mean, or, as an ablation, their
        concatenation.
    distillation_alpha : float, default=0.5
        Weight α of the distillation loss of `"iavfl"`, 0 to 1.
    distillation_temperature : float, default=2.0
        Temperature of the distillation loss of `"iavfl"`.
    full_threshold : float, default=None
        Share of observed features from which a row counts as full at a party, at most 1 (the
        paper's definition). By default the largest share that at least half of the party's rows
        reach.
    embedding_dim : int, default=0
        Size d of the embeddings. 0 means 32 with several members, else 64 for tables and 256 if a
        party has images.
    hidden_dim : int, default=0
        Size of hidden layers in heads, bottoms of tables and completers. 0 means 64 with several
        members, else 128 for tables and 256 if a party has images.
    n_blocks : int, default=4
        Number of residual blocks in bottoms of images.
    base_channels : int, default=32
        Channels of the first residual block, a multiple of 8.
    seeing_completers : bool, default=False
        In `"xvfl+"`, completers also take the features that their party observes.
    number_embedding_dim : int, default=None
        Size of the periodic embedding of each number of a table. 0 means none. By default 8 with
        several members, else 0.
    members : int, default=0
        Number of nets of each party and of heads, trained at once. Predictions are the mean of
        their log-probabilities. More than one needs tables and default nets. 0 means 4 where that
        is possible and labels and features are not protected, else 1.
    epochs : int, default=0
        Maximum number of passes over the labeled training rows. 0 means, with several members, 16
        to 60, for at least 800 steps, else 60.
    batch_size : int, default=0
        Rows per step. 0 chooses between 64 and 1024, for about 100 steps per epoch.
    optimizer : {"adamw", "adam", "sgd", "page"}, default="adamw"
        Optimizer. `"page"` is the paper's variance-reduced method PAGE.
    learning_rate : float, default=0.0
        Initial learning rate η. 0 means 0.004 with several members, else 0.002.
    schedule : {"cosine", "constant"}, default="cosine"
        Learning rate schedule.
    momentum : float, default=0.9
        Momentum of `"sgd"`.
    weight_decay : float, default=0.01
        Weight decay.
    page_batch_size : int, default=None
        Small batch size b' of PAGE. By default ⌈√batch_size⌉.
    page_probability : float, default=None
        Probability p of a new large-batch gradient in PAGE. By default b'/(b + b').
    validation_fraction : float, default=0.15
        Share of the rows held out for early stopping and calibration.
    patience : int, default=15
        Epochs without a better validation score before training stops. 0 disables early stopping.
    class_weight : dict or "balanced", default=None
        Weights of the classes in the loss, by class. `"balanced"` weights classes inversely to
        their frequency. None weights all rows equally.
    use_unlabeled : bool, default=True
        Train on rows without a label too, if the method can: `"xvfl+"` does.
    completion_interval : int, default=0
        `"xvfl+"` completes features in every n-th step; the other steps train on masked copies
        alone. 0 means 4 with several members, else 1.
    random_state : int, RandomState or None, default=0
        Seed of all random numbers; None draws one.
    device : {"auto", "cpu", "cuda"}, default="auto"
        Device for training. `"auto"` is a GPU if there is one.
    precision : {"float32", "bf16"}, default="float32"
        Precision of the parties' nets on a GPU. `"bf16"` speeds up images.
    label_protection : {"auto", "off", "noise", "no_gradients"}, default="auto"
        Simulates the protection of labels in a federation, to measure its effect on accuracy.
        `"no_gradients"`: parties train their nets by reconstruction alone, and receive no
        gradients. `"noise"`: parties receive gradients of a loss with noisy labels. `"auto"` is
        `"off"` here.
    label_noise : float, default=1.0
        Standard deviation of the label noise of `"noise"`.
    epsilon : float, default=None
        Simulates differential privacy of each row's features at each party, to measure its effect
        on accuracy. Needs a method without completers, such as `"laser"`, and Opacus:
        `pip install "xvfl[dp]"`.
    delta : float, default=1e-5
        The δ of differential privacy.
    bottoms : dict of Module or callable, default=None
        Custom bottom nets by party: a module, or a function of the party's `Layout` and of
        `embedding_dim` that returns one. A bottom maps the encoded columns and their observed
        flags to an embedding of size d.
    completers : dict of Module or callable, default=None
        Custom completers by party, in the same form. A completer maps a cue of size d to the
        encoded columns. If it has an attribute `sees_features` that is true, it also takes the
        input of the bottom: the party's observed features and flags.
    head : Module, default=None
        Custom head. It maps an embedding of size d to one logit per class.
    threshold : {"balanced_accuracy", "f1"} or float, default=None
        How `predict` chooses the class. By default the most probable one, which rare classes
        seldom are. With two classes: the probability from which the second one is predicted, or
        the metric that this threshold maximizes on validation rows. With more classes,
        `"balanced_accuracy"` divides probabilities by the class frequencies. Probabilities do not
        change.
    warm_start : bool, default=False
        Continue from the weights, encoders and classes of the previous `fit`.
    verbose : bool or "auto", default="auto"
        Show a progress bar. `"auto"` shows it in a terminal or a notebook.

    Attributes
    ----------
    classes_ : ndarray of shape (n_classes,)
        Class labels, sorted.
    parties_ : list of str
        Names of the parties.
    n_features_in_ : int
        Total number of features of all parties: columns, and pixels of images.
    feature_names_in_ : dict of list of str
        Columns used, by party; empty for a party with images.
    row_counts_ : dict of int
        Number of rows by use: `"labeled"` and `"unlabeled"` training rows, `"validation"` and
        `"test"`. Only after `fit`.
    overlap_ : DataFrame
        Number of rows of each party and of all parties: `rows` of the table, `shared` with another
        party, `labeled`, and `full` at the party. For all parties: different ids, ids that two
        parties or more hold, labeled ids, and rows that are full at every party. Only after `fit`.
    history_ : list of dict
        Loss terms, validation score and time of each epoch.
    model_ : Model
        The trained model.

    See Also
    --------
    xvfl.Config : Configuration of `xvfl train`, with the same parameters in a TOML file.
    sklearn.ensemble.HistGradientBoostingClassifier : A strong model for the rows and columns of
        one party, which also accepts missing values.

    Notes
    -----
    Terms:

    - Bottom: a party's net, from its features to an embedding, a vector of size d.
    - Head: the coordinator's net, from an embedding, or a mean of embeddings, to one logit per
      class.
    - Completer: a party's net that predicts its missing features from a cue.
    - Cue: the mean embedding of the other parties where the row is full; in self completion, the
      party's own embedding of the row.
    - Full: a row is full at a party if the share of its observed features there is at least
      `full_threshold`. An aligned row is full at every party.
    - DSAlign₁: squared distance between the logits of a party's completed features and those of
      its observed features, on aligned rows.
    - DSAlign₂: squared distance between the logits of each party and those of all parties together,
      on aligned rows.
    - PAGE: a stochastic gradient method with variance reduction. With probability p it computes the
      gradient on a large batch; otherwise it updates the last gradient with a small batch.

    Prediction modes:

    - `"local"`: one party predicts with its own features. Nothing is sent.
    - `"assisted"`: one party predicts with its own features and the embeddings of the parties that
      observe the row in full. Rows without such a party are predicted locally.
    - `"collaborative"`: all parties predict together.
    - `"peers"`: the parties that `"assisted"` relies on, without the party itself. It shows how
      much of an assisted prediction comes from the other parties.

    In `"assisted"` and `"collaborative"`, X-VFL completes missing features from the embeddings of
    other parties. Not every method supports every mode.

    Ids are compared as text: `7` and `"7"` are the same id. Results have the ids of the tables.

    Examples
    --------
    Two parties with overlapping rows, some values missing:

    >>> import numpy as np
    >>> import pandas as pd
    >>> from xvfl import XVFLClassifier
    >>> rng = np.random.default_rng(0)
    >>> ids = [f"customer-{i}" for i in range(300)]
    >>> income, visits = rng.normal(size=(2, 300))
    >>> y = pd.Series(np.where(income + visits > 0, "yes", "no"), index=ids)
    >>> bank = pd.DataFrame({"income": income, "age": rng.integers(18, 80, 300)}, index=ids)
    >>> bank["income"] = bank["income"].mask(rng.random(300) < 0.2)
    >>> shop = pd.DataFrame({"visits": visits}, index=ids).iloc[100:]

    Train on both tables, predict with both or with one of them:

    >>> model = XVFLClassifier(epochs=20, learning_rate=0.01, device="cpu", verbose=False)
    >>> model = model.fit({"bank": bank, "shop": shop}, y)
    >>> model.classes_.tolist()
    ['no', 'yes']
    >>> model.score({"bank": bank, "shop": shop}, y) > 0.8
    True
    >>> model.predict_proba({"bank": bank}).shape
    (300, 2)
    >>> model.predict_table({"shop": shop})["mode"].unique().tolist()
    ['local']

    Complete missing values from the other party:

    >>> completed = model.complete({"bank": bank, "shop": shop}, party="bank")
    >>> int(completed.isna().sum().sum())
    0
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
        n_masks: int = 0,
        stop_gradient: bool = False,
        detach_cue: bool = False,
        guidance: float = 0.5,
        reconstruction: float = 0.3,
        cross_completion: bool = True,
        joint_masks: bool = True,
        aggregation: str = "mean",
        distillation_alpha: float = 0.5,
        distillation_temperature: float = 2.0,
        full_threshold: float | None = None,
        embedding_dim: int = 0,
        hidden_dim: int = 0,
        n_blocks: int = 4,
        base_channels: int = 32,
        seeing_completers: bool = False,
        number_embedding_dim: int | None = None,
        members: int = 0,
        epochs: int = 0,
        batch_size: int = 0,
        optimizer: str = "adamw",
        learning_rate: float = 0.0,
        schedule: str = "cosine",
        momentum: float = 0.9,
        weight_decay: float = 1e-2,
        page_batch_size: int | None = None,
        page_probability: float | None = None,
        validation_fraction: float = 0.15,
        patience: int = 15,
        class_weight: Mapping[Any, float] | str | None = None,
        use_unlabeled: bool = True,
        completion_interval: int = 0,
        random_state: int | np.random.RandomState | None = 0,
        device: str = "auto",
        precision: str = "float32",
        label_protection: str = "auto",
        label_noise: float = 1.0,
        epsilon: float | None = None,
        delta: float = 1e-5,
        bottoms: Mapping[str, NetOrBuilder] | None = None,
        completers: Mapping[str, NetOrBuilder] | None = None,
        head: nn.Module | None = None,
        threshold: float | str | None = None,
        warm_start: bool = False,
        verbose: bool | Literal["auto"] = "auto",
    ) -> None:
        # scikit-learn expects an attribute for each parameter, unchanged.
        parameters = dict(locals())
        del parameters["self"]
        self.__dict__.update(parameters)

    def __sklearn_tags__(self) -> Any:
        tags = super().__sklearn_tags__()
        tags.input_tags.allow_nan = tags.input_tags.categorical = tags.input_tags.string = True
        return tags

    def fit(self, X: Tables, y: Any, sample_weight: Any = None) -> "XVFLClassifier":
        """Train on the tables of the parties and the labels.

        Parameters
        ----------
        X : dict of DataFrame, str, Path or Images
            The table of each party, by party name: a pandas or polars DataFrame, the name of a
            .csv or .parquet file, `"sql:SELECT …"` executed by DuckDB, or `Images`. Two parties or
            more. Or one DataFrame indexed by id with (party, column) columns, as
            `pd.concat(tables, axis=1)` builds it; tools of scikit-learn can select its rows.
        y : Series, one-column DataFrame or tuple of (party, column)
            Labels indexed by id, or the column of a party's table that contains them. A row
            without a label is one whose id is not in `y`, or whose label is missing (NaN, None or
            NA). With `use_unlabeled`, `"xvfl+"` trains on these rows too; other methods leave them
            out. -1 is a class like any other number. With one DataFrame as `X`, also an array in
            the order of its rows.
        sample_weight : array of shape (n_labels,) or Series, default=None
            Weight of each label in the loss: in the order of `y`, or indexed by id. Only ratios
            matter. Validation rows count equally.

        Returns
        -------
        XVFLClassifier
            The fitted classifier.

        Raises
        ------
        InputError
            If a table, its ids or the labels cannot be used.
        ConfigError
            If a parameter is invalid.
        RunError
            If training diverges.

        Warns
        -----
        DataWarning
            If columns or rows are ignored, if all validation rows are predicted to be of one class,
            or if Ctrl-C stops training; the best epoch so far is kept then.
        """
        check_threshold(self.threshold)
        plan = self._plan()
        previous = plan.initial
        unlabeled = self.use_unlabeled and method_spec(plan.loss.method).uses_unlabeled
        sources, labels = self._sources_and_labels(X, y, allow_missing=unlabeled)
        options = {name: _options(name, each) for name, each in (self.table_options or {}).items()}
        splits = Splits(0.0, self.validation_fraction, plan.train.random_state)
        preparation = PreparationPlan(
            options,
            splits,
            self.full_threshold,
            plan.train.class_weight,
            unlabeled,
            None if previous is None else previous.encoders,
        )
        dataset = prepare_in_memory(sources, labels, preparation)
        if previous is not None and dataset.classes != previous.classes:
            raise InputError(
                f"warm_start: expected the classes of the previous fit, {previous.classes}, got "
                f"{dataset.classes}; fit a new model"
            )
        by_class = self.class_weight if isinstance(self.class_weight, Mapping) else None
        if sample_weight is not None or by_class is not None:
            by_id = None if sample_weight is None else self._weights(X, y, sample_weight)
            dataset = weigh_rows(dataset, by_id, by_class)
        show_overlap(dataset.overlap(), self.verbose)
        with progress_bar(self.verbose) as on_progress:
            result = fit(dataset, plan, on_progress=on_progress)
        if result.interrupted and result.diverged:
            raise KeyboardInterrupt
        if result.interrupted:
            text = f"training was interrupted after {len(result.records)} epochs"
            warnings.warn(f"{text}; the best epoch is kept", DataWarning, stacklevel=2)
        self._choose_threshold(result.model, sources, dataset)
        self._set_model(result.model, result.records)
        self.row_counts_ = asdict(result.rows)
        self.overlap_ = pd.DataFrame.from_dict(result.overlap, orient="index")
        return self

    def predict(
        self,
        X: Tables,
        mode: Mode | None = None,
        party: str | None = None,
        ids: Sequence[Any] | None = None,
    ) -> Any:
        """Predict the class of each row.

        Parameters
        ----------
        X : dict of DataFrame, str, Path or Images
            The tables of some or all parties, by party name.
        mode : str, default=None
            Prediction mode: `"local"`, `"assisted"`, `"collaborative"` or `"peers"`. By default
            `"collaborative"` if `X` has the tables of all parties and `party` is None, else
            `"local"`.
        party : str, default=None
            The predicting party, in all modes but `"collaborative"`. Optional if `X` has one table.
        ids : sequence, default=None
            Ids of the rows to predict. By default the rows of `party`, or of all tables in `X`.

        Returns
        -------
        Series of shape (n_rows,)
            Classes, indexed by id. With one DataFrame as `X`, an array in the order of its rows.

        Raises
        ------
        ModeError
            If the method does not support the mode, or a table that the mode needs is not given.
        InputError
            If a table cannot be used.
        """
        prediction = self.predict_table(X, mode, party, ids)["prediction"]
        return prediction.to_numpy() if is_party_frame(X) else prediction

    def predict_proba(
        self,
        X: Tables,
        mode: Mode | None = None,
        party: str | None = None,
        ids: Sequence[Any] | None = None,
    ) -> Any:
        """Predict calibrated class probabilities of each row.

        Parameters
        ----------
        X : dict of DataFrame, str, Path or Images
            The tables of some or all parties, by party name.
        mode : str, default=None
            Prediction mode; see `predict`.
        party : str, default=None
            The predicting party; see `predict`.
        ids : sequence, default=None
            Ids of the rows to predict; see `predict`.

        Returns
        -------
        DataFrame of shape (n_rows, n_classes)
            Probabilities, indexed by id. The columns are `classes_`. With one DataFrame as `X`, an
            array in the order of its rows.

        Raises
        ------
        ModeError
            If the method does not support the mode, or a table that the mode needs is not given.
        InputError
            If a table cannot be used.
        """
        table, classes = self.predict_table(X, mode, party, ids), self.model_.classes
        proba = table[[f"proba_{each}" for each in classes]].set_axis(classes, axis=1)
        return proba.to_numpy() if is_party_frame(X) else proba

    def predict_log_proba(
        self,
        X: Tables,
        mode: Mode | None = None,
        party: str | None = None,
        ids: Sequence[Any] | None = None,
    ) -> Any:
        """Predict the logarithms of the class probabilities of each row.

        Parameters
        ----------
        X : dict of DataFrame, str, Path or Images
            The tables of some or all parties, by party name.
        mode : str, default=None
            Prediction mode; see `predict`.
        party : str, default=None
            The predicting party; see `predict`.
        ids : sequence, default=None
            Ids of the rows to predict; see `predict`.

        Returns
        -------
        DataFrame of shape (n_rows, n_classes)
            As `predict_proba`.

        Raises
        ------
        ModeError
            If the method does not support the mode, or a table that the mode needs is not given.
        InputError
            If a table cannot be used.
        """
        return np.log(self.predict_proba(X, mode, party, ids))

    def predict_table(
        self,
        X: Tables,
        mode: Mode | None = None,
        party: str | None = None,
        ids: Sequence[Any] | None = None,
    ) -> pd.DataFrame:
        """Predict each row, and report how the prediction was obtained.

        Parameters
        ----------
        X : dict of DataFrame, str, Path or Images
            The tables of some or all parties, by party name.
        mode : str, default=None
            Prediction mode; see `predict`.
        party : str, default=None
            The predicting party; see `predict`.
        ids : sequence, default=None
            Ids of the rows to predict; see `predict`.

        Returns
        -------
        DataFrame
            Indexed by id, with the columns `prediction`; `proba_CLASS` for each class; `mode`, the
            mode used (`prior` for a row without observed features or with an unknown id);
            `parties`, the contributing parties joined by `+`; `completed`, the share of features
            that were completed; and `notes` on unusual values, such as an unknown category.

        Raises
        ------
        ModeError
            If the method does not support the mode, or a table that the mode needs is not given.
        InputError
            If a table cannot be used.

        Warns
        -----
        DataWarning
            If rows have no observed feature or an unknown id; their prediction is the class prior.
        """
        check_is_fitted(self, "model_")
        if ids is None and isinstance(X, pd.DataFrame):
            ids = list(X.index)
        table = self.model_.predict(self._read(X), mode, party, _ids_as_text(ids)).frame()
        summary = PredictionSummary()
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
        sources, rows = self._read(X), _ids_as_text(ids)
        _warn_unknown(sources, rows or ())
        tables: dict[str, Any] = {}
        for name in sources if party is None else [party]:
            table = self.model_.complete(sources, name, rows)
            if isinstance(table, pd.DataFrame):
                table = table.set_axis(self._original_ids(X, table.index))
            tables[name] = table
        return tables if party is None else tables[party]

    def score(
        self,
        X: Tables,
        y: Any,
        mode: Mode | None = None,
        party: str | None = None,
        sample_weight: NDArray[np.floating[Any]] | None = None,
    ) -> float:
        """Compute the accuracy over the rows that are both labeled and predicted.

        Parameters
        ----------
        X : dict of DataFrame, str, Path or Images
            The tables of some or all parties, by party name.
        y : Series, one-column DataFrame or tuple of (party, column)
            Labels, as in `fit`.
        mode : str, default=None
            Prediction mode; see `predict`.
        party : str, default=None
            The predicting party; see `predict`.
        sample_weight : array of shape (n_labels,), default=None
            Weight of each label, in the order of `y`.

        Returns
        -------
        float
            Accuracy.

        Raises
        ------
        InputError
            If no label is a class of the model, or no labeled id occurs in the tables.
        ModeError
            If the method does not support the mode, or a table that the mode needs is not given.
        """
        check_is_fitted(self, "model_")
        sources, labels = self._sources_and_labels(X, y, min_classes=1)
        predicted = self.model_.predict(sources, mode, party).frame()["prediction"]
        common = labels.index.intersection(predicted.index, sort=False)
        if not labels.isin(self.model_.classes).any():
            raise InputError(
                f"score: none of the labels is a class of the model, {self.model_.classes}; "
                "check their type: 1 is not '1'"
            )
        if not len(common):
            raise InputError("score: the tables and the labels share no id; check the id columns")
        correct = predicted.loc[common].to_numpy() == labels.loc[common].to_numpy()
        weight = None if sample_weight is None else pd.Series(sample_weight, index=labels.index)
        return float(np.average(correct, weights=None if weight is None else weight.loc[common]))

    def explain(
        self,
        X: Tables,
        y: Any,
        *,
        metric: str = "auto",
        rows: Literal["all", "shared"] = "all",
        ids: Sequence[Any] | None = None,
        n_repeats: int = 5,
        n_samples: int = 300,
        max_rows: int = 10_000,
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
        metric : {"auto", "auroc", "accuracy", "log_loss"}, default="auto"
            Metric of all figures. `"auto"` is AUROC for two classes and accuracy for more.
        rows : {"all", "shared"}, default="all"
            `"all"` labeled rows of the tables; or those that every party observes, which compares
            columns without regard to who holds more rows.
        ids : sequence, default=None
            Rows whose completion to describe. By default those that completion changed most.
        n_repeats : int, default=5
            Permutations of each feature. 0 leaves out the importance of features.
        n_samples : int, default=300
            Bootstrap samples of rows for the 95 % intervals.
        max_rows : int, default=10000
            Of more rows, a random sample is used.

        Returns
        -------
        Explanation
            With the tables `parties`, `features` and `completed_cells`, `plot()`, `to_dict()` and
            `save_html()`.

        Raises
        ------
        InputError
            If no labeled id occurs in the tables, or a parameter is invalid.
        ModeError
            If the method does not predict collaboratively.
        """
        check_is_fitted(self, "model_")
        sources, labels = self._sources_and_labels(X, y, min_classes=1)
        options = ExplainOptions(metric, rows, n_repeats, n_samples, max_rows, _ids_as_text(ids))
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
        XVFLClassifier
            The fitted classifier.

        Raises
        ------
        RunError
            If the folder is missing, incomplete, damaged or of another format, or if custom nets
            are missing.
        """
        folder = RunDir(path)
        model = Model.load(folder, CustomNets(bottoms, completers, head))
        self = cls(
            id_column=id_column or folder.manifest().get("id_column"),
            bottoms=bottoms,
            completers=completers,
            head=head,
            random_state=model.random_state,
        )
        names = self.get_params(deep=False)
        for config in (model.net, model.loss, model.privacy):
            self.set_params(**{key: each for key, each in vars(config).items() if key in names})
        records = [each for each in folder.records() if each.get("kind") == "epoch"]
        self._set_model(model, records)
        return self

    def _set_model(self, model: Model, history: list[dict[str, Any]]) -> None:
        self.model_ = model
        self.history_ = history
        self.classes_ = np.asarray(model.classes)
        self.parties_ = list(model.encoders)
        self.n_features_in_ = sum(layout.raw for layout in model.layouts.values())
        self.feature_names_in_ = {
            name: list(getattr(encoder, "columns", [])) for name, encoder in model.encoders.items()
        }

    def _choose_threshold(
        self, model: Model, sources: Mapping[str, Source], dataset: InMemoryDataset
    ) -> None:
        """Choose the class factors by validation rows; warn if all get the same class."""
        ids = [dataset.ids[place] for place in dataset.validation.tolist()]
        rows = {name: take_ids(source, ids) for name, source in sources.items()}
        y = dataset.rows.y[dataset.validation].numpy()
        collaborative = "collaborative" in model.method.modes
        party = None if collaborative else next(iter(rows))
        mode: Mode = "collaborative" if collaborative else "local"
        proba = model.predict(rows, mode, party, ids).proba
        model.class_factors = class_factors(self.threshold, proba, y, model.prior)
        numbers = predicted_classes(proba, model.class_factors)
        if len(np.unique(numbers)) == 1 and len(np.unique(y)) > 1 and len(y) >= MIN_ROWS:
            warnings.warn(
                f"all {len(y)} validation rows are predicted as {model.classes[numbers[0]]!r}; for "
                "a rare class set threshold='balanced_accuracy' or class_weight='balanced', "
                "otherwise train for more epochs or check the columns",
                DataWarning,
                stacklevel=3,
            )

    def _weights(self, X: Tables, y: Any, sample_weight: Any) -> pd.Series:
        """Index the sample weights by id."""
        if isinstance(X, pd.DataFrame):
            return weights_by_id(sample_weight, X.index)
        if isinstance(y, tuple):
            return weights_by_id(sample_weight, source_ids(self._read({y[0]: X[y[0]]})[y[0]]))
        return weights_by_id(sample_weight, y.index)

    def _plan(self) -> TrainingPlan:
        """Build and check the configuration from the parameters."""
        given = self.get_params(deep=False)
        given = {k: v.item() if isinstance(v, np.generic) else v for k, v in given.items()}
        if given["class_weight"] is None or isinstance(given["class_weight"], Mapping):
            given["class_weight"] = "none"
        if given["random_state"] is None or isinstance(self.random_state, np.random.RandomState):
            given["random_state"] = int(check_random_state(self.random_state).randint(2**31 - 1))
        for name in ("lambda1", "lambda2"):
            if isinstance(given[name], Sequence | np.ndarray) and not isinstance(given[name], str):
                given[name] = tuple(given[name])
        net, loss, train = (
            build(cls, {k: given[k] for k in cls.__dataclass_fields__}, "XVFLClassifier")
            for cls in (NetConfig, LossConfig, TrainConfig)
        )
        nets = CustomNets(self.bottoms, self.completers, self.head)
        names = PrivacyConfig.__dataclass_fields__
        privacy = build(PrivacyConfig, {k: given[k] for k in names}, "XVFLClassifier")
        initial = getattr(self, "model_", None) if self.warm_start else None
        return TrainingPlan(net, loss, train, nets, privacy.resolve(federated=False), initial)

    def _read(self, X: Tables, min_rows: int = 0) -> dict[str, Source]:
        if isinstance(X, pd.DataFrame) and is_party_frame(X):
            return {
                name: read_table(table, id_column=None, party=name, min_rows=min_rows)
                for name, table in split_frame(X).items()
            }
        if not isinstance(X, Mapping):
            raise InputError(
                f"expected a dictionary of parties and tables, got {type(X).__name__}; "
                'write {"bank": bank_frame, "shop": shop_frame}, or pd.concat of it with axis=1'
            )
        return {
            name: table
            if isinstance(table, Images)
            else read_table(table, id_column=self._id_column(name), party=name, min_rows=min_rows)
            for name, table in X.items()
        }

    def _id_column(self, party: str) -> str | None:
        return self.id_column.get(party) if isinstance(self.id_column, Mapping) else self.id_column

    def _original_ids(self, X: Tables, ids: pd.Index) -> pd.Index:
        """Return ids with the type they have in the tables: 7 instead of "7"."""
        original: dict[str, Any] = {}
        if isinstance(X, pd.DataFrame):
            original = ids_by_text(pd.DataFrame(index=X.index), None)
        else:
            for name, table in X.items():
                original |= ids_by_text(table, self._id_column(name))
        index: pd.Index = pd.Index([original.get(each, each) for each in ids], name="id")
        return index

    def _sources_and_labels(
        self,
        X: Tables,
        y: Any,
        min_classes: int = 2,
        allow_missing: bool = False,
    ) -> tuple[dict[str, Source], pd.Series]:
        sources = self._read(X, min_rows=1 if min_classes > 1 else 0)
        if isinstance(X, pd.DataFrame) and not isinstance(y, tuple):
            y = labels_of_frame(X, y)
        if isinstance(y, tuple) and len(y) == 2:
            return labels_of_party(sources, *y, min_classes, allow_missing)
        if isinstance(y, pd.DataFrame) and y.shape[1] == 1:
            y = y.iloc[:, 0]
        if not isinstance(y, pd.Series):
            raise InputError(
                f"y: expected a Series indexed by id or (party, column), got {type(y).__name__}; "
                "write pd.Series(labels, index=ids)"
            )
        return sources, read_labels(
            y, where="y", min_classes=min_classes, allow_missing=allow_missing
        )


def _ids_as_text(ids: Sequence[Any] | None) -> list[str] | None:
    if ids is None:
        return None
    if isinstance(ids, str):
        raise InputError(f"ids: expected a list of ids, got the text {ids!r}; write [{ids!r}]")
    texts: list[str] = as_text(pd.Series(list(ids), dtype=object)).str.strip().tolist()
    return texts


def _warn_unknown(sources: Mapping[str, Source], ids: Sequence[str]) -> None:
    unknown = set(ids).difference(*(source_ids(source) for source in sources.values()))
    if unknown:
        named = ", ".join(map(repr, sorted(unknown)[:2]))
        warnings.warn(
            f"ids: {len(unknown):,} of {len(ids):,} ids are in no given table ({named}); their "
            "values are completed without any observed feature: check the ids",
            DataWarning,
            stacklevel=3,
        )


def ids_by_text(table: Table, column: str | None) -> dict[str, Any]:
    """Map the text of each id to the id, if the ids of a frame or of images are not text."""
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
    options: TableOptions = build(TableOptions, given, f"table_options: {party}")
    return options
