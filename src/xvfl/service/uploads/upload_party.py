"""A party's part in a federation by uploads: match ids, train the encoder, upload, install."""

from typing import Any

from xvfl.federation.request_endpoint import Replies
from xvfl.service.config import ALIGNMENT
from xvfl.service.log import LogFunction
from xvfl.service.matched_table import MatchedTable
from xvfl.service.party_inputs import PartyInputs
from xvfl.service.party_release import PartyFolder
from xvfl.service.uploads.encoder_versions import current_version
from xvfl.service.uploads.party_encoder import PartyEncoder, check_epsilon
from xvfl.service.uploads.party_withdrawal import record_withdrawn_rows
from xvfl.service.uploads.upload_endpoint import UploadEndpoint
from xvfl.wire.messages import Match, Release


class UploadPartyService:
    """One party, in a process of its own or in the coordinator's process."""

    def __init__(self, inputs: PartyInputs, log: LogFunction) -> None:
        """Load the state folder; reject a table that has changed since its ids were matched."""
        self.inputs = inputs
        self._folder = PartyFolder(
            inputs.name, inputs.folder, inputs.release_key, inputs.id_column, log
        )
        path = inputs.folder / ALIGNMENT
        self.table = MatchedTable(inputs.source, path, inputs.matching, log, self._use_match)
        self.table.check(f"party {inputs.name!r}")
        version = current_version(inputs.folder)
        check_epsilon(inputs.folder, inputs.encoder, version, inputs.limits)
        self._encoder = PartyEncoder(inputs, version)
        replies: Replies = {Match: self.table.matching.reply, Release: self._folder.reply}
        self.endpoint = UploadEndpoint(inputs, self.table, self._encoder, replies, log)
        if self._encoder.privacy is not None:
            log({"event": "differential_privacy", **self._encoder.privacy.to_dict()})
        self._use_match()

    def close(self) -> None:
        """Stop the training of the encoder; it continues from its checkpoint."""
        self.endpoint.close()

    def status(self) -> dict[str, Any]:
        """Describe encoder and upload for the status server; numbers become metrics."""
        privacy = self._encoder.privacy
        return {**self.endpoint.status(), **(privacy.status() if privacy else {})}

    def _use_match(self) -> None:
        if self.table.match is not None:
            record_withdrawn_rows(self.inputs, self.table)
            self.endpoint.use_match()
