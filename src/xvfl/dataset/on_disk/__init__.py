"""Datasets larger than memory: prepared once, piece by piece, into files that training reads."""

from xvfl.dataset.on_disk.cache import CACHE, prepare_cached, remove_cache, save_held_out
from xvfl.dataset.on_disk.held_out import held_out_pieces, no_held_out_rows
from xvfl.dataset.on_disk.on_disk_dataset import OnDiskDataset
from xvfl.dataset.on_disk.parquet_tables import ParquetTables, open_tables, trains_from_disk
from xvfl.dataset.on_disk.placement import HELD_OUT
from xvfl.dataset.on_disk.prepare_on_disk import prepare_on_disk

__all__ = [
    "CACHE",
    "HELD_OUT",
    "OnDiskDataset",
    "ParquetTables",
    "held_out_pieces",
    "no_held_out_rows",
    "open_tables",
    "prepare_cached",
    "prepare_on_disk",
    "remove_cache",
    "save_held_out",
    "trains_from_disk",
]
