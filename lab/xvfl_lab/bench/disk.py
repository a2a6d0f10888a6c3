"""Write the rows of a run to files, as out-of-core training reads them."""

import tempfile
from collections.abc import Iterator
from contextlib import ExitStack, closing, contextmanager
from pathlib import Path
from typing import cast

import numpy as np
import torch

from xvfl.dataset.on_disk.block_file import BlockFile, Bytes
from xvfl.dataset.on_disk.disk_rows import DiskRows, DiskTable, to_bytes
from xvfl.primitives.rows import PartyTable
from xvfl_lab.experiments.stacked_runs import StackedRuns

BLOCK = 16


@contextmanager
def on_disk(stack: StackedRuns, device: torch.device) -> Iterator[DiskRows]:
    """Let the parties of one run read their tables from files; yield its training rows."""
    rows = stack.rows("train").to(torch.device("cpu"))
    known, raw = [rows.y.int()], []
    with tempfile.TemporaryDirectory() as folder, ExitStack() as files:

        def write(name: str, content: Bytes) -> BlockFile:
            path = Path(folder) / name
            path.write_bytes(content.tobytes())
            return files.enter_context(closing(BlockFile(path, content.shape[1], BLOCK)))

        for worker in stack.federation.workers:
            table = cast(PartyTable, worker.table).to(torch.device("cpu"))
            parts = (table.values, table.codes, table.observed)
            file = write(f"table {worker.name}", to_bytes(*(part.numpy() for part in parts)))
            worker.table = DiskTable(table.layout, file, device)
            known.append(table.observed[: len(rows)].sum(1).int())
            raw.append(table.layout.raw)
        about = write("rows", torch.stack(known, 1).contiguous().numpy().view(np.uint8))
        full_threshold, weights = (1.0,) * len(raw), (1.0,) * (stack.task.classes + 1)
        yield DiskRows(about, 0, len(rows), 0, tuple(raw), full_threshold, weights, device)
