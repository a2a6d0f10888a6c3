"""What a FLARE job runs from each side's own configuration; the job names it by property `config`.

The same files as for `xvfl coordinator` and `xvfl party`, without addresses and certificates, which
are FLARE's.
"""

from collections.abc import Mapping
from pathlib import Path
from threading import Event
from typing import Any

from xvfl.errors import ConfigError
from xvfl.federation.endpoint import Endpoint
from xvfl.model.run_dir import RunDir
from xvfl.service.config import CoordinatorConfig, PartyProcessConfig, read_service_config
from xvfl.service.coordinator_side import CoordinatorSide
from xvfl.service.log import Log
from xvfl.service.party_work import Own, PartyWork
from xvfl.wire.transport import Transport

FLARE = "flare"
NO_TLS = {"tls": {"ca_certificate": "", "certificate": "", "private_key": ""}}


def endpoint(site: str, props: Mapping[str, Any]) -> Endpoint:
    """Put a site's party behind an endpoint; its name is the site's."""
    config = read_service_config(_path(props), {"coordinator": FLARE, **NO_TLS})
    if not isinstance(config, PartyProcessConfig):
        raise ConfigError(f"{_path(props)}: expected a party's configuration at site {site!r}")
    folder = RunDir(config.state_dir).create()
    return PartyWork(Own.of(site, config, folder), Log(folder.path, site).note).endpoint


def run(lines: Mapping[str, Transport], props: Mapping[str, Any]) -> None:
    """Match ids and train over the sites' lines."""
    config = read_service_config(_path(props), {"listen": FLARE, **NO_TLS})
    if not isinstance(config, CoordinatorConfig):
        raise ConfigError(f"{_path(props)}: expected a coordinator's configuration at the server")
    if set(config.parties) != set(lines) or config.local_party is not None:
        raise ConfigError(
            f"{_path(props)}: expected the job's sites as parties, {', '.join(lines)}, and no "
            f"party of the coordinator's own, got {', '.join(config.all_parties)}"
        )
    side = CoordinatorSide(config)
    for name, line in lines.items():
        if (hello := line.hello()) is not None:
            side.welcome(name, hello)
    side.connect(lines)
    side.run(Event())


def _path(props: Mapping[str, Any]) -> Path:
    if not props.get("config"):
        raise ConfigError("the job's property `config` must name this side's configuration")
    return Path(props["config"])
