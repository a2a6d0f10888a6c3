"""XVFLRegressor: a scikit-learn compatible regressor for tables of several parties."""

from collections.abc import Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray
from sklearn.base import RegressorMixin
from sklearn.metrics import r2_score
from torch import nn

from xvfl.config import LossConfig, NetConfig, TableOptions, TrainConfig
from xvfl.estimator.base_estimator import XVFLEstimator
from xvfl.estimator.estimator_inputs import Tables
from xvfl.methods import Mode
from xvfl.nets import NetOrBuilder


class XVFLRegressor(RegressorMixin, XVFLEstimator):  # type: ignore[misc]
    """Regressor for rows whose features are held by several parties, with missing features.

    Every party holds a table with some of the rows and some of the columns. Rows are matched by
    id. Any feature, and any party's whole row, may be missing, in training and in prediction.

    The target is standardized with the mean and standard deviation of the labeled training rows.
    Nets minimize the squared error.

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
        Custom head. It maps an embedding of size d to one number.
    warm_start : bool, default=False
        Continue from the weights and encoders of the previous `fit`.
    verbose : bool, default=None
        Show progress: a bar in a terminal or a notebook, else a line every 10 seconds. By default
        only the bar.

    Attributes
    ----------
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
    xvfl.XVFLClassifier : The same for classes.
    xvfl.Config : Configuration of `xvfl train`, with the same parameters in a TOML file.
    sklearn.ensemble.HistGradientBoostingRegressor : A strong model for the rows and columns of
        one party, which also accepts missing values.

    Notes
    -----
    `XVFLClassifier` explains the terms and the prediction modes. In regression, the head has one
    output, the standardized target. DSAlign₁, DSAlign₂ and guidance are squared distances between
    predictions. The prediction of several members, and of several decisions, is their mean. After
    training, the spread of the predictions of each mode is fitted on the validation rows.

    Examples
    --------
    Two parties with overlapping rows, some values missing:

    >>> import numpy as np
    >>> import pandas as pd
    >>> from xvfl import XVFLRegressor
    >>> rng = np.random.default_rng(0)
    >>> ids = [f"customer-{i}" for i in range(300)]
    >>> income, visits = rng.normal(size=(2, 300))
    >>> y = pd.Series(100 + 20 * income + 10 * visits, index=ids, name="spending")
    >>> bank = pd.DataFrame({"income": income, "age": rng.integers(18, 80, 300)}, index=ids)
    >>> bank["income"] = bank["income"].mask(rng.random(300) < 0.2)
    >>> shop = pd.DataFrame({"visits": visits}, index=ids).iloc[100:]

    Train on both tables, predict with both or with one of them:

    >>> model = XVFLRegressor(epochs=20, learning_rate=0.01, device="cpu", verbose=False)
    >>> model = model.fit({"bank": bank, "shop": shop}, y)
    >>> model.score({"bank": bank, "shop": shop}, y) > 0.6
    True
    >>> model.predict({"bank": bank}).shape
    (300,)
    """

    _task = "regression"

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

    def score(
        self,
        X: Tables,
        y: Any,
        mode: Mode | None = None,
        party: str | None = None,
        sample_weight: NDArray[np.floating[Any]] | None = None,
    ) -> float:
        """Compute R² over the rows that are both labeled and predicted.

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
            R²: 1 is perfect, 0 is as good as the mean label.

        Raises
        ------
        InputError
            If no labeled id occurs in the tables.
        ModeError
            If the method does not support the mode, or a table that the mode needs is not given.
        """
        predicted, labels, weight = self._scored_labels(X, y, mode, party, sample_weight)
        return float(r2_score(labels, predicted, sample_weight=weight))
