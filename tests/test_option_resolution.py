"""All ways to train resolve the options of a run alike: what reaches the trainer is compared.

`python -m tests.test_option_resolution` prints the table.
"""

import tempfile
import warnings
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from threading import Event
from typing import Any

import numpy as np
import pandas as pd
import pytest
import torch
from torch import nn

from tests.options import by_section
from xvfl import Images, XVFLClassifier
from xvfl.audit.load_scenario import load_scenario
from xvfl.audit.simulation import Scenario, configured_protection, simulate
from xvfl.config import LossConfig, NetConfig, PrivacyConfig, TrainConfig
from xvfl.errors import DataWarning
from xvfl.federation.party_worker import PartyWorker
from xvfl.federation.upload.objectives import Objective
from xvfl.federation.upload.stored_party import StoredParty
from xvfl.methods.members import Members
from xvfl.methods.noisy_labels import NoisyLabels
from xvfl.methods.xvfl import XVFL
from xvfl.model.run_dir import RunDir
from xvfl.model.workflow import train_run
from xvfl.primitives.layout import Feature, Layout
from xvfl.service.config import load_coordinator_config, load_party_config
from xvfl.service.coordinator_service import CoordinatorService
from xvfl.service.party_inputs import PartyInputs
from xvfl.service.party_service import PartyService
from xvfl.service.uploads.upload_party import UploadPartyService
from xvfl.training.loop import Trainer
from xvfl.wire.in_process import InProcessTransport

Values = dict[str, Any]
ENCODER_KEYS = (
    "embedding_dim",
    "hidden_dim",
    "skip_rank",
    "number_embedding_dim",
    "n_blocks",
    "base_channels",
    "epochs",
    "epsilon",
)
"""Options of a run in one process that a party of a federation sets for its encoder."""
FEATURES, IMAGE = 3, (4, 5)
SECTIONS = {"net": NetConfig, "loss": LossConfig, "train": TrainConfig, "privacy": PrivacyConfig}


@dataclass(frozen=True)
class Setting:
    """The options that are set, and the tables."""

    options: Values = field(default_factory=dict)
    images: bool = False
    rows: int = 200
    parties: int = 2

    @property
    def names(self) -> list[str]:
        """Names of the parties."""
        return [f"p{i}" for i in range(self.parties)]

    @property
    def uploads(self) -> bool:
        """Whether parties of a federation upload."""
        return self.options.get("label_protection", "no_gradients") == "no_gradients"

    @property
    def training(self) -> str:
        """How the parties of a federation train."""
        return "upload" if self.uploads else "interactive"

    def as_federated(self) -> "Setting":
        """Set the two options whose automatic value a federation changes."""
        federated = {"members": 1, "label_protection": "no_gradients"}
        return replace(self, options={**federated, **self.options})

    def tables(self) -> dict[str, Any]:
        """Draw each party's table or images, without missing values."""
        rng = np.random.default_rng(0)
        if self.images:
            return {n: Images(rng.random((self.rows, *IMAGE)), self.ids) for n in self.names}
        columns = [f"x{i}" for i in range(FEATURES)]
        shape = (self.rows, FEATURES)
        return {n: pd.DataFrame(rng.normal(size=shape), self.ids, columns) for n in self.names}

    @property
    def ids(self) -> list[str]:
        """Ids of the rows; every party has all of them."""
        return [f"r{i}" for i in range(self.rows)]

    def labels(self) -> pd.Series:
        """Alternate two classes."""
        return pd.Series(np.arange(self.rows) % 2, self.ids, name="y")

    def sections(self) -> str:
        """Write the options as TOML."""
        lines = ["test_fraction = 0.0"]
        for name, section in SECTIONS.items():
            keys = [key for key in self.options if key in section.__dataclass_fields__]
            lines += [f"[{name}]", *(f"{key} = {_toml(self.options[key])}" for key in keys)]
            lines += ['device = "cpu"'] * (name == "train")
        return "\n".join(lines)

    def encoder(self) -> str:
        """Write the options of the parties' encoders as TOML."""
        keys = [key for key in self.options if key in ENCODER_KEYS]
        return "\n".join(["[encoder]", *(f"{key} = {_toml(self.options[key])}" for key in keys)])

    def write(self, folder: Path) -> dict[str, str]:
        """Write the tables and labels; return the file names of the tables."""
        self.labels().to_csv(folder / "labels.csv", index_label="id")
        files = {}
        for name, table in self.tables().items():
            files[name] = f"{name}.npz" if self.images else f"{name}.csv"
            if self.images:
                np.savez(folder / files[name], images=table.pixels, ids=np.array(self.ids))
            else:
                table.to_csv(folder / files[name], index_label="id")
        return files


