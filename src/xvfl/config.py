"""Configuration: frozen dataclasses, built from TOML or keyword arguments.

Every field is documented beneath it. An unknown key raises an error that suggests the closest
valid key.
"""

import math
import tomllib
import types
from collections.abc import Collection, Mapping
from contextlib import suppress
from dataclasses import MISSING, dataclass, fields, is_dataclass
from datetime import date
from pathlib import Path
from typing import (
    Annotated,
    Any,
    Literal,
    TypeVar,
    Union,
    get_args,
    get_origin,
    get_type_hints,
)

from xvfl.errors import ConfigError, unknown

T = TypeVar("T")
Automatic = Annotated[T, "automatic"]
"""An option that is chosen for each run where it is None; `xvfl.options` does it, so that options
are never None where they are used. Version 0.3 wrote 0 or "auto" for None."""
AUTO: Any = None
Scaling = Literal["auto", "minmax", "quantile"]
TaskKind = Literal["classification", "regression"]
TASKS: tuple[TaskKind, ...] = get_args(TaskKind)
"""What a model predicts: a class or a number."""
KINDS = {
    "number": 'a number; "number:," has a decimal comma',
    "category": "a category",
    "date": 'a date; "date:%d/%m/%Y" has this format',
    "duration": 'a duration, such as "1:30:00" or "90 min"',
    "identifier": "not a feature: ignored and never completed",
}
"""Kinds of columns."""
METHOD_NAMES = ["xvfl+", "xvfl", "standalone", "vanilla", "laser", "laser+mask"]
"""Names of all methods; `xvfl.methods.register_method` adds to them."""
LAB_METHODS = ("iavfl", "fedcvt")
"""Methods that `xvfl_lab.methods` registers."""

COORDINATOR = "coordinator"
"""Name of the coordinator, which holds the heads; no party may have it."""


def _accept_old_automatic(config: Any) -> None:
    """Replace 0 and "auto" by None in automatic options."""
    for each in fields(config):
        value = getattr(config, each.name)
        old = value == "auto" or (value == 0 and value is not False)
        if old and get_origin(each.type) is Annotated:
            object.__setattr__(config, each.name, None)


def _require_size(config: object, *names: str) -> None:
    for name in names:
        value = getattr(config, name)
        _require(config, name, value is None or value >= 1, "a positive integer")


def _require(config: object, name: str, holds: bool, expected: str) -> None:
    if not holds:
        raise ConfigError(f"{name}: expected {expected}, got {getattr(config, name)!r}")


def _require_privacy(config: object, epsilon: float | None, delta: float) -> None:
    _require(config, "epsilon", epsilon is None or 0.01 <= epsilon <= 50, "from 0.01 to 50")
    _require(config, "delta", 0 < delta < 1, "above 0, below 1")


@dataclass(frozen=True)
class TableOptions:
    """How to read the columns of a party's table."""

    categorical: tuple[str, ...] = ()
    """Columns to encode as categories even if their values are numbers."""
    numeric: tuple[str, ...] = ()
    """Columns to parse as numbers even if their dtype is text, boolean or categorical; a cell that
    is not a number is an error. Ignored for datetime columns."""
    drop: tuple[str, ...] = ()
    """Columns to ignore."""
    kinds: dict[str, str] | None = None
    """Kind by column, where `xvfl inspect` shows a wrong one: `number`, `category`, `date`,
    `duration` or `identifier` (ignored). `number:,` has a decimal comma, `date:%d/%m/%Y` a
    format."""
    na_values: tuple[str, ...] = ()
    """Values to treat as missing, for example "unknown" or "-1", in addition to empty cells and
    to "NA", "N/A", "NaN", "None", "null" and their variants."""
    scaling: Scaling = "auto"
    """Scaling of numbers to [0, 1]: `minmax`, `quantile`, or `auto` to choose for each column."""
    one_hot_max_size: int = 64
    """Maximum number of categories to encode one-hot; columns with more are hashed and embedded."""
    hash_embedding_dim: int = 8
    """Size of the learned embedding of a hashed column."""

    def __post_init__(self) -> None:
        _require(self, "one_hot_max_size", self.one_hot_max_size >= 1, "at least 1")
        _require(self, "hash_embedding_dim", self.hash_embedding_dim >= 1, "at least 1")
        for column, given in (self.kinds or {}).items():
            kind, colon, detail = given.partition(":")
            if kind not in KINDS or (colon and kind not in ("number", "date")):
                raise ConfigError(f"kinds: column {column!r}: {unknown('kind', given, KINDS)}")
            if kind == "number" and colon and detail not in (".", ","):
                raise ConfigError(
                    f"kinds: column {column!r}: expected number:. or number:, got {given!r}"
                )

    def kind_of(self, column: str) -> tuple[str, str]:
        """Return the kind that was set for a column and its detail; '' for none."""
        for kind, columns in (
            ("category", self.categorical),
            ("number", self.numeric),
            ("identifier", self.drop),
        ):
            if column in columns:
                return kind, ""
        kind, _, detail = (self.kinds or {}).get(column, "").partition(":")
        return kind, detail


