"""Configuration of the processes of a federation: the coordinator's and each party's.

Each organization has its own file. Paths are relative to the folder of the configuration.
"""

import tomllib
from collections.abc import Mapping
from dataclasses import dataclass, fields, is_dataclass, replace
from pathlib import Path
from types import MappingProxyType
from typing import Any, Literal

from xvfl.config import (
    EncoderConfig,
    LossConfig,
    NetConfig,
    PrivacyConfig,
    TableOptions,
    TaskKind,
    TrainConfig,
    UploadTerms,
    build,
    read_config,
    require_no_class_weight,
)
from xvfl.data.frames import SQL
from xvfl.errors import ConfigError, WireError, unknown
from xvfl.federation.request_limits import RequestLimits
from xvfl.service.addresses import parse_address
from xvfl.service.prediction.prediction_config import CoordinatorPrediction, PartyPrediction
from xvfl.service.secret_config import Engine, SecretOptions, SecretTraining, check_secret
from xvfl.wire.codec import MAX_FRAME_BYTES
from xvfl.wire.texts import NAME
from xvfl.wire.tls import Tls

ALIGNMENT = "alignment.json"
KEYS = ("ca_certificate", "certificate", "private_key", "release_key", "signing_key", "tokens")
STATUS_FILES = ("status_certificate", "status_private_key", "status_tokens")
PATHS = frozenset(
    (*KEYS, *STATUS_FILES, "ids", "local_table", "nodes", "revocation_list", "state_dir", "table")
)
"""Options that name files or folders, in all sections."""
ASK_NODES = "the nodes train and predict on shares (`xvfl secret`)"


@dataclass(frozen=True)
class MatchingConfig:
    """Private id matching."""

    rule: Literal["folded", "exact"] = "folded"
    """Normalization of ids; all sides must use the same rule."""
    max_ids: int = 10_000_000
    """Largest number of ids accepted from the other side; limits how many ids it can probe."""
    n_threads: int = 0
    """Threads; 0 = one per core."""

    def __post_init__(self) -> None:
        if self.max_ids < 1 or self.n_threads < 0:
            raise ConfigError(
                "matching: expected max_ids of at least 1 and n_threads of at least 0, "
                f"got {self.max_ids} and {self.n_threads}"
            )


@dataclass(frozen=True)
class CoordinatorLabels:
    """The coordinator's labels."""

    table: str
    """A .csv, .csv.gz, .parquet or .xlsx file, or "sql:SELECT …" (DuckDB)."""
    id_column: str
    """The id column."""
    column: str
    """The label column."""
    task: TaskKind = "classification"
    """What to predict: `classification`, the class of a row, or `regression`, a number."""


@dataclass(frozen=True)
class LocalPartyConfig:
    """A party in the coordinator's process, for features of the label holder."""

    name: str
    """Name of the party."""
    table: str
    """A .csv, .csv.gz, .parquet or .xlsx file, an .npz file of images, or "sql:SELECT …"
    (DuckDB)."""
    id_column: str | None = None
    """The id column."""
    options: TableOptions = TableOptions()
    """How columns are read."""
    encoder: EncoderConfig = EncoderConfig()
    """How the party trains its encoder."""


@dataclass(frozen=True)
class TimeoutConfig:
    """Timeouts of the coordinator, in seconds."""

    answer: float = 60.0
    """Timeout of a request; a broken connection may recover in this time."""
    join: float = 600.0
    """Timeout for parties to connect, at the start, and for newer versions of stored uploads."""
    upload: float = 3600.0
    """Timeout for each percent of the training of a connected party's encoder, and of its
    upload."""
    outcome: float = 60.0
    """How long a finished run waits for absent parties to come back and receive the outcome."""

    def __post_init__(self) -> None:
        for each in fields(self):
            value = getattr(self, each.name)
            if value <= 0:
                raise ConfigError(f"timeouts.{each.name}: expected more than 0, got {value!r}")


