"""Configuration as data: frozen dataclasses, built once from TOML or keyword arguments.

Every field is documented beneath it. An unknown key is an error that names the nearest right one.
"""

import math
import tomllib
import types
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import MISSING, dataclass, fields, is_dataclass
from pathlib import Path
from typing import Any, Literal, Union, get_args, get_origin, get_type_hints

from xvfl.errors import ConfigError, unknown

Scaling = Literal["auto", "minmax", "quantile"]
MethodName = Literal[
    "xvfl+", "xvfl", "standalone", "vanilla", "iavfl", "fedcvt", "laser", "laser+mask"
]

COORDINATOR = "coordinator"
"""Name of the coordinator, which holds the heads; no party may use it."""


def _require(holds: bool, name: str, expected: str, value: object) -> None:
    if not holds:
        raise ConfigError(f"{name}: expected {expected}, got {value!r}")


@dataclass(frozen=True)
class TableOptions:
    """How a party reads its own table."""

    categorical: tuple[str, ...] = ()
    """Columns to take as categories although they look like numbers."""
    numeric: tuple[str, ...] = ()
    """Columns to take as numbers although they look like categories."""
    drop: tuple[str, ...] = ()
    """Columns to leave out."""
    na_values: tuple[str, ...] = ()
    """Values that mean missing, beside empty cells: "unknown", "-1"."""
    scaling: Scaling = "auto"
    """Numbers to [0, 1]: by their range, by their quantiles, or chosen per column."""
    one_hot_max_size: int = 64
    """Categories of more values than this are hashed to learned vectors."""
    hash_embedding_dim: int = 8
    """Width of those vectors."""

    def __post_init__(self) -> None:
        _require(
            self.one_hot_max_size >= 1, "one_hot_max_size", "at least 1", self.one_hot_max_size
        )
        _require(
            self.hash_embedding_dim >= 1,
            "hash_embedding_dim",
            "at least 1",
            self.hash_embedding_dim,
        )


@dataclass(frozen=True)
class PartyConfig:
    """One party's table."""

    table: str
    """A .csv or .parquet file, an .npz of images, or "sql:SELECT …" run by DuckDB."""
    id_column: str | None = None
    """The id column."""
    options: TableOptions = TableOptions()
    """How to read the columns."""


@dataclass(frozen=True)
class LabelsConfig:
    """Where the labels are."""

    column: str
    """The label column."""
    table: str | None = None
    """A table of its own: file or "sql:…"."""
    id_column: str | None = None
    """Its id column."""
    party: str | None = None
    """Or the party whose table holds the label column beside its features."""


@dataclass(frozen=True)
class NetConfig:
    """Sizes of the default nets; 0 = by data kind."""

    embedding_dim: int = 0
    """Width d of every embedding; tables 64, images 256."""
    hidden_dim: int = 0
    """Width of hidden layers in heads, table bottoms and completers; tables 128, images 256."""
    n_blocks: int = 4
    """Residual blocks of image bottoms."""
    base_channels: int = 32
    """Channels of the first of them, a multiple of 8; later ones have up to eight times as many."""

    def __post_init__(self) -> None:
        _require(
            self.embedding_dim >= 0,
            "embedding_dim",
            "0 (by data kind) or a width",
            self.embedding_dim,
        )
        _require(self.hidden_dim >= 0, "hidden_dim", "0 (by data kind) or a width", self.hidden_dim)
        _require(self.n_blocks >= 1, "n_blocks", "at least 1", self.n_blocks)
        wide = self.base_channels > 0 and self.base_channels % 8 == 0
        _require(wide, "base_channels", "a multiple of 8", self.base_channels)