def _without_epsilon(setting: Setting) -> Setting:
    """Return what the coordinator sets; ε is the parties' own option."""
    return replace(setting, options={k: v for k, v in setting.options.items() if k != "epsilon"})


def _toml(value: Any) -> str:
    return str(value).lower() if isinstance(value, bool) else repr(value).replace("'", '"')


class TrainingStarts(Exception):
    """Raised where training would start, with the trainer."""


@contextmanager
def observed(found: Values) -> Iterator[None]:
    """Run a block until training starts; note the options that the nets and the trainer have."""
    workers: dict[str, PartyWorker] = {}
    create, run = PartyWorker.__init__, Trainer.run

    def create_worker(self: PartyWorker, name: str, *rest: Any, **more: Any) -> None:
        create(self, name, *rest, **more)
        workers[name] = self

    def start(self: Trainer, validate: Any) -> Any:
        if isinstance(self.method, Objective):
            # Encoders stay untrained; heads follow.
            return iter(())
        raise TrainingStarts(self)

    PartyWorker.__init__, Trainer.run = create_worker, start  # type: ignore[method-assign]
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", DataWarning)
            yield
    except TrainingStarts as started:
        found |= describe(started.args[0], list(workers.values()))
    finally:
        PartyWorker.__init__, Trainer.run = create, run  # type: ignore[method-assign]


def describe(trainer: Trainer, workers: list[PartyWorker]) -> Values:
    """Return the options with which a run trains, by their effect."""
    method, train = trainer.method, trainer.config
    noisy = isinstance(method, NoisyLabels)
    method = method.method if isinstance(method, NoisyLabels) else method
    method = method.method if isinstance(method, Members) else method
    values: Values = {
        "members": len(workers[0].seeds),
        "embedding_dim": {_width(worker) for worker in workers}.pop(),
        "party_weights": {sum(w.numel() for w in each.net.parameters()) for each in workers},
        "head_weights": sum(weight.numel() for weight in method.heads.parameters()),
        "protection": "noise" if noisy else _protection(trainer),
        # A federation with uploads splits rows by their ids.
        "rows": round(len(trainer.rows), -2),
        "epochs": train.epochs,
        "batch_size": trainer.batch_size,
        "learning_rate": train.learning_rate,
        "completion_interval": train.completion_interval,
        "unmasked_copies": {round(float(each._unmasked[0]), 3) for each in workers},
        "reconstruction": {each.reconstruction for each in workers},
    }
    if isinstance(method, XVFL):
        names = ("self_completion", "n_masks", "guidance", "joint_masks")
        values |= {name: getattr(method.weights, name) for name in names}
    return {k: v.pop() if isinstance(v, set) and len(v) == 1 else v for k, v in values.items()}


def _width(worker: PartyWorker) -> int:
    net, members = worker.net, len(worker.seeds)
    shape = net.layout.image or (net.layout.encoded,)
    with torch.no_grad():
        seen = torch.ones(members, net.layout.raw, dtype=torch.bool)
        return net.embed(torch.zeros(members, *shape), seen).shape[1]


def _protection(trainer: Trainer) -> str:
    workers = getattr(trainer.federation, "workers", ())
    uploads = any(isinstance(worker, StoredParty) for worker in workers)
    return "no_gradients" if uploads else "off"


def from_estimator(setting: Setting, folder: Path) -> None:
    """Train with the estimator."""
    XVFLClassifier(**by_section({"device": "cpu", **setting.options})).fit(
        setting.tables(), setting.labels()
    )


def _config(setting: Setting, folder: Path) -> Path:
    files, path = setting.write(folder), folder / "run.toml"
    text = setting.sections() + '\n[labels]\ntable = "labels.csv"\nid_column = "id"\ncolumn = "y"\n'
    for name, file in files.items():
        text += f'[parties.{name}]\ntable = "{file}"\n' + 'id_column = "id"\n' * (
            not setting.images
        )
    path.write_text(text)
    return path


