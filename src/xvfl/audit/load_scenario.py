"""Read the rows and settings to audit: from a training configuration or a run folder."""

from pathlib import Path

from xvfl.audit.simulation import Scenario
from xvfl.config import Config, parse_config, read_config
from xvfl.dataset.in_memory import prepare_in_memory
from xvfl.dataset.on_disk.parquet_tables import trains_from_disk
from xvfl.dataset.prepare import PreparationPlan
from xvfl.dataset.splits import Splits
from xvfl.errors import InputError
from xvfl.model.run_dir import MANIFEST, RunDir
from xvfl.model.workflow import open_run, read_run_tables


def load_scenario(path: Path, max_rows: int, max_epochs: int | None = None) -> Scenario:
    """Read a configuration or a run, with a random sample of at most `max_rows` labeled rows."""
    config, base_dir = _read(path)
    if trains_from_disk(config, base_dir):
        raise InputError(
            f"{path}: the audit reads tables into memory, and these are too large; audit a sample: "
            'table = "sql:SELECT * FROM … USING SAMPLE 10000 ROWS"'
        )
    if config.labels.task == "regression":
        raise InputError(
            f"{path}: the audit simulates attacks on classes, got labels.task = 'regression'; bin "
            "the label into classes to audit the same tables"
        )
    sources, labels = read_run_tables(config, base_dir)
    train = config.train
    if len(labels) > max_rows:
        labels = labels.sample(max_rows, random_state=train.random_state)
    options = {name: party.options for name, party in config.parties.items()}
    # No test rows: the attacks need none.
    splits = Splits(0.0, train.validation_fraction, train.random_state)
    plan = PreparationPlan(options, splits, config.loss.full_threshold, train.class_weight)
    dataset = prepare_in_memory(sources, labels, plan)
    return Scenario.of(config, dataset, max_epochs)


def _read(path: Path) -> tuple[Config, Path]:
    """Return the configuration, and the folder that its file names are relative to."""
    if not path.is_dir():
        return parse_config(read_config(path), str(path)), path.resolve().parent
    folder = RunDir(path)
    if not folder.has(MANIFEST):
        raise InputError(
            f"{path}: expected a configuration or a finished run folder of `xvfl train`"
        )
    _, manifest, config = open_run(folder)
    base_dir = Path(manifest["base_dir"])
    if not base_dir.is_dir():
        raise InputError(
            f"{path}: trained from tables in {base_dir}, which no longer exists; restore them"
        )
    return config, base_dir
