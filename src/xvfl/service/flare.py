"""What a FLARE job runs from each side's own configuration; the job names it by property `config`.

The same files as for `xvfl coordinator` and `xvfl party`, without addresses and certificates, which
are FLARE's.
"""

import time
from collections.abc import Mapping
from contextlib import ExitStack
from pathlib import Path
from threading import Event
from typing import Any

import torch

from xvfl.align import ask_parties
from xvfl.data.frames import read_labels
from xvfl.errors import ConfigError, RunError
from xvfl.federation.ask import Deadline, Peer
from xvfl.federation.endpoint import Endpoint
from xvfl.federation.kernels import small_kernels
from xvfl.federation.split import Counters
from xvfl.matching.alignment import load_coordinator
from xvfl.runs import Folder
from xvfl.service.log import Log
from xvfl.service.party import TABLE
from xvfl.service.release import check_releasable
from xvfl.service.run import Run
from xvfl.service.work import Own, PartyWork
from xvfl.sides import ALIGNMENT, CoordinatorFile, PartyFile, read_side
from xvfl.wire.transport import Transport
from xvfl.workflow import read_source

FLARE = "flare"
NO_TLS = {"tls": {"authority": "", "certificate": "", "key": ""}}


def endpoint(site: str, props: Mapping[str, Any]) -> Endpoint:
    """Put a site's party behind an endpoint; its name is the site's."""
    config = read_side(_path(props), {"coordinator": FLARE, **NO_TLS})
    if not isinstance(config, PartyFile):
        raise ConfigError(f"{_path(props)}: expected a party's configuration at site {site!r}")
    folder = Folder(config.state).create()
    own = Own(
        site,
        read_source(config.table, config.id, site),
        config.options,
        folder,
        config.matching,
        config.id,
        Path(config.release_key) if config.release_key else None,
        config.device,
    )
    return PartyWork(own, Log(folder.path, site).note).endpoint


def run(lines: Mapping[str, Transport], props: Mapping[str, Any]) -> None:
    """Match ids and train over the sites' lines."""
    config = read_side(_path(props), {"listen": FLARE, **NO_TLS})
    if not isinstance(config, CoordinatorFile):
        raise ConfigError(f"{_path(props)}: expected a coordinator's configuration at the server")
    if set(config.parties) != set(lines) or config.own is not None:
        raise ConfigError(
            f"{_path(props)}: expected the job's sites as parties, {', '.join(lines)}, and no "
            f"party of the coordinator's own, got {', '.join(config.everybody)}"
        )
    check_releasable(config.loss, config.release)
    folder = Folder(config.state).create()
    log = Log(folder.path, "coordinator")
    labels = read_labels(
        config.labels.table, id_column=config.labels.id, column=config.labels.column, where="labels"
    )
    path, ids = folder / ALIGNMENT, list(labels.index)
    new = _not_matched(path, ids, config.labels.column, lines)
    ask_parties(new, ids, [config.labels.column], config.matching, path, log.note, then=None)
    wait = config.waiting
    peers = [
        Peer(name, lines[name], Deadline(wait.least, wait.factor, wait.first))
        for name in config.parties
    ]
    with ExitStack() as stack:
        stack.enter_context(small_kernels(TABLE, torch.device("cpu")))
        stack.enter_context(torch.random.fork_rng(devices=[]))
        counters = Counters(turn=time.time_ns() // 1_000_000)
        Run(config, folder, labels, load_coordinator(path), peers, counters, log.note).run(Event())


def _not_matched(
    path: Path, ids: list[str], column: str, lines: Mapping[str, Transport]
) -> dict[str, Transport]:
    """Pick the parties whose ids are still to be matched; the others must be as they were."""
    if not path.exists():
        return dict(lines)
    known = load_coordinator(path)
    known.labels.check([column], ids, "labels")
    for name, match in known.matches.items():
        hello = lines[name].hello() if name in lines else None
        if hello is not None and hello.session != match.session.hex():
            raise RunError(
                f"party {name!r}: its ids were matched in session {hello.session or 'none'!r}, "
                f"here in {match.session.hex()!r}; delete {ALIGNMENT} on both sides"
            )
    return {name: line for name, line in lines.items() if name not in known.matches}


def _path(props: Mapping[str, Any]) -> Path:
    if not props.get("config"):
        raise ConfigError("the job's property `config` must name this side's configuration")
    return Path(props["config"])
