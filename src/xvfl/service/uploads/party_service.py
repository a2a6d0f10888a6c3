"""A party's part in a federation by uploads: match ids, train the encoder, upload, install."""

import secrets
from functools import partial
from hashlib import blake2b
from typing import Any

from xvfl.config import EncoderConfig, UploadTerms
from xvfl.data.images import Images
from xvfl.data.sources import source_columns, source_ids
from xvfl.matching.alignment import PartyAlignment, load_party_alignment
from xvfl.service.config import ALIGNMENT
from xvfl.service.log import LogFunction
from xvfl.service.party_inputs import PartyInputs
from xvfl.service.party_matching import MatchingService
from xvfl.service.party_release import PartyFolder, release_event
from xvfl.service.uploads.party_encoder import PartyEncoder, load_parts
from xvfl.service.uploads.upload_endpoint import UploadEndpoint
from xvfl.wire.messages import Done, Hello, Match, Message, Release


class UploadPartyService:
    """One party, in a process of its own or in the coordinator's process."""

    def __init__(
        self, inputs: PartyInputs, config: EncoderConfig, terms: UploadTerms, log: LogFunction
    ) -> None:
        """Load the state folder; reject a table that has changed since its ids were matched."""
        self.inputs, self._log = inputs, log
        self._folder = PartyFolder(
            inputs.name,
            inputs.folder,
            inputs.release_key,
            inputs.id_column,
            partial(load_parts, inputs.folder),
        )
        self.ids, columns = source_ids(inputs.source), source_columns(inputs.source)
        path = inputs.folder / ALIGNMENT
        self._alignment: PartyAlignment | None = None
        if path.is_file():
            self._alignment = load_party_alignment(path)
            self._alignment.table.check(columns, self.ids, f"party {inputs.name!r}")
        self._process_id = secrets.token_hex(8)
        self._matching = MatchingService(
            self.ids, columns, inputs.matching, path, log, self._set_alignment
        )
        encoder = PartyEncoder(
            inputs.name, inputs.folder, inputs.source, inputs.options, config, 1, inputs.device
        )
        self.endpoint = UploadEndpoint(
            self.hello(),
            inputs.folder,
            encoder,
            terms,
            config.masked_copies,
            len(self.ids),
            self._reply,
            log,
        )
        if self._alignment is not None:
            self.endpoint.set_match(self._alignment.match.rows)

    def hello(self) -> Hello:
        """Describe this party to the coordinator."""
        match = self._alignment.match if self._alignment else None
        columns = sorted(source_columns(self.inputs.source))
        return Hello(
            0,
            self._process_id,
            isinstance(self.inputs.source, Images),
            len(match.rows) if match else 0,
            blake2b(repr(columns).encode(), digest_size=8).hexdigest(),
            match.session.hex() if match else "",
        )

    def close(self) -> None:
        """Stop the training of the encoder; it continues from its checkpoint."""
        self.endpoint.close()

    @property
    def busy(self) -> bool:
        """Whether the encoder is being trained."""
        return 0 < self.endpoint.progress < 1

    def status(self) -> dict[str, Any]:
        """Describe encoder and upload for the status server; numbers become metrics."""
        endpoint = self.endpoint
        return {
            "encoder_version": endpoint.version,
            "encoder_progress": endpoint.progress,
            "uploaded": int(endpoint.uploaded),
        }

    def _set_alignment(self, alignment: PartyAlignment) -> None:
        self._alignment = alignment
        self.endpoint.hello = self.hello()
        self.endpoint.set_match(alignment.match.rows)

    def _reply(self, message: Match | Release) -> Message:
        if isinstance(message, Match):
            return self._matching.reply(message)
        manifest = self._folder.install(message)
        self._log(release_event(manifest))
        return Done(message.request_id, 0)
