"""Tables larger than memory: prepared once, piece by piece, into files that training reads."""

from xvfl.dataset.on_disk.cache import CACHE, cached, clear, keep_held_out
from xvfl.dataset.on_disk.held_out import held_out_pieces
from xvfl.dataset.on_disk.on_disk_dataset import OnDiskDataset
from xvfl.dataset.on_disk.parquet_tables import ParquetTables, open_tables, wanted
from xvfl.dataset.on_disk.placement import HELD_OUT
from xvfl.dataset.on_disk.prepare_on_disk import prepare_on_disk

__all__ = [
    "CACHE",
    "HELD_OUT",
    "OnDiskDataset",
    "ParquetTables",
    "cached",
    "clear",
    "held_out_pieces",
    "keep_held_out",
    "open_tables",
    "prepare_on_disk",
    "wanted",
]