def from_train(setting: Setting, folder: Path) -> None:
    """Train with `xvfl train`."""
    path = _config(setting, folder)
    train_run(path, path.read_text(), RunDir(folder / "run"), False, lambda update: None)


def from_audit(setting: Setting, folder: Path) -> None:
    """Train interactively as `xvfl audit` does, with the configured protection."""
    scenario = load_scenario(_config(setting, folder), max_rows=10**6)
    assert isinstance(scenario, Scenario)
    simulate(scenario, configured_protection(scenario.privacy))


TLS = '[tls]\nca_certificate = "ca.crt"\ncertificate = "c.crt"\nprivate_key = "c.key"\n'


def from_coordinator(setting: Setting, folder: Path) -> None:
    """Train with the coordinator and its parties, all in this process."""
    files, names = setting.write(folder), str(setting.names).replace("'", '"')
    (folder / "coordinator.toml").write_text(
        f'listen = "127.0.0.1:0"\nparties = {names}\n{_without_epsilon(setting).sections()}\n{TLS}'
        '[labels]\ntable = "labels.csv"\nid_column = "id"\ncolumn = "y"\n'
    )
    service = CoordinatorService(load_coordinator_config(folder / "coordinator.toml"), show=False)
    transports = {}
    for name, file in files.items():
        id_column = "" if setting.images else 'id_column = "id"\n'
        (folder / f"{name}.toml").write_text(
            f'coordinator = "127.0.0.1:1"\ntable = "{file}"\nstate_dir = "{name}"\n'
            f'training = "{setting.training}"\n{id_column}{TLS}{setting.encoder()}'
        )
        config = load_party_config(folder / f"{name}.toml")
        inputs = PartyInputs.load(name, config, RunDir(config.state_dir).create())
        kind = UploadPartyService if setting.uploads else PartyService
        end = kind(inputs, lambda event: None).endpoint
        transports[name] = InProcessTransport(end.hello, end.handle)
    service.connect(transports)
    service.run(Event())


def from_lab(setting: Setting, folder: Path) -> None:
    """Train a run of an experiment."""
    stacked_runs = pytest.importorskip("xvfl_lab.experiments.stacked_runs")
    task = pytest.importorskip("xvfl_lab.task").Task
    rng, test = np.random.default_rng(0), 20
    rows, names = setting.rows + test, setting.names
    layout = Layout(tuple(Feature(f"x{i}", "numeric", 1) for i in range(FEATURES)))
    values = rng.random((rows, FEATURES)).astype(np.float32)
    if setting.images:
        layout, values = Layout(image=(1, *IMAGE)), rng.integers(255, size=(rows, 1, *IMAGE))
    made = task(
        "data",
        dict.fromkeys(names, layout),
        dict.fromkeys(names, values),
        np.arange(rows) % 2,
        test=np.arange(rows) >= setting.rows,
    )
    net, loss, train, privacy = (
        section(**{k: v for k, v in setting.options.items() if k in section.__dataclass_fields__})
        for section in SECTIONS.values()
    )
    run = stacked_runs.RunConfig("", 0.0, 0, net=net, loss=loss, train=train)
    stacked_runs.StackedRuns(made, [run], torch.device("cpu"), privacy, as_stored=False).train()