@dataclass(frozen=True)
class PartyConfig:
    """The table of one party."""

    table: str
    """A .csv, .csv.gz, .parquet or .xlsx file, an .npz file of images, or "sql:SELECT …", executed
    by DuckDB."""
    id_column: str | None = None
    """Name of the id column."""
    options: TableOptions = TableOptions()
    """How to read the columns."""


@dataclass(frozen=True)
class LabelsConfig:
    """Location of the labels: a separate table, or a column of a party's table."""

    column: str
    """Name of the label column."""
    table: str | None = None
    """A separate table with the labels: a file or "sql:…"."""
    id_column: str | None = None
    """Name of the id column of that table."""
    party: str | None = None
    """The party whose table contains the label column; instead of `table`."""
    task: TaskKind = "classification"
    """What to predict: `classification`, the class of a row, or `regression`, a number."""
    threshold: float | str | None = None
    """Rule for the predicted class; by default, the most probable one. With two classes: the
    probability above which the second one is predicted, or `balanced_accuracy` or `f1` to choose it
    by validation rows. With more classes: `balanced_accuracy`."""


@dataclass(frozen=True)
class NetConfig:
    """Sizes of the default nets."""

    embedding_dim: Automatic[int] = AUTO
    """Size d of the embeddings; by default 16 with differential privacy, 256 if a party has images
    or labels are protected, 32 with several members, else 64."""
    hidden_dim: Automatic[int] = AUTO
    """Size of hidden layers in heads, bottoms of tables and completers; by default 256 if a party
    has images or labels are protected, 64 with several members, else 128."""
    n_blocks: int = 4
    """Number of residual blocks in bottoms of images."""
    base_channels: int = 32
    """Channels of the first residual block, a multiple of 8; later blocks have up to 8 times as
    many."""
    seeing_completers: bool | None = None
    """In `xvfl+`, completers also take the features that their party observes; by default those of
    images do."""
    number_embedding_dim: int | None = None
    """Size of the embedding of each number of a table; 0 = none. By default 8 with several members
    and no privacy options (none in one process if a party has more than 128 numbers), 8 with
    `no_gradients` and no `epsilon`, and 0 otherwise."""
    skip_rank: int | None = None
    """Rank of a linear map from the features of a table to its embedding, added to the bottom's
    output; 0 = none, the default."""
    members: Automatic[int] = AUTO
    """Number of nets of each party and of heads, trained at once; predictions are averaged. More
    than one needs tables, default nets and gradients, and multiplies the embeddings in every
    message. By default, for tables with default nets in one process without privacy options 4, or 2
    with more than 20,000 training rows or 128 numbers of a party; else 1."""
    heads: Automatic[int] = AUTO
    """Number of nets of a head on uploads (`label_protection` `no_gradients`); predictions are
    averaged. They cost the parties nothing. By default 4 with uploads and default nets, else 1."""

    def __post_init__(self) -> None:
        _accept_old_automatic(self)
        _require_size(self, "embedding_dim", "hidden_dim")
        _require(self, "n_blocks", self.n_blocks >= 1, "at least 1")
        wide = self.base_channels > 0 and self.base_channels % 8 == 0
        _require(self, "base_channels", wide, "a multiple of 8")
        _require(self, "number_embedding_dim", (self.number_embedding_dim or 0) >= 0, "0 or more")
        _require(self, "skip_rank", (self.skip_rank or 0) >= 0, "0 or more")
        _require(self, "members", 1 <= (self.members or 1) <= 64, "from 1 to 64")
        _require(self, "heads", 1 <= (self.heads or 1) <= 64, "from 1 to 64")


