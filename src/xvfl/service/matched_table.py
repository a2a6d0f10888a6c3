"""A party's table with its alignment: ids, private matching, and what the party reports of it."""

import secrets
from collections.abc import Callable
from hashlib import blake2b
from pathlib import Path
from typing import Literal

from xvfl.data.images import Images
from xvfl.data.sources import Source, source_columns, source_ids
from xvfl.matching import PartyAlignment, PartyMatch, load_party_alignment
from xvfl.service.config import MatchingConfig
from xvfl.service.log import LogFunction
from xvfl.service.party_matching import MatchingService
from xvfl.wire.messages import Hello

Purpose = Literal["training", "prediction"]


class MatchedTable:
    """The table that a party trains on, or opens for prediction.

    Parameters
    ----------
    source
        The table.
    path
        The alignment file.
    config
        Rule and limits of private id matching.
    log
        Receives log events.
    on_match
        Called after ids were matched.
    purpose
        What the table is for.
    """

    def __init__(
        self,
        source: Source,
        path: Path,
        config: MatchingConfig,
        log: LogFunction,
        on_match: Callable[[], None],
        purpose: Purpose = "training",
    ) -> None:
        self.ids, self._columns = source_ids(source), source_columns(source)
        self._image, self._path, self._purpose = isinstance(source, Images), path, purpose
        self._alignment = load_party_alignment(path) if path.is_file() else None
        self._process_id, self._on_match = secrets.token_hex(8), on_match
        self.matching = MatchingService(self.ids, self._columns, config, path, log, self._set)

    @property
    def match(self) -> PartyMatch | None:
        """The matched rows; None before ids are matched."""
        return self._alignment.match if self._alignment else None

    def check(self, where: str) -> None:
        """Raise `InputError` if the table has changed since its ids were matched."""
        if self._alignment is not None:
            self._alignment.table.check(self._columns, self.ids, where)

    def forget(self) -> None:
        """Delete the alignment, so that ids are matched again."""
        self._alignment = None
        self._path.unlink(missing_ok=True)

    def hello(self) -> Hello:
        """Describe this party to the coordinator."""
        match, columns = self.match, ""
        if self._purpose == "training":
            columns = blake2b(repr(sorted(self._columns)).encode(), digest_size=8).hexdigest()
        return Hello(
            0,
            self._process_id,
            self._image,
            len(match.rows) if match else 0,
            columns,
            match.session.hex() if match else "",
            self._purpose,
        )

    def _set(self, alignment: PartyAlignment) -> None:
        self._alignment = alignment
        self._on_match()
