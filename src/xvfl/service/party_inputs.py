"""What a party brings to a federation: its configuration, its table and its state folder."""

from dataclasses import dataclass
from pathlib import Path

from xvfl.certs.release_key import PUBLIC_KEY
from xvfl.data.sources import Source
from xvfl.model.run_dir import RunDir
from xvfl.model.workflow import read_source
from xvfl.service.config import CoordinatorConfig, LocalPartyConfig, PartyProcessConfig


@dataclass(frozen=True)
class PartyInputs:
    """Configuration, table and state folder of a party."""

    name: str
    config: PartyProcessConfig
    source: Source
    folder: RunDir
    """State folder."""

    @classmethod
    def load(
        cls, name: str, config: PartyProcessConfig, folder: RunDir, table: str | None = None
    ) -> "PartyInputs":
        """Read the table that a party's configuration names, or another one, for prediction."""
        return cls(name, config, read_source(table or config.table, config.id_column, name), folder)

    @classmethod
    def of_local_party(
        cls, config: CoordinatorConfig, uploads: bool, table: str | None = None
    ) -> "PartyInputs":
        """Read the table of the party in the coordinator's process, or its prediction table."""
        assert config.local_party is not None
        name, own = config.local_party.name, local_party_config(config, config.local_party, uploads)
        return cls.load(name, own, RunDir(own.state_dir).create(), table)


def local_party_config(
    config: CoordinatorConfig, party: LocalPartyConfig, uploads: bool = True
) -> PartyProcessConfig:
    """Return the configuration that the party in the coordinator's process would have alone."""
    state = Path(config.state_dir)
    return PartyProcessConfig(
        config.listen,
        party.table,
        config.tls,
        party.id_column,
        party.options,
        str(state / party.name),
        matching=config.matching,
        release_key=str(state / PUBLIC_KEY),
        training="upload" if uploads else "interactive",
        encoder=party.encoder,
    )