@dataclass(frozen=True)
class LossConfig:
    """Method and loss weights."""

    method: str = "xvfl+"
    """Training method: `xvfl+` is the default, `xvfl` the paper's X-VFL. Baselines: `standalone`,
    `vanilla`, `laser`, `laser+mask`."""
    lambda1: float = 0.1
    """Weight λ₁ of the loss DSAlign₁."""
    lambda2: float = 0.1
    """Weight λ₂ of the loss DSAlign₂."""
    self_completion: float | None = None
    """Weight of the self-completion loss of `xvfl+`: each party predicts alone from masked copies
    of a row, before and after completion; by default 1, and 2/k for k > 2 parties with images. 0 =
    the loss of `xvfl`; `n_masks`, `unmasked_copies`, `guidance` and `reconstruction` then have no
    effect."""
    n_masks: Automatic[int] = AUTO
    """Number of masked copies of each row per step in self completion, up to 31; by default 1 with
    several members, else 2."""
    unmasked_copies: float | None = None
    """Share of the masked copies of `xvfl+` and `laser+mask` that keep all observed features, 0 to
    below 1; by default 0. With a `completion_interval` above 1 each party chooses up to 1/2: more
    if less is missing in its training rows, 1/2 with at most four features, 0 with hashed
    categories."""
    guidance: float | None = None
    """Weight of the joint prediction (soft label) against the true label in the targets of masked
    copies, 0 to 1; by default 1 with a `completion_interval` above 1, where the other steps use the
    true label, else 0.5."""
    reconstruction: float = 0.3
    """Weight of the reconstruction loss: completers reproduce observed features."""
    stop_gradient: bool = False
    """Do not propagate gradients through the targets of DSAlign₁ and DSAlign₂."""
    detach_cue: bool = False
    """Do not propagate gradients through cues; saves one message per step."""
    cross_completion: bool = True
    """Complete missing features from the embeddings of other parties; false = an ablation."""
    joint_masks: bool | None = None
    """In self completion, also predict from the masked copies of all parties together; by default
    unless a party has images."""
    aggregation: Literal["mean", "concat"] = "mean"
    """How X-VFL combines the embeddings of the parties: their mean, or, as an ablation, their
    concatenation."""
    full_threshold: float | None = None
    """Share of observed features from which a row counts as full at a party, at most 1 (the
    paper's definition); by default the largest share that at least half of the party's rows
    reach."""

    @property
    def self_completion_weight(self) -> float:
        """Weight of self completion in the loss; 0 in every method but `xvfl+`."""
        if self.method != "xvfl+":
            return 0.0
        assert self.self_completion is not None, "automatic: resolve the options first"
        return self.self_completion

    @property
    def reconstruction_weight(self) -> float:
        """Weight of reconstruction in the loss; 0 in every method but `xvfl+`."""
        return self.reconstruction if self.self_completion_weight > 0 else 0.0

    def __post_init__(self) -> None:
        _accept_old_automatic(self)
        if self.method not in METHOD_NAMES:
            of_lab = "; `import xvfl_lab.methods` first" if self.method in LAB_METHODS else ""
            raise ConfigError(unknown("method", self.method, METHOD_NAMES) + of_lab)
        for name in ("lambda1", "lambda2", "self_completion", "reconstruction"):
            _require(self, name, (getattr(self, name) or 0.0) >= 0, "a weight of 0 or more")
        _require(self, "guidance", 0 <= (self.guidance or 0.0) <= 1, "a share from 0 to 1")
        unmasked = 0 <= (self.unmasked_copies or 0.0) < 1
        _require(self, "unmasked_copies", unmasked, "a share from 0 to below 1")
        _require(self, "n_masks", 1 <= (self.n_masks or 1) <= 31, "from 1 to 31")
        reachable = self.full_threshold is None or 0 < self.full_threshold <= 1
        _require(self, "full_threshold", reachable, "above 0, at most 1")


MAX_BATCH_SIZE = 1024
"""Largest automatic batch size."""
MIN_STEPS = 800
"""Steps for which the automatic batch size with unlabeled images is decreased."""