@dataclass(frozen=True)
class LossConfig:
    """The method and the weights of its loss."""

    method: MethodName = "xvfl+"
    """`xvfl+` is our recipe, `xvfl` the paper's loss; the others are baselines."""
    lambda1: float | tuple[float, ...] = 0.1
    """Weight of DSAlign₁; several values are searched by validation."""
    lambda2: float | tuple[float, ...] = 0.1
    """Weight of DSAlign₂; several values are searched by validation."""
    self_completion: float = 1.0
    """Weight of each party deciding alone from a masked copy of a row, as it is and completed; 0 =
    the paper's loss and predictions, whatever `masks`, `guidance` and `reconstruction` say."""
    n_masks: int = 2
    """Masked copies of every row in a step of self completion."""
    guidance: float = 0.5
    """Share of what all parties together say of a row, in place of its label, in what its masked
    copies learn."""
    reconstruction: float = 0.3
    """Weight of each completer reproducing what its own party observed."""
    stop_gradient: bool = False
    """Hold DSAlign's targets fixed."""
    detach_cue: bool = False
    """Cut the gradient through cues: one exchange less on the wire."""
    cross_completion: bool = True
    """Complete parties from their peers' embeddings; off = an ablation of X-VFL."""
    aggregation: Literal["mean", "concat"] = "mean"
    """How X-VFL joins embeddings: their mean, or side by side as an ablation."""
    distillation_alpha: float = 0.5
    """Share of the teacher's word in what IAVFL's students learn from aligned rows."""
    distillation_temperature: float = 2.0
    """Temperature at which IAVFL's students follow their teacher."""
    full_threshold: float | None = None
    """Observed share at which a row counts as full at a party; by default what half of its rows
    reach, 1.0 = the paper."""

    @property
    def self_completion_weight(self) -> float:
        """Weight of self completion in the loss; 0 in every method but `xvfl+`."""
        return self.self_completion if self.method == "xvfl+" else 0.0

    @property
    def reconstruction_weight(self) -> float:
        """Weight of reconstruction in the loss; 0 in every method but `xvfl+`."""
        return self.reconstruction if self.self_completion_weight > 0 else 0.0

    def __post_init__(self) -> None:
        for name in ("lambda1", "lambda2", "self_completion", "reconstruction"):
            value = getattr(self, name)
            values = value if isinstance(value, tuple) else (value,)
            _require(bool(values) and min(values) >= 0, name, "a weight of 0 or more", value)
        for name in ("guidance", "distillation_alpha"):
            share = getattr(self, name)
            _require(0 <= share <= 1, name, "a share from 0 to 1", share)
        heat = self.distillation_temperature
        _require(heat > 0, "distillation_temperature", "above 0", heat)
        _require(1 <= self.n_masks <= 31, "n_masks", "from 1 to 31", self.n_masks)
        _require(
            self.full_threshold is None or 0 < self.full_threshold <= 1,
            "full_threshold",
            "above 0, at most 1",
            self.full_threshold,
        )


@dataclass(frozen=True)
class TrainConfig:
    """Optimiser, schedule, validation."""

    epochs: int = 60
    """Passes over the training rows."""
    batch_size: int = 0
    """Rows of a step; 0 = about 100 steps an epoch, from 64 to 1024 rows."""
    optimizer: Literal["sgd", "adam", "adamw", "page"] = "adamw"
    """PAGE is the paper's variance-reduced update."""
    learning_rate: float = 2e-3
    """Step size η."""
    schedule: Literal["constant", "cosine"] = "cosine"
    """How η changes over the run."""
    momentum: float = 0.9
    """SGD's momentum."""
    weight_decay: float = 1e-2
    """Decay of every weight."""
    page_batch_size: int | None = None
    """PAGE's small batch b'; by default ⌈√batch⌉."""
    page_probability: float | None = None
    """PAGE's probability p of a fresh gradient; by default b'/(b + b')."""
    validation_fraction: float = 0.15
    """Share of the rows not held out for test that is kept for validation and calibration."""
    patience: int = 15
    """Epochs without a better validation score before stopping; 0 = never stop early."""
    class_weight: Literal["none", "balanced"] = "none"
    """`balanced` makes every class weigh the same."""
    random_state: int = 0
    """Makes the run reproducible bit for bit on one machine; on a GPU but for rounding."""
    device: Literal["auto", "cpu", "cuda"] = "auto"
    """Where to compute."""
    precision: Literal["float32", "bf16"] = "float32"
    """How the parties' nets compute on a GPU: bf16 makes images faster."""

    def __post_init__(self) -> None:
        _require(self.epochs >= 1, "epochs", "at least 1", self.epochs)
        _require(
            self.batch_size >= 0, "batch_size", "0 (by the number of rows) or more", self.batch_size
        )
        _require(self.learning_rate > 0, "learning_rate", "above 0", self.learning_rate)
        _require(0 <= self.momentum < 1, "momentum", "from 0 to below 1", self.momentum)
        _require(self.weight_decay >= 0, "weight_decay", "0 or more", self.weight_decay)
        _require(
            0 < self.validation_fraction < 1,
            "validation_fraction",
            "a share between 0 and 1",
            self.validation_fraction,
        )
        _require(self.patience >= 0, "patience", "0 or more", self.patience)
        small, p = self.page_batch_size, self.page_probability
        _require(small is None or small >= 1, "page_batch_size", "at least 1", small)
        _require(p is None or 0 < p <= 1, "page_probability", "above 0, at most 1", p)

    def batch_size_for(self, rows: int) -> int:
        """Give the rows of a step, for a training set of this size."""
        wanted = 2 ** round(math.log2(max(rows, 1) / 100)) if rows > 100 else 1
        return self.batch_size or min(max(wanted, 64), 1024)