@dataclass(frozen=True)
class CoordinatorConfig:
    """Configuration of `xvfl coordinator`."""

    listen: str
    """HOST:PORT to listen on; `[::]` listens on all addresses of IPv4 and IPv6."""
    parties: tuple[str, ...]
    """Names of the accepted parties, as in their certificates."""
    tls: Tls
    """Certificate and key of this process, and the certificate authority it trusts."""
    labels: CoordinatorLabels
    """Where the labels are."""
    state_dir: str = "state"
    """Folder of alignment, checkpoints, records, log and result."""
    revocation_list: str | None = None
    """Revocation list of the authority (PEM), read again when it changes; without it, revocation is
    not checked."""
    matching: MatchingConfig = MatchingConfig()
    """Private id matching."""
    local_party: LocalPartyConfig | None = None
    """Features of the label holder, if it has any."""
    on_anomaly: Literal["warn", "leave_out"] = "warn"
    """What to do with a suspicious upload: log a warning, or also train without it. `leave_out`
    also trains without an upload that is rejected or late; with `warn`, such a one ends the run."""
    max_noise: float = 8.0
    """Largest standard deviation of the noise of an upload with ε, on embeddings of length 1; 8
    allows ε from 1 with δ = 1e-5."""
    test_fraction: float = 0.2
    """Fraction of the labeled rows held out for the final evaluation."""
    net: NetConfig = NetConfig()
    """Sizes of the nets."""
    loss: LossConfig = LossConfig()
    """Method and loss."""
    train: TrainConfig = TrainConfig()
    """Optimization."""
    privacy: PrivacyConfig = PrivacyConfig()
    """Protection of labels and features during training."""
    timeouts: TimeoutConfig = TimeoutConfig()
    """Timeouts."""
    checkpoint_interval: int = 50
    """Interactive training: steps between common checkpoints, from which a run continues that was
    started again."""
    release_to: tuple[str, ...] = ()
    """Parties that receive the head after training, to predict alone."""
    signing_key: str | None = None
    """Private key that signs releases (NAME.release.key of `xvfl certs issue`); by default
    release.key in the state folder, created at the first start."""
    status_address: str | None = None
    """HOST:PORT of the status server (/health, /metrics, /status, and a page); off by default."""
    status_tokens: str | None = None
    """File of callers of the status server and their rights, a name, a token and rights in each
    line; without it, everybody who reaches the address may look."""
    status_certificate: str | None = None
    """Certificate of the status server (PEM), which then serves https, for the host of
    `status_address`."""
    status_private_key: str | None = None
    """Private key of `status_certificate`."""
    status_allowed_hosts: tuple[str, ...] = ()
    """Host names that clients of the status server may use besides localhost, IP addresses and,
    unless it listens on a loopback address, names without a dot."""
    log_format: Literal["text", "json"] = "text"
    """The log on standard error: lines for people, or the lines of `log.jsonl`."""
    max_message_bytes: int = MAX_FRAME_BYTES
    """Largest message accepted, in bytes."""
    prediction: CoordinatorPrediction | None = None
    """Prediction by the federation, with `xvfl coordinator CONFIG --serve`."""
    secret: Engine | None = None
    """`spu`: three nodes train the head on secret shares; the coordinator receives no embedding."""
    secret_options: SecretOptions = SecretOptions()
    """The nodes that hold the shares."""
    secret_training: SecretTraining = SecretTraining()
    """How the nodes train the head."""

    @property
    def all_parties(self) -> tuple[str, ...]:
        """Names of all parties, the local one first."""
        return ((self.local_party.name,) if self.local_party else ()) + self.parties

    def __post_init__(self) -> None:
        if not self.parties or len(set(self.all_parties)) < len(self.all_parties):
            raise ConfigError(f"parties: expected distinct names, got {list(self.all_parties)}")
        try:
            for name in self.all_parties:
                NAME.read(name, "parties")
        except WireError as error:
            raise ConfigError(str(error)) from error
        if self.checkpoint_interval < 1:
            raise ConfigError(
                f"checkpoint_interval: expected 1 or more, got {self.checkpoint_interval}"
            )
        require_no_class_weight(self.labels.task, self.train)
        for name in self.release_to:
            if name not in self.all_parties:
                raise ConfigError(f"release_to: {unknown('party', name, self.all_parties)}")
        check_secret(self.secret, self.secret_options)
        if self.secret and self.local_party:
            raise ConfigError(
                "secret: expected no `local_party`; run the label holder's features as a party"
            )
        if self.secret and (self.prediction or self.release_to):
            raise ConfigError(f"secret: expected no `prediction` and no `release_to`; {ASK_NODES}")


