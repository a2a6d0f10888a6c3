"""What a party brings to a federation: its table, its options and its state folder."""

from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from xvfl.certs.release_key import PUBLIC_KEY
from xvfl.config import EncoderConfig, TableOptions, UploadTerms
from xvfl.data.sources import Source
from xvfl.federation.request_limits import RequestLimits
from xvfl.model.run_dir import RunDir
from xvfl.model.workflow import read_source
from xvfl.service.config import CoordinatorConfig, MatchingConfig, PartyProcessConfig


@dataclass(frozen=True)
class PartyInputs:
    """Table, options and state folder of a party."""

    name: str
    source: Source
    options: TableOptions
    folder: RunDir
    """State folder."""
    matching: MatchingConfig
    id_column: str | None = None
    release_key: Path | None = None
    """Public key that verifies a released head."""
    device: str = "cpu"
    limits: RequestLimits = RequestLimits()
    """Limits on a coordinator."""
    training: Literal["upload", "interactive"] = "upload"
    encoder: EncoderConfig = EncoderConfig()
    terms: UploadTerms = UploadTerms()
    """Terms of the upload."""

    @classmethod
    def load(
        cls, name: str, config: PartyProcessConfig, folder: RunDir, table: str | None = None
    ) -> "PartyInputs":
        """Read the table that a party's configuration names, or another one, for prediction."""
        return cls(
            name,
            read_source(table or config.table, config.id_column, name),
            config.options,
            folder,
            config.matching,
            config.id_column,
            Path(config.release_key) if config.release_key else None,
            config.device,
            config.limits,
            config.training,
            config.encoder,
            config.upload,
        )

    @classmethod
    def of_local_party(
        cls, config: CoordinatorConfig, uploads: bool, table: str | None = None
    ) -> "PartyInputs":
        """Read the table of the party in the coordinator's process, or its prediction table."""
        party, state = config.local_party, RunDir(config.state_dir)
        assert party is not None
        return cls(
            party.name,
            read_source(table or party.table, party.id_column, party.name),
            party.options,
            RunDir(state / party.name).create(),
            config.matching,
            party.id_column,
            state / PUBLIC_KEY,
            training="upload" if uploads else "interactive",
            encoder=party.encoder,
        )
