"""Heads on uploads: their options, their nets, and the federation of stored embeddings.

The coordinator of a federation, a run in one process and the lab train heads by these functions.
Shapes: n rows of a party, c masked copies, d embedding width.
"""

from collections.abc import Mapping, Sequence
from typing import cast

from torch import Tensor, nn

from xvfl.config import LossConfig, NetConfig, PrivacyConfig
from xvfl.errors import ConfigError
from xvfl.federation.fused import FusedFederation
from xvfl.federation.party_worker import PartyWorker
from xvfl.federation.upload.stored_party import StoredParty
from xvfl.methods import Method, require_one_branch
from xvfl.methods.build import build_method
from xvfl.methods.members import member_seeds
from xvfl.options import Options, check_one_member
from xvfl.primitives.task import Task


def check_head_options(net: NetConfig, loss: LossConfig, privacy: PrivacyConfig) -> None:
    """Reject options of a coordinator that uploads do not allow."""
    require_one_branch(loss.method)
    check_one_member(net)
    if privacy.epsilon is not None:
        raise ConfigError(
            "privacy.epsilon: expected none at the coordinator of a federation; each party sets "
            "`epsilon` in [encoder] of its own configuration"
        )


def build_heads(
    uploads: Mapping[str, Tensor],
    options: Options,
    seeds: Sequence[int],
    task: Task,
    image: bool,
    head: nn.Module | None = None,
) -> tuple[Method, FusedFederation]:
    """Build the method with its heads, and the federation of the parties' uploads.

    Parameters
    ----------
    uploads : mapping of str to Tensor of shape (n, 1 + c, d)
        Views by party and handle, as `compute_views` returns them; d may differ by party.
    options
        Options with label protection `no_gradients`; their `embedding_dim` is the largest d.
    seeds
        One seed for each run that is trained at once.
    task
        What the heads predict.
    image
        Whether a party has images.
    head
        A custom head in place of the default one.
    """
    net, loss, privacy = options.net, options.loss, options.privacy
    widths = [views.shape[-1] for views in uploads.values()]
    method = build_method(len(uploads), task, image, net, loss, seeds, privacy, widths, head)
    by_head = member_seeds(seeds, net.heads)
    unmasked = [loss.unmasked_copies or 0.0] * len(by_head)
    parties = [StoredParty(name, each, by_head, unmasked) for name, each in uploads.items()]
    # A stored party has what a federation in one process uses of a worker.
    workers = cast(Sequence[PartyWorker], parties)
    return method, FusedFederation(workers, net.embedding_dim)