@dataclass(frozen=True)
class PartyProcessConfig:
    """Configuration of `xvfl party`."""

    coordinator: str
    """HOST:PORT of the coordinator."""
    table: str
    """A .csv, .csv.gz, .parquet or .xlsx file, an .npz file of images, or "sql:SELECT …"
    (DuckDB)."""
    tls: Tls
    """Certificate and key of this process, and the certificate authority it trusts."""
    id_column: str | None = None
    """The id column."""
    options: TableOptions = TableOptions()
    """How columns are read."""
    state_dir: str = "state"
    """Folder of alignment, encoder, checkpoints, log and released model."""
    revocation_list: str | None = None
    """Revocation list of the authority (PEM), read again when it changes; without it, a revoked
    coordinator is not detected."""
    matching: MatchingConfig = MatchingConfig()
    """Private id matching."""
    release_key: str | None = None
    """The coordinator's public key (NAME.release.pub), which verifies a released head."""
    status_address: str | None = None
    """HOST:PORT of the status server (/health, /metrics, /status, and a page); off by default."""
    status_tokens: str | None = None
    """File of callers of the status server and their rights, a name, a token and rights in each
    line; without it, everybody who reaches the address may look."""
    status_certificate: str | None = None
    """Certificate of the status server (PEM), which then serves https, for the host of
    `status_address`."""
    status_private_key: str | None = None
    """Private key of `status_certificate`."""
    status_allowed_hosts: tuple[str, ...] = ()
    """Host names that clients of the status server may use besides localhost, IP addresses and,
    unless it listens on a loopback address, names without a dot."""
    log_format: Literal["text", "json"] = "text"
    """The log on standard error: lines for people, or the lines of `log.jsonl`."""
    reconnect_timeout: float = 3600.0
    """Seconds without a connection to the coordinator after which the log says so, and a party with
    `--once` or `--serve` exits."""
    max_message_bytes: int = MAX_FRAME_BYTES
    """Largest message accepted, in bytes; values above the default have no effect."""
    device: Literal["auto", "cpu", "cuda"] = "cpu"
    """Device of the party's net."""
    training: Literal["upload", "interactive"] = "upload"
    """`upload`: the party trains its encoder alone and uploads embeddings once. `interactive`: the
    coordinator trains the party's net step by step with gradients; only for partners who trust each
    other."""
    encoder: EncoderConfig = EncoderConfig()
    """How the party trains its encoder, and what it uploads of a row."""
    upload: UploadTerms = UploadTerms()
    """Terms of the upload."""
    limits: RequestLimits = RequestLimits()
    """Limits on the coordinator's requests."""
    prediction: PartyPrediction | None = None
    """Prediction by the federation."""
    secret: Engine | None = None
    """`spu`: the party's embeddings leave it as shares for three nodes only; it refuses requests
    for an upload."""
    secret_options: SecretOptions = SecretOptions()
    """The nodes that hold the shares."""

    def __post_init__(self) -> None:
        check_secret(self.secret, self.secret_options)
        if self.secret and (self.prediction or self.training == "interactive"):
            raise ConfigError(
                f"secret: expected no `prediction` and no interactive training; {ASK_NODES}"
            )


def load_coordinator_config(
    path: Path, defaults: Mapping[str, Any] = MappingProxyType({})
) -> CoordinatorConfig:
    """Read the coordinator's configuration; `defaults` are keys that the file may omit."""
    config = load_config(path, defaults)
    if not isinstance(config, CoordinatorConfig):
        raise ConfigError(f"{path}: expected a coordinator's configuration, got a party's")
    return config


def load_party_config(
    path: Path, defaults: Mapping[str, Any] = MappingProxyType({})
) -> PartyProcessConfig:
    """Read a party's configuration; `defaults` are keys that the file may omit."""
    config = load_config(path, defaults)
    if not isinstance(config, PartyProcessConfig):
        raise ConfigError(f"{path}: expected a party's configuration, got the coordinator's")
    return config


def load_config(
    path: Path, defaults: Mapping[str, Any] = MappingProxyType({})
) -> CoordinatorConfig | PartyProcessConfig:
    """Read a configuration of either kind: the coordinator's has `listen`, a party's `coordinator`.

    Parameters
    ----------
    path : Path
        A TOML file.
    defaults : mapping
        Keys that the file may omit.

    Raises
    ------
    ConfigError
        If a key is unknown or missing, or a value is invalid.

    """
    try:
        data = {**defaults, **tomllib.loads(read_config(path))}
    except tomllib.TOMLDecodeError as error:
        raise ConfigError(f"{path}: not valid TOML: {error}") from error
    if ("listen" in data) == ("coordinator" in data):
        raise ConfigError(
            f"{path}: expected either `listen` (coordinator) or `coordinator` (party)"
        )
    kind = CoordinatorConfig if "listen" in data else PartyProcessConfig
    config: CoordinatorConfig | PartyProcessConfig = resolve_paths(
        build(kind, data, str(path)), path.resolve().parent
    )
    for option in ("listen", "coordinator", "status_address"):
        if (address := getattr(config, option, None)) is not None:
            parse_address(address, option)
    if (config.status_certificate is None) != (config.status_private_key is None):
        raise ConfigError("status_certificate: expected also `status_private_key`, or neither")
    return config


def resolve_paths(section: Any, base: Path) -> Any:
    """Make the paths in a section, and in the sections within it, absolute."""
    changes: dict[str, Any] = {}
    for each in fields(section):
        value = getattr(section, each.name)
        if is_dataclass(value):
            changes[each.name] = resolve_paths(value, base)
        elif each.name in PATHS and isinstance(value, tuple):
            changes[each.name] = tuple(str(base / path) for path in value)
        elif each.name in PATHS and value is not None:
            changes[each.name] = value if value.startswith(SQL) else str(base / value)
    return replace(section, **changes)
