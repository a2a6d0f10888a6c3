"""The terms of an interactive run: what the coordinator's configuration requires of every party."""

import json
from dataclasses import asdict, replace

from xvfl.errors import ConfigError
from xvfl.federation.begin_run import RunTerms
from xvfl.federation.run_settings import RunSettings
from xvfl.methods import method_spec
from xvfl.service.config import CoordinatorConfig
from xvfl.service.labeled_rows import LabeledRows
from xvfl.training.predict import BATCH

NUMBER_BYTES = 4


def make_terms(config: CoordinatorConfig, labeled: LabeledRows, run: str) -> RunTerms:
    """Collect what every party receives, and what its replies must match.

    The options of `config` are resolved.
    """
    check_message_size(config, len(labeled.parts[0]))
    settings = RunSettings(
        config.loss.method,
        config.net,
        # The coordinator's seed is not sent: it initializes the heads.
        replace(config.train, random_state=0),
        config.loss.reconstruction_weight,
        config.loss.unmasked_copies,
        config.loss.full_threshold,
        run,
        config.privacy,
    )
    return RunTerms(
        run,
        json.dumps(asdict(settings)),
        labeled.training_handles(),
        labeled.matched_rows(),
        config.timeouts.join,
    )


def check_message_size(config: CoordinatorConfig, training_rows: int) -> None:
    """Reject resolved options with which the embeddings of a batch do not fit into a message."""
    net, loss, branches = config.net, config.loss, method_spec(config.loss.method).branches
    views = 1 + 2 * loss.n_masks if loss.self_completion_weight else 1
    rows = max(config.train.batch_size_for(training_rows) * views, BATCH * min(views, 2))
    size = rows * net.members * net.embedding_dim * branches * NUMBER_BYTES
    if size > config.max_message_bytes:
        raise ConfigError(
            f"max_message_bytes: expected {size} or more for the embeddings of a batch, got "
            f"{config.max_message_bytes}; lower net.members, net.embedding_dim or train.batch_size"
        )