@dataclass(frozen=True)
class TrainConfig:
    """Optimizer, schedule and validation."""

    epochs: Automatic[int] = AUTO
    """Maximum number of passes over the labeled training rows; by default, with several members
    that receive gradients 12 to 60, for at least 720 steps, or with more than 20,000 training rows
    6 to 60, for at least 500; else 60."""
    batch_size: Automatic[int] = AUTO
    """Rows per step; by default between 64 and 1024, for about 100 steps per epoch, or fewer steps
    with unlabeled images; with several members and automatic epochs between 128 and 2048, for about
    50 steps per epoch."""
    optimizer: Literal["sgd", "adam", "adamw", "muon", "page"] | None = None
    """Optimizer; by default `muon` with several members that receive gradients and at least 200
    steps, else `adamw`.
    `muon` takes steps along the orthogonalized momentum of weight matrices, and those of `adamw`
    for all other weights; `page` is the paper's variance-reduced method PAGE."""
    learning_rate: Automatic[float] = AUTO
    """Initial learning rate η; by default, with several members that receive gradients 4e-3, or
    5e-3 with more than 20,000 training rows; else 2e-3."""
    schedule: Literal["constant", "cosine", "warmup"] = "cosine"
    """Learning rate schedule; `warmup` is `cosine` after a linear increase in the first tenth of
    the steps."""
    momentum: float = 0.9
    """Momentum of `sgd`."""
    weight_decay: float = 1e-2
    """Weight decay."""
    page_batch_size: int | None = None
    """Small batch size b' of PAGE; by default ⌈√batch_size⌉."""
    page_probability: float | None = None
    """Probability p of a new large-batch gradient in PAGE; by default b'/(b + b')."""
    validation_fraction: float = 0.15
    """Share of the rows outside the test set held out for early stopping and calibration."""
    patience: int = 15
    """Epochs without a better validation score before training stops; 0 = no early stopping."""
    class_weight: Literal["none", "balanced"] = "none"
    """`balanced` weights classes inversely to their frequency."""
    completion_interval: Automatic[int] = AUTO
    """`xvfl+` completes features in every n-th step; the other steps train on masked copies alone.
    By default from 8 to 64 with several members that receive gradients, so that about 25 steps
    complete features, 12 with more than 20,000 training rows; 1 with `page` and in all other
    cases."""
    image_shift: float = 0.125
    """Images are shifted at random in training, by up to this share of their height and width; 0 =
    not shifted."""
    random_state: int = 0
    """Seed of all random numbers; makes runs on one machine reproducible, bit for bit on a CPU."""
    device: Automatic[Literal["cpu", "cuda"]] = AUTO
    """Device for training; by default a GPU if there is one."""
    precision: Literal["float32", "bf16"] = "float32"
    """Precision of the parties' nets on a GPU; `bf16` speeds up images."""

    def __post_init__(self) -> None:
        _accept_old_automatic(self)
        _require_size(self, "epochs", "batch_size", "completion_interval")
        _require(self, "learning_rate", (self.learning_rate or 1) > 0, "above 0")
        _require(self, "momentum", 0 <= self.momentum < 1, "from 0 to below 1")
        _require(self, "weight_decay", self.weight_decay >= 0, "0 or more")
        held_out = 0 < self.validation_fraction < 1
        _require(self, "validation_fraction", held_out, "a share between 0 and 1")
        _require(self, "patience", self.patience >= 0, "0 or more")
        _require(self, "image_shift", 0 <= self.image_shift < 1, "a share from 0 to below 1")
        small, p = self.page_batch_size, self.page_probability
        _require(self, "page_batch_size", small is None or small >= 1, "at least 1")
        _require(self, "page_probability", p is None or 0 < p <= 1, "above 0, at most 1")

    def batch_size_for(self, rows: int) -> int:
        """Return the batch size for this number of training rows."""
        default = 2 ** round(math.log2(max(rows, 1) / 100)) if rows > 100 else 1
        return self.batch_size or min(max(default, 64), MAX_BATCH_SIZE)