ENTRY_POINTS: Mapping[str, Callable[[Setting, Path], None]] = {
    "estimator": from_estimator,
    "train": from_train,
    "coordinator": from_coordinator,
    "audit": from_audit,
    "lab": from_lab,
}
FOUR: Values = {"members": 4}
EXPLICIT: Values = {
    "members": 2,
    "epochs": 7,
    "learning_rate": 0.001,
    "completion_interval": 2,
    "batch_size": 50,
    "n_masks": 3,
    "guidance": 0.75,
    "unmasked_copies": 0.25,
    "embedding_dim": 24,
    "hidden_dim": 136,
    "skip_rank": 3,
    "number_embedding_dim": 4,
}
SMALL: Values = {"n_blocks": 1, "base_channels": 8}
SETTINGS: dict[str, Setting] = {
    "defaults": Setting(),
    "three parties": Setting(parties=3),
    "one member": Setting({"members": 1}),
    "four members, off": Setting({**FOUR, "label_protection": "off"}),
    "four members, noise, three parties": Setting({**FOUR, "label_protection": "noise"}, parties=3),
    "two heads": Setting({"heads": 2, "label_protection": "no_gradients"}),
    "four members, off, 1,600 rows": Setting({**FOUR, "label_protection": "off"}, rows=1600),
    "off": Setting({"label_protection": "off"}),
    "explicit values": Setting({**EXPLICIT, "label_protection": "off"}),
    "explicit values, no gradients": Setting(
        {**EXPLICIT, "members": 1, "completion_interval": 1, "label_protection": "no_gradients"}
    ),
    "laser+mask, four members, off": Setting(
        {**FOUR, "method": "laser+mask", "label_protection": "off"}
    ),
    "xvfl, four members, noise": Setting({**FOUR, "method": "xvfl", "label_protection": "noise"}),
    "laser, three parties, off": Setting({"method": "laser", "label_protection": "off"}, parties=3),
    "laser+mask": Setting({"method": "laser+mask"}),
    "page, four members, off": Setting({**FOUR, "optimizer": "page", "label_protection": "off"}),
    "epsilon": Setting({"method": "laser", "epsilon": 4.0}),
    "images": Setting(SMALL, images=True),
    "images, off, three parties": Setting({**SMALL, "label_protection": "off"}, True, parties=3),
    "images, no self completion": Setting(
        {**SMALL, "self_completion": 0.0, "label_protection": "off"}, True
    ),
}
"""A grid in which each value of an option meets those of the others that change its rule."""


def options_from(entry_point: str, setting: Setting) -> Values:
    """Return the options with which an entry point trains."""
    found: Values = {}
    # A party's thread may still write its model of cells.
    temporary = tempfile.TemporaryDirectory(ignore_cleanup_errors=True)
    with temporary as folder, observed(found):
        ENTRY_POINTS[entry_point](setting, Path(folder))
    assert found, f"{entry_point} did not train"
    return found


SLOW = (
    "three parties",
    "off",
    "explicit values, no gradients",
    "xvfl, four members, noise",
    "laser, three parties, off",
    "page, four members, off",
    "one member",
    "two heads",
    "explicit values",
    "laser+mask, four members, off",
    "images, off, three parties",
)


@pytest.mark.parametrize(
    "name", [pytest.param(n, marks=[pytest.mark.slow] * (n in SLOW)) for n in SETTINGS]
)
def test_all_ways_to_train_agree(name: str) -> None:
    setting = SETTINGS[name]
    federation, one_process = (
        options_from(entry_point, setting) for entry_point in ("coordinator", "estimator")
    )
    assert options_from("train", setting) == one_process
    # In a federation, two options have other automatic values; all others follow from them.
    assert options_from("estimator", setting.as_federated()) == federation
    if setting.uploads:
        return
    assert options_from("audit", setting) == federation
    # Last: the lab is not installed with a wheel.
    assert options_from("lab", setting) == federation


def test_custom_nets_have_one_member() -> None:
    """Custom nets exist in the estimator only."""
    bottoms = {"p0": nn.Linear(2 * FEATURES, 64)}
    own = options_from("estimator", Setting({"bottoms": bottoms}))
    one = options_from("estimator", Setting({"members": 1}))
    nets = ("party_weights", "head_weights")
    assert {k: v for k, v in own.items() if k not in nets} == {
        k: v for k, v in one.items() if k not in nets
    }


def table() -> Iterator[str]:
    """Write the options of every setting and entry point as a Markdown table."""
    columns: list[str] = []
    for name, setting in SETTINGS.items():
        found: dict[str, list[str]] = {}
        for entry_point in ENTRY_POINTS:
            values = options_from(entry_point, setting)
            columns = columns or list(values)
            cells = " | ".join(str(values.get(column, "–")) for column in columns)
            found.setdefault(cells, []).append(entry_point)
        if name == next(iter(SETTINGS)):
            yield "| setting | entry points | " + " | ".join(columns) + " |"
            yield "|---" * (len(columns) + 2) + "|"
        for cells, entry_points in found.items():
            yield f"| {name} | {', '.join(entry_points)} | {cells} |"


if __name__ == "__main__":
    for line in table():
        print(line, flush=True)
