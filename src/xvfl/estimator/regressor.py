"""XVFLRegressor: a scikit-learn compatible regressor for tables of several parties."""

from collections.abc import Mapping
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray
from sklearn.base import RegressorMixin
from sklearn.metrics import r2_score
from torch import nn

from xvfl.config import TableOptions
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
    method : str, default="xvfl+"
        Training method: `"xvfl+"` is the default, `"xvfl"` the paper's X-VFL. Baselines are
        `"standalone"`, `"vanilla"`, `"laser"` and `"laser+mask"`.
    lambda1 : float, default=0.1
        Weight λ₁ of the loss DSAlign₁.
    lambda2 : float, default=0.1
        Weight λ₂ of the loss DSAlign₂.
    self_completion : float, default=None
        Weight of the self-completion loss of `"xvfl+"`: each party predicts alone from masked
        copies of a row, before and after completion. None means 1, and 2/k for k > 2 parties with
        images. 0 is the loss of `"xvfl"`; `n_masks`, `unmasked_copies`, `guidance` and
        `reconstruction` then have no effect.
    n_masks : int, default=0
        Number of masked copies of each row per step in self completion, up to 31. 0 means 1 with
        several members, else 2.
    unmasked_copies : float, default=None
        Share of the masked copies of `"xvfl+"` and `"laser+mask"` that keep all observed features,
        0 to below 1. None means 0; with a `completion_interval` above 1 each party chooses up to
        1/2: more if less is missing in its training rows, 0 with hashed categories.
    stop_gradient : bool, default=False
        Do not propagate gradients through the targets of DSAlign₁ and DSAlign₂.
    detach_cue : bool, default=False
        Do not propagate gradients through cues.
    guidance : float, default=None
        Weight of the joint prediction against the true label in the targets of masked copies, 0 to
        1. None means 1 with a `completion_interval` above 1, where the other steps use the true
        label, else 0.5.
    reconstruction : float, default=0.3
        Weight of the reconstruction loss: completers reproduce observed features.
    cross_completion : bool, default=True
        Complete missing features from the embeddings of other parties. False is an ablation.
    joint_masks : bool, default=None
        In self completion, also predict from the masked copies of all parties together. None means
        True, unless a party has images.
    aggregation : {"mean", "concat"}, default="mean"
        How X-VFL combines the embeddings of the parties: their mean, or, as an ablation, their
        concatenation.
    full_threshold : float, default=None
        Share of observed features from which a row counts as full at a party, at most 1 (the
        paper's definition). By default the largest share that at least half of the party's rows
        reach.
    embedding_dim : int, default=0
        Size d of the embeddings. 0 means 16 with differential privacy, 256 if a party has images or
        labels are protected, 32 with several members, else 64.
    hidden_dim : int, default=0
        Size of hidden layers in heads, bottoms of tables and completers. 0 means 256 if a party has
        images or labels are protected, 64 with several members, else 128.
    n_blocks : int, default=4
        Number of residual blocks in bottoms of images.
    base_channels : int, default=32
        Channels of the first residual block, a multiple of 8.
    seeing_completers : bool, default=None
        In `"xvfl+"`, completers also take the features that their party observes. None means those
        of images.
    number_embedding_dim : int, default=None
        Size of the embedding of each number of a table. 0 means none. By default 8 with
        several members and without privacy options, unless a party has more than 128 numbers, or
        with `label_protection="no_gradients"` and
        without `epsilon`, else 0.
    skip_rank : int, default=None
        Rank of a linear map from the features of a table to its embedding, added to the bottom's
        output; 0 for none, the default.
    members : int, default=0
        Number of nets of each party and of heads, trained at once. Predictions are the mean of
        theirs. More than one needs tables and default nets. 0 means 4,
        or 2 with more than 20,000 training rows or 128 numbers of a party, where that is possible
        and labels and features are not protected; else 1.
    heads : int, default=0
        Number of nets of the head on the parties' uploads, with
        `label_protection="no_gradients"`. Predictions are averaged as those of members. 0 means 4
        with default nets, else 1.
    epochs : int, default=0
        Maximum number of passes over the labeled training rows. 0 means, with several members that
        receive gradients, 12 to 60, for at least 720 steps, or with more than 20,000 training
        rows 6 to 60, for at least 500; else 60.
    batch_size : int, default=0
        Rows per step. 0 chooses between 64 and 1024, for about 100 steps per epoch, or fewer steps
        with unlabeled images; with several members and automatic epochs between 128 and 2048, for
        about 50 steps per epoch.
    optimizer : {"muon", "adamw", "adam", "sgd", "page"}, default=None
        Optimizer. None means `"muon"` with several members that receive gradients and at least 200
        steps, else `"adamw"`.
        `"page"` is the paper's variance-reduced method PAGE.
    learning_rate : float, default=0.0
        Initial learning rate η. 0 means, with several members that receive gradients, 0.004, or
        0.005 with more than 20,000 training rows; else 0.002.
    schedule : {"cosine", "constant", "warmup"}, default="cosine"
        Learning rate schedule; `warmup` is `cosine` after a linear increase.
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
    use_unlabeled : bool, default=True
        Train on rows without a label too, if the method can: `"xvfl+"` does, and so do the
        encoders of every method with `label_protection="no_gradients"`.
    completion_interval : int, default=0
        `"xvfl+"` completes features in every n-th step; the other steps train on masked copies
        alone. 0 means 8 to 64 with several members that receive gradients, for about 25 such
        steps, 12 with more than 20,000 training rows, but 1 with `"page"`; else 1.
    image_shift : float, default=0.125
        Images are shifted at random in training, by up to this share of their height and width.
    random_state : int, RandomState or None, default=0
        Seed of all random numbers; None draws one.
    device : {"auto", "cpu", "cuda"}, default="auto"
        Device for training. `"auto"` is a GPU if there is one.
    precision : {"float32", "bf16"}, default="float32"
        Precision of the parties' nets on a GPU. `"bf16"` speeds up images.
    label_protection : {"auto", "off", "noise", "no_gradients"}, default="auto"
        Simulates the protection of labels in a federation, to measure its effect on accuracy.
        `"no_gradients"`: each party trains its encoder alone, without labels, and uploads the
        embeddings of its rows once; heads are trained on them, without cross completion. Encoders
        have the sizes, `epochs` and `precision` of these parameters. `"noise"`: parties receive
        gradients of a loss with noisy labels. `"auto"` is `"no_gradients"` with `epsilon`, else
        `"off"`.
    label_noise : float, default=1.0
        Standard deviation of the label noise of `"noise"`, in standard deviations of the target.
    epsilon : float, default=None
        Simulates differential privacy of each row's features at each party, to measure its effect
        on accuracy: encoders are not trained, and noise is added to the uploaded embeddings. Needs
        Opacus: `pip install "xvfl[dp]"`.
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
        Custom head. It maps an embedding of size d to one number.
    warm_start : bool, default=False
        Continue from the weights and encoders of the previous `fit`.
    verbose : bool or "auto", default="auto"
        Show progress: a bar in a terminal or a notebook, else a line every 10 seconds. `"auto"`
        shows the bar alone.

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
        method: str = "xvfl+",
        lambda1: float = 0.1,
        lambda2: float = 0.1,
        self_completion: float | None = None,
        n_masks: int = 0,
        unmasked_copies: float | None = None,
        stop_gradient: bool = False,
        detach_cue: bool = False,
        guidance: float | None = None,
        reconstruction: float = 0.3,
        cross_completion: bool = True,
        joint_masks: bool | None = None,
        aggregation: str = "mean",
        full_threshold: float | None = None,
        embedding_dim: int = 0,
        hidden_dim: int = 0,
        n_blocks: int = 4,
        base_channels: int = 32,
        seeing_completers: bool | None = None,
        number_embedding_dim: int | None = None,
        skip_rank: int | None = None,
        members: int = 0,
        heads: int = 0,
        epochs: int = 0,
        batch_size: int = 0,
        optimizer: str | None = None,
        learning_rate: float = 0.0,
        schedule: str = "cosine",
        momentum: float = 0.9,
        weight_decay: float = 1e-2,
        page_batch_size: int | None = None,
        page_probability: float | None = None,
        validation_fraction: float = 0.15,
        patience: int = 15,
        use_unlabeled: bool = True,
        completion_interval: int = 0,
        image_shift: float = 0.125,
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
        warm_start: bool = False,
        verbose: bool | Literal["auto"] = "auto",
    ) -> None:
        # scikit-learn expects an attribute for each parameter, unchanged.
        parameters = dict(locals())
        del parameters["self"]
        self.__dict__.update(parameters)

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