@dataclass(frozen=True)
class EncoderConfig:
    """How a party trains its encoder alone, and what it uploads of a row."""

    objective: Automatic[Literal["reconstruction", "contrastive"]] = AUTO
    """`reconstruction`: reconstruct a row from the embedding of a copy with features dropped.
    `contrastive`: the embeddings of two random views of an image are closer than those of different
    images (SimCLR). By default `contrastive` for images, else `reconstruction`."""
    epochs: int = 60
    """Passes over the training rows."""
    batch_size: Automatic[int] = AUTO
    """Rows per step; by default 512 for images, else between 64 and 1024, for about 100 steps per
    epoch."""
    learning_rate: Automatic[float] = AUTO
    """Initial learning rate; by default 1e-3 for `contrastive`, else 2e-3."""
    masked_copies: int = 4
    """Number of masked copies of a row that are uploaded beside the row as observed; 0 to 31. With
    `epsilon` there are none: each copy would be a release of its own."""
    embedding_dim: Automatic[int] = AUTO
    """Size of the embeddings; by default 16 with `epsilon`, else 256."""
    hidden_dim: int = 256
    """Size of hidden layers in encoders of tables and in decoders."""
    number_embedding_dim: int | None = None
    """Size of the embedding of each number of a table, from periodic features, quantile bins and
    flags of its frequent values; 0 = none; by default none with `epsilon`, else 8."""
    skip_rank: int = 0
    """Rank of a linear map from the features of a table to its embedding; 0 = none. It can make
    predictions more accurate, and makes some columns easier to recover from the upload."""
    whitening: float | None = None
    """Whiten the largest principal components of the embeddings, which together have this share of
    their variance; 0 = none. They get equal variances, and all components are rotated at random,
    which makes columns harder to recover. By default 0.99 for images, 0.7 for
    tables with at least 10,000 training rows, else 0."""
    n_blocks: int = 4
    """Number of residual blocks in encoders of images."""
    base_channels: int = 32
    """Channels of the first residual block, a multiple of 8."""
    full_threshold: float | None = None
    """Share of observed features from which a row counts as full; by default the largest share
    that half of the rows reach."""
    precision: Literal["float32", "bf16"] = "float32"
    """Precision of the encoder on a GPU; `bf16` speeds up images."""
    epsilon: float | None = None
    """Differential privacy: the ε of each row's features, 0.01 to 50. The encoder is not trained,
    and noise is added to its embeddings. By default there is none."""
    delta: float = 1e-5
    """The δ of differential privacy; choose it well below 1 / number of rows."""

    @property
    def copies(self) -> int:
        """Number of masked copies of a row that are uploaded."""
        return self.masked_copies if self.epsilon is None else 0

    def __post_init__(self) -> None:
        _accept_old_automatic(self)
        _require(self, "epochs", self.epochs >= 1, "1 or more")
        wide = 1 <= (self.embedding_dim or 1) <= 4096
        _require(self, "embedding_dim", wide, "from 1 to 4096")
        _require_privacy(self, self.epsilon, self.delta)
        reachable = self.full_threshold is None or 0 < self.full_threshold <= 1
        _require(self, "full_threshold", reachable, "above 0, at most 1")
        _require_size(self, "batch_size")
        _require(self, "learning_rate", (self.learning_rate or 1) > 0, "above 0")
        _require(self, "masked_copies", 0 <= self.masked_copies <= 31, "from 0 to 31")
        share = self.whitening is None or 0 <= self.whitening <= 1
        _require(self, "whitening", share, "from 0 to 1")
        _require(self, "skip_rank", self.skip_rank >= 0, "0 (none) or more")


@dataclass(frozen=True)
class UploadTerms:
    """On which terms a party uploads; they bind an honest coordinator only."""

    purpose: str = ""
    """What the upload may be used for, in the words of the parties' agreement."""
    expires: str = ""
    """Last day of use, as YYYY-MM-DD; empty = no end."""
    stand_in: bool = False
    """Whether the stored upload may stand in for the party in predictions while the party does not
    answer."""
    keep_after_revocation: bool = False
    """Whether the upload may still be used after the party's certificate was revoked."""

    def __post_init__(self) -> None:
        _require(self, "purpose", len(self.purpose) <= 500, "at most 500 characters")
        try:
            valid = not self.expires or bool(date.fromisoformat(self.expires))
        except ValueError:
            valid = False
        _require(self, "expires", valid, "a day as YYYY-MM-DD")


