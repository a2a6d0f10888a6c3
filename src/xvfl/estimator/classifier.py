"""XVFLClassifier: a scikit-learn compatible classifier for tables of several parties."""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import pandas as pd
from numpy.typing import NDArray
from sklearn.base import ClassifierMixin
from torch import nn

from xvfl.config import LossConfig, NetConfig, TableOptions, TrainConfig
from xvfl.data.party_frame import is_party_frame
from xvfl.estimator.base_estimator import XVFLEstimator
from xvfl.estimator.estimator_inputs import Tables
from xvfl.methods import Mode
from xvfl.model.model import Model
from xvfl.nets import NetOrBuilder

MIN_ROWS = 20
"""Fewer validation rows than this say nothing about predictions that are all of one class."""


class XVFLClassifier(ClassifierMixin, XVFLEstimator):  # type: ignore[misc]
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
    method : str, default=None
        Training method: `"xvfl+"` is the default, `"xvfl"` the paper's X-VFL. Baselines are
        `"standalone"`, `"vanilla"`, `"laser"` and `"laser+mask"`.
    embedding_dim : int, default=None
        Size d of the embeddings; by default 16 with differential privacy, 256 if a party has images
        or labels are protected, 32 with several members, else 64.
    hidden_dim : int, default=None
        Size of hidden layers in heads, bottoms of tables and completers; by default 256 if a party
        has images or labels are protected, 64 with several members, else 128.
    members : int, default=None
        Number of nets of each party and of heads, trained at once; predictions are averaged. More
        than one needs tables, default nets and gradients, and multiplies the embeddings in every
        message. By default, for tables with default nets in one process without privacy options 4,
        or 2 with more than 20,000 training rows or 128 numbers of a party; else 1.
    epochs : int, default=None
        Maximum number of passes over the labeled training rows; by default, with several members
        that receive gradients 12 to 60, for at least 720 steps, or with more than 20,000 training
        rows 6 to 60, for at least 500; else 60.
    batch_size : int, default=None
        Rows per step; by default between 64 and 1024, for about 100 steps per epoch, or fewer steps
        with unlabeled images; with several members and automatic epochs between 128 and 2048, for
        about 50 steps per epoch.
    optimizer : {"sgd", "adam", "adamw", "muon", "page"}, default=None
        Optimizer; by default `muon` with several members that receive gradients and at least 200
        steps, else `adamw`. `muon` takes steps along the orthogonalized momentum of weight
        matrices, and those of `adamw` for all other weights; `page` is the paper's variance-reduced
        method PAGE.
    learning_rate : float, default=None
        Initial learning rate η; by default, with several members that receive gradients 4e-3, or
        5e-3 with more than 20,000 training rows; else 2e-3.
    weight_decay : float, default=None
        Weight decay. By default 0.01.
    validation_fraction : float, default=None
        Share of the rows outside the test set held out for early stopping and calibration. By
        default 0.15.
    patience : int, default=None
        Epochs without a better validation score before training stops; 0 = no early stopping. By
        default 15.
    full_threshold : float, default=None
        Share of observed features from which a row counts as full at a party, at most 1 (the
        paper's definition); by default the largest share that at least half of the party's rows
        reach.
    class_weight : dict or "balanced", default=None
        Weights of the classes in the loss, by class. `"balanced"` weights classes inversely to
        their frequency. None weights all rows equally.
    threshold : {"balanced_accuracy", "f1"} or float, default=None
        How `predict` chooses the class. By default the most probable one, which rare classes
        seldom are. With two classes: the probability from which the second one is predicted, or
        the metric that this threshold maximizes on validation rows. With more classes,
        `"balanced_accuracy"` divides probabilities by the class frequencies. Probabilities do not
        change.
    use_unlabeled : bool, default=True
        Train on rows without a label too, if the method can: `xvfl+` does, and so do the encoders
        of every method with `no_gradients`.
    random_state : int, RandomState or None, default=0
        Seed of all random numbers; None draws one.
    device : {"cpu", "cuda"}, default=None
        Device for training; by default a GPU if there is one.
    precision : {"float32", "bf16"}, default=None
        Precision of the parties' nets on a GPU; `bf16` speeds up images. By default "float32".
    label_protection : {"off", "noise", "no_gradients"}, default=None
        What parties receive that depends on labels. `off`: gradients of the loss. `noise`:
        gradients of a loss with noisy labels. `no_gradients`: nothing; each party trains its
        encoder alone and uploads its embeddings once. By default `no_gradients` in a federation or
        with `epsilon`, else `off`.
    label_noise : float, default=1.0
        Standard deviation of the noise that `noise` adds to the one-hot labels of a row, the same
        noise in every step.
    epsilon : float, default=None
        Differential privacy: the ε of each row's features at each party, 0.01 to 50, of a run in
        one process; needs `no_gradients`. In a federation, each party sets `epsilon` in its
        `[encoder]`. By default there is none.
    delta : float, default=1e-05
        The δ of differential privacy; choose it well below 1 / number of rows.
    net : NetConfig or dict, default=None
        Further options of the nets: `NetConfig(n_blocks=2)`. The parameters of this class take
        precedence where they are not None.
    loss : LossConfig or dict, default=None
        Further options of the method and its loss: `LossConfig(lambda1=0.5)`.
    train : TrainConfig or dict, default=None
        Further options of the training: `TrainConfig(schedule="constant")`.
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
    warm_start : bool, default=False
        Continue from the weights, encoders and classes of the previous `fit`.
    verbose : bool, default=None
        Show progress: a bar in a terminal or a notebook, else a line every 10 seconds. By default
        only the bar.

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
    report_ : FitReport
        What `fit` did, also printed at its end where progress is shown: rows and columns, the
        validation scores of each mode (`table`), of the class frequencies or the mean and, with
        LightGBM, of trees; where completion is used (`completion`); what to try next (`hints`).
        `to_dict()` returns it as JSON. None if training was interrupted.
    history_ : list of dict
        Loss terms, validation score and time of each epoch.
    model_ : Model
        The trained model.

    See Also
    --------
    xvfl.XVFLRegressor : The same for numbers.
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

    _task = "classification"

    def __init__(
        self,
        *,
        id_column: str | Mapping[str, str] | None = None,
        table_options: Mapping[str, TableOptions] | None = None,
        method: str | None = None,
        embedding_dim: int | None = None,
        hidden_dim: int | None = None,
        members: int | None = None,
        epochs: int | None = None,
        batch_size: int | None = None,
        optimizer: str | None = None,
        learning_rate: float | None = None,
        weight_decay: float | None = None,
        validation_fraction: float | None = None,
        patience: int | None = None,
        full_threshold: float | None = None,
        class_weight: Mapping[Any, float] | str | None = None,
        threshold: float | str | None = None,
        use_unlabeled: bool = True,
        random_state: int | np.random.RandomState | None = 0,
        device: str | None = None,
        precision: str | None = None,
        label_protection: str | None = None,
        label_noise: float = 1.0,
        epsilon: float | None = None,
        delta: float = 1e-5,
        net: NetConfig | Mapping[str, Any] | None = None,
        loss: LossConfig | Mapping[str, Any] | None = None,
        train: TrainConfig | Mapping[str, Any] | None = None,
        bottoms: Mapping[str, NetOrBuilder] | None = None,
        completers: Mapping[str, NetOrBuilder] | None = None,
        head: nn.Module | None = None,
        warm_start: bool = False,
        verbose: bool | None = None,
        **old: Any,
    ) -> None:
        self.id_column = id_column
        self.table_options = table_options
        self.method = method
        self.embedding_dim = embedding_dim
        self.hidden_dim = hidden_dim
        self.members = members
        self.epochs = epochs
        self.batch_size = batch_size
        self.optimizer = optimizer
        self.learning_rate = learning_rate
        self.weight_decay = weight_decay
        self.validation_fraction = validation_fraction
        self.patience = patience
        self.full_threshold = full_threshold
        self.class_weight = class_weight
        self.threshold = threshold
        self.use_unlabeled = use_unlabeled
        self.random_state = random_state
        self.device = device
        self.precision = precision
        self.label_protection = label_protection
        self.label_noise = label_noise
        self.epsilon = epsilon
        self.delta = delta
        self.net = net
        self.loss = loss
        self.train = train
        self.bottoms = bottoms
        self.completers = completers
        self.head = head
        self.warm_start = warm_start
        self.verbose = verbose
        self._set_old(old)

    def predict_proba(
        self,
        X: Tables,
        mode: Mode | None = None,
        party: str | None = None,
        ids: Sequence[Any] | None = None,
        strict: bool = False,
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
        strict : bool, default=False
            Refuse absent columns and parties; see `predict`.

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
        table, classes = self.predict_table(X, mode, party, ids, strict), self.model_.classes
        proba = table[[f"proba_{each}" for each in classes]].set_axis(classes, axis=1)
        return proba.to_numpy() if is_party_frame(X) else proba

    def predict_log_proba(
        self,
        X: Tables,
        mode: Mode | None = None,
        party: str | None = None,
        ids: Sequence[Any] | None = None,
        strict: bool = False,
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
        strict : bool, default=False
            Refuse absent columns and parties; see `predict`.

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
        return np.log(self.predict_proba(X, mode, party, ids, strict))

    def decision_function(
        self,
        X: Tables,
        mode: Mode | None = None,
        party: str | None = None,
        ids: Sequence[Any] | None = None,
        strict: bool = False,
    ) -> Any:
        """Compute the confidence of each row: log-odds of two classes, else log-probabilities.

        With a `threshold` and several classes, the logarithms of its factors are added.

        Its sign, or largest column, is the prediction of `predict`, also with a `threshold`.

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
        strict : bool, default=False
            Refuse tables without rows or columns; see `predict`.

        Returns
        -------
        Series of shape (n_rows,) or DataFrame of shape (n_rows, n_classes)
            Of two classes the log-odds of `classes_[1]`, indexed by id. With one DataFrame as `X`,
            an array in the order of its rows.

        Raises
        ------
        ModeError
            If the method does not support the mode, or a table that the mode needs is not given.
        InputError
            If a table cannot be used.
        """
        proba = self.predict_proba(X, mode, party, ids, strict)
        factors = np.asarray(self.model_.class_factors or np.ones(len(self.classes_)))
        logs = np.log(np.clip(proba * factors, np.finfo(float).tiny, None))
        if len(self.classes_) != 2:
            return logs
        if isinstance(logs, pd.DataFrame):
            return (logs.iloc[:, 1] - logs.iloc[:, 0]).rename(None)
        return logs[:, 1] - logs[:, 0]

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
        predicted, labels, weight = self._scored_labels(X, y, mode, party, sample_weight)
        return float(np.average(predicted.to_numpy() == labels.to_numpy(), weights=weight))

    def _set_model(self, model: Model, history: list[dict[str, Any]]) -> None:
        super()._set_model(model, history)
        self.classes_ = np.asarray(model.classes)