@dataclass(frozen=True)
class Config:
    """A whole run."""

    labels: LabelsConfig
    """Where the labels are."""
    parties: dict[str, PartyConfig]
    """Who takes part, with which table."""
    test_fraction: float = 0.2
    """Share of the labelled rows held out for `xvfl evaluate`."""
    out_of_core: bool | Literal["auto"] = "auto"
    """Keep Parquet tables on disk while training; "auto" = those of more than 100 million cells."""
    net: NetConfig = NetConfig()
    """Sizes of the nets."""
    loss: LossConfig = LossConfig()
    """Method and loss."""
    train: TrainConfig = TrainConfig()
    """Optimisation."""

    def __post_init__(self) -> None:
        _require(
            0 <= self.test_fraction < 1,
            "test_fraction",
            "a share from 0 to below 1",
            self.test_fraction,
        )
        _require(
            len(self.parties) >= 2, "parties", "two or more [parties.NAME]", list(self.parties)
        )
        given = (self.labels.table is not None) + (self.labels.party is not None)
        _require(given == 1, "labels", "either `table` or `party`", self.labels)
        if self.labels.party is not None and self.labels.party not in self.parties:
            raise ConfigError(f"labels.party: {unknown('party', self.labels.party, self.parties)}")


LAMBDA_RANGES: dict[str, tuple[tuple[float, ...], tuple[float, ...]]] = {
    "cifar10": ((0.01, 0.02, 0.05, 0.1, 0.2, 0.5), (1e-5, 2e-5, 5e-5, 1e-4, 2e-4, 5e-4)),
    "tinyimagenet": ((1, 2, 5, 10, 20), (5e-4, 1e-3, 2e-3, 5e-3)),
    "utkface": ((1, 2, 5, 10, 20), (5e-4, 1e-3, 2e-3, 5e-3)),
    "mimic3": ((5e-4, 1e-3, 2e-3, 5e-3, 1e-2), (0.02, 0.05, 0.1)),
    "bank": ((1e-4, 2e-4, 5e-4, 1e-3), (5e-5, 1e-4, 2e-4, 5e-4)),
    "avazu": ((1e-4, 2e-4, 5e-4, 1e-3), (1e-5, 2e-5, 5e-5, 1e-4, 2e-4)),
}
"""The paper's ranges of λ1 and λ2 (tab:lambda_values)."""


def read_config(path: Path) -> str:
    """Read a configuration's text."""
    try:
        return path.read_text(encoding="utf-8-sig")
    except OSError as error:
        raise ConfigError(
            f"{path}: cannot be read ({error.strerror}); `xvfl init` writes one"
        ) from error
    except UnicodeDecodeError as error:
        raise ConfigError(f"{path}: expected UTF-8 text; save it as UTF-8") from error


def parse_config(text: str, where: str) -> Config:
    """Read TOML text."""
    try:
        data = tomllib.loads(text)
    except tomllib.TOMLDecodeError as error:
        raise ConfigError(f"{where}: not valid TOML: {error}") from error
    config: Config = build(Config, data, where)
    return config


def build(cls: type, data: Mapping[str, Any], where: str) -> Any:
    """Build a frozen dataclass from a mapping, checking every key and value."""
    hints = get_type_hints(cls)
    known = {each.name: each for each in fields(cls)}
    for key in data:
        if key not in known:
            raise ConfigError(f"{where}: {unknown('key', key, known)}{_home_of(key)}")
    values = {key: _value(hints[key], value, f"{where}: {key}") for key, value in data.items()}
    for name, each in known.items():
        if name not in values and each.default is MISSING and each.default_factory is MISSING:
            raise ConfigError(f"{where}: key {name!r} is missing")
    try:
        return cls(**values)
    except ConfigError as error:
        raise ConfigError(f"{where}: {error}") from None


def _home_of(key: str) -> str:
    homes = {"net": NetConfig, "loss": LossConfig, "train": TrainConfig}
    homes |= {"labels": LabelsConfig, "parties.NAME": PartyConfig}
    homes |= {"parties.NAME.options": TableOptions}
    found = [name for name, cls in homes.items() if key in {each.name for each in fields(cls)}]
    return f"; {key} belongs in [{found[0]}]" if found else ""


def _value(hint: Any, value: Any, where: str) -> Any:
    origin, arguments = get_origin(hint), get_args(hint)
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
    if (
        isinstance(hint, type)
        and isinstance(value, hint)
        and not (isinstance(value, bool) and hint is not bool)
    ):
        return value
    raise ConfigError(f"{where}: expected {_words(hint)}, got {value!r}")


def _words(hint: Any) -> str:
    if get_origin(hint) is Literal:
        return " or ".join(map(repr, get_args(hint)))
    plain = {int: "a whole number", float: "a number", str: "a text", bool: "true or false"}
    if get_origin(hint) is tuple:
        return f"a list ({_words(get_args(hint)[0])} each)"
    return plain.get(hint, "a section of keys")


def _first(choices: tuple[Any, ...], value: Any, where: str) -> Any:
    if value is None and type(None) in choices:
        return None
    concrete = [choice for choice in choices if choice is not type(None)]
    for choice in concrete:
        with suppress(ConfigError):
            return _value(choice, value, where)
    raise ConfigError(f"{where}: expected {' or '.join(map(_words, concrete))}, got {value!r}")