@dataclass(frozen=True)
class PrivacyConfig:
    """Protection of labels and features during training."""

    label_protection: Automatic[Literal["off", "noise", "no_gradients"]] = AUTO
    """What parties receive that depends on labels. `off`: gradients of the loss. `noise`: gradients
    of a loss with noisy labels. `no_gradients`: nothing; each party trains its encoder alone and
    uploads its embeddings once. By default `no_gradients` in a federation or with `epsilon`, else
    `off`."""
    label_noise: float = 1.0
    """Standard deviation of the noise that `noise` adds to the one-hot labels of a row, the same
    noise in every step."""
    epsilon: float | None = None
    """Differential privacy: the ε of each row's features at each party, 0.01 to 50, of a run in one
    process; needs `no_gradients`. In a federation, each party sets `epsilon` in its `[encoder]`. By
    default there is none."""
    delta: float = 1e-5
    """The δ of differential privacy; choose it well below 1 / number of rows."""

    @property
    def bounded(self) -> bool:
        """Whether embeddings are bounded to [-1, 1]."""
        return self.label_protection in ("noise", "no_gradients")

    @property
    def protects(self) -> bool:
        """Whether labels or features are protected."""
        return self.bounded or self.epsilon is not None

    @property
    def trains_encoders(self) -> bool:
        """Whether each party trains its encoder alone; with `epsilon` it is not trained."""
        return not self.sends_gradients and self.epsilon is None

    @property
    def sends_gradients(self) -> bool:
        """Whether the coordinator sends gradients to the parties; else parties upload once."""
        return self.label_protection != "no_gradients"

    def __post_init__(self) -> None:
        _accept_old_automatic(self)
        _require(self, "label_noise", self.label_noise >= 0, "0 or more")
        _require_privacy(self, self.epsilon, self.delta)
        if self.epsilon is not None and self.label_protection not in (None, "no_gradients"):
            raise ConfigError(
                "epsilon: expected label_protection 'no_gradients', got "
                f"{self.label_protection!r}; with gradients, embeddings depend on other rows"
            )


NO_PROTECTION = PrivacyConfig("off")


def check_task(name: str) -> TaskKind:
    """Reject what is not the name of a task."""
    for task in TASKS:
        if name == task:
            return task
    raise ConfigError(unknown("task", name, TASKS))


def require_no_class_weight(task: TaskKind, train: TrainConfig) -> None:
    """Reject weights of classes where the label is a number."""
    if task == "regression" and train.class_weight != "none":
        raise ConfigError(
            f"train.class_weight: expected 'none' with labels.task = 'regression', got "
            f"{train.class_weight!r}; numbers have no classes"
        )


@dataclass(frozen=True)
class Config:
    """Configuration of a training run in one process, as `xvfl train` reads it from TOML."""

    labels: LabelsConfig
    """Location of the labels."""
    parties: dict[str, PartyConfig]
    """Tables by party name; two parties or more."""
    test_fraction: float = 0.2
    """Share of the labeled rows held out for `xvfl evaluate`."""
    use_unlabeled: bool = True
    """Train on rows without a label too, if the method can: `xvfl+` does, and so do the encoders of
    every method with `no_gradients`."""
    out_of_core: Automatic[bool] = AUTO
    """Keep Parquet tables on disk during training; by default if they have more than 100 million
    cells."""
    net: NetConfig = NetConfig()
    """Sizes of the nets."""
    loss: LossConfig = LossConfig()
    """Method and loss weights."""
    train: TrainConfig = TrainConfig()
    """Optimizer, schedule and validation."""
    privacy: PrivacyConfig = PrivacyConfig()
    """Protection of labels and features during training."""

    def __post_init__(self) -> None:
        _accept_old_automatic(self)
        _require(self, "test_fraction", 0 <= self.test_fraction < 1, "a share from 0 to below 1")
        if len(self.parties) < 2:
            names = list(self.parties)
            raise ConfigError(f"parties: expected two or more [parties.NAME], got {names}")
        one_place = (self.labels.table is None) != (self.labels.party is None)
        _require(self, "labels", one_place, "either `table` or `party`")
        if self.labels.party is not None and self.labels.party not in self.parties:
            raise ConfigError(f"labels.party: {unknown('party', self.labels.party, self.parties)}")
        require_no_class_weight(self.labels.task, self.train)
        classifies = self.labels.task == "classification"
        if self.labels.threshold is not None and not classifies:
            raise ConfigError(
                "labels.threshold: expected none with labels.task = 'regression', got "
                f"{self.labels.threshold!r}"
            )


SECTIONS: dict[str, type] = {
    "net": NetConfig,
    "loss": LossConfig,
    "train": TrainConfig,
    "privacy": PrivacyConfig,
    "labels": LabelsConfig,
    "parties.NAME": PartyConfig,
    "parties.NAME.options": TableOptions,
}
"""Sections of a run's configuration file."""


