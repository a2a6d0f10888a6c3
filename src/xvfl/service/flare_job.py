"""Functions that an NVIDIA FLARE job runs at the server and at each site.

The job's property `config` names the configuration of each side: the files of `xvfl coordinator`
and `xvfl party`, without addresses and certificates, which FLARE provides.
"""

from collections.abc import Mapping
from pathlib import Path
from threading import Event
from typing import Any

from xvfl.errors import ConfigError
from xvfl.federation.request_endpoint import RequestEndpoint
from xvfl.service.config import load_coordinator_config, load_party_config
from xvfl.service.coordinator_service import CoordinatorService
from xvfl.service.party import open_party
from xvfl.service.party_inputs import PartyInputs
from xvfl.service.state_dir import open_state_dir
from xvfl.wire.transport import Transport

FLARE = "flare:0"
"""Placeholder address; FLARE provides the connection."""
NO_TLS = {"tls": {"ca_certificate": "", "certificate": "", "private_key": ""}}


def endpoint(site: str, props: Mapping[str, Any]) -> RequestEndpoint:
    """Build the endpoint of a site's party; the party has the site's name."""
    config = load_party_config(_config_path(props), {"coordinator": FLARE, **NO_TLS})
    folder, log = open_state_dir(config, site)
    return open_party(PartyInputs.load(site, config, folder), log).endpoint


def run(transports: Mapping[str, Transport], props: Mapping[str, Any]) -> None:
    """Match ids and train with the sites."""
    path = _config_path(props)
    config = load_coordinator_config(path, {"listen": FLARE, **NO_TLS})
    if set(config.parties) != set(transports) or config.local_party is not None:
        raise ConfigError(
            f"{path}: expected the job's sites as parties, {', '.join(transports)}, and no "
            f"[local_party], got {', '.join(config.all_parties)}"
        )
    service = CoordinatorService(config)
    for name, transport in transports.items():
        if (hello := transport.hello()) is not None:
            service.check_hello(name, hello)
    service.connect(transports)
    service.run(Event())


def _config_path(props: Mapping[str, Any]) -> Path:
    if not props.get("config"):
        raise ConfigError("the job's property `config` must name this side's configuration")
    return Path(props["config"])
