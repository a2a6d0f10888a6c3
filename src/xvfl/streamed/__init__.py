"""Tables larger than memory: prepared once, piece by piece, into files that training reads."""

from xvfl.streamed.cache import CACHE, cached, clear, keep_held_out
from xvfl.streamed.held_out import streamed_parts
from xvfl.streamed.places import HELD_OUT
from xvfl.streamed.prepare import prepare_streamed
from xvfl.streamed.prepared import Streamed
from xvfl.streamed.tables import StreamedTables, open_tables, wanted

__all__ = [
    "CACHE",
    "HELD_OUT",
    "Streamed",
    "StreamedTables",
    "cached",
    "clear",
    "keep_held_out",
    "open_tables",
    "prepare_streamed",
    "streamed_parts",
    "wanted",
]