def read_config(path: Path) -> str:
    """Read a configuration file as text."""
    try:
        return path.read_text(encoding="utf-8-sig")
    except OSError as error:
        raise ConfigError(
            f"{path}: cannot be read ({error.strerror}); `xvfl init` writes one"
        ) from error
    except UnicodeDecodeError as error:
        raise ConfigError(f"{path}: expected UTF-8 text; save it as UTF-8") from error


def parse_config(text: str, where: str) -> Config:
    """Parse the configuration of a run.

    Parameters
    ----------
    text : str
        TOML text.
    where : str
        File name, for error messages.

    Returns
    -------
    Config

    Raises
    ------
    ConfigError
        If the text is not valid TOML, or a key or value is wrong.
    """
    try:
        data = tomllib.loads(text)
    except tomllib.TOMLDecodeError as error:
        raise ConfigError(f"{where}: not valid TOML: {error}") from error
    config: Config = build(Config, data, where)
    return config


def build(cls: type, data: Mapping[str, Any], where: str) -> Any:
    """Build a configuration dataclass from a mapping; check every key and value."""
    hints = get_type_hints(cls, include_extras=True)
    valid = {each.name: each for each in fields(cls)}
    for key in data:
        if key not in valid:
            raise ConfigError(f"{where}: {_unknown_key(key, valid)}")
    values = {key: _value(hints[key], value, f"{where}: {key}") for key, value in data.items()}
    for name, each in valid.items():
        if name not in values and each.default is MISSING and each.default_factory is MISSING:
            raise ConfigError(f"{where}: key {name!r} is missing")
    try:
        return cls(**values)
    except ConfigError as error:
        raise ConfigError(f"{where}: {error}") from None


REMOVED = {"distillation_alpha", "distillation_temperature"}
"""Options of version 0.3 that saved models have, and that no method of this package uses."""


def build_saved(cls: type, data: Mapping[str, Any], where: str) -> Any:
    """Build a section of the configuration of a saved model; ignore options that were removed."""
    return build(cls, {key: data[key] for key in data if key not in REMOVED}, where)


def _unknown_key(key: str, valid: Collection[str]) -> str:
    owners = [name for name, cls in SECTIONS.items() if key in [f.name for f in fields(cls)]]
    hint = f"; {key} belongs in [{owners[0]}]" if owners else ""
    return f"{unknown('key', key, valid)}{hint}"


def _value(hint: Any, value: Any, where: str) -> Any:
    origin, arguments = get_origin(hint), get_args(hint)
    if origin is Annotated:
        old = value is None or value == "auto"
        return None if old else _value(arguments[0], value, where)
    if origin in (Union, types.UnionType):
        return _first(arguments, value, where)
    if origin is Literal:
        if value in arguments:
            return value
        raise ConfigError(f"{where}: {unknown('value', str(value), arguments)}")
    if origin is tuple and isinstance(value, (list, tuple)):
        return tuple(_value(arguments[0], each, where) for each in value)
    if origin is dict and isinstance(value, Mapping):
        return {key: _value(arguments[1], each, f"{where}.{key}") for key, each in value.items()}
    if is_dataclass(hint) and isinstance(hint, type) and isinstance(value, Mapping):
        return build(hint, value, where)
    if hint is float and isinstance(value, int) and not isinstance(value, bool):
        return float(value)
    matches = isinstance(hint, type) and isinstance(value, hint)
    if matches and (hint is bool or not isinstance(value, bool)):
        return value
    raise ConfigError(f"{where}: expected {_words(hint)}, got {value!r}")


def _words(hint: Any) -> str:
    if get_origin(hint) is Literal:
        return " or ".join(map(repr, get_args(hint)))
    plain = {int: "an integer", float: "a number", str: "a string", bool: "true or false"}
    if get_origin(hint) is tuple:
        return f"a list ({_words(get_args(hint)[0])} each)"
    return plain.get(hint, "a table ([section])")


def _first(choices: tuple[Any, ...], value: Any, where: str) -> Any:
    if value is None and type(None) in choices:
        return None
    concrete = [choice for choice in choices if choice is not type(None)]
    if len(concrete) == 1:
        return _value(concrete[0], value, where)
    for choice in concrete:
        with suppress(ConfigError):
            return _value(choice, value, where)
    raise ConfigError(f"{where}: expected {' or '.join(map(_words, concrete))}, got {value!r}")
