"""A party trains its encoder alone: on its own rows, without labels, messages or other parties."""

from collections.abc import Iterator, Sequence

import torch
from torch import Tensor

from xvfl.config import AUTO, EncoderConfig, TrainConfig
from xvfl.federation.fused import FusedFederation
from xvfl.federation.party_worker import PartyWorker
from xvfl.federation.upload.objectives import AugmentedImages, Contrastive, Reconstruction
from xvfl.federation.upload.views import compute_views
from xvfl.nets.party_net import PartyNet
from xvfl.nets.whitening import Whitening, choose_share
from xvfl.primitives.layout import Layout
from xvfl.primitives.random import secret_generator
from xvfl.primitives.rows import Rows, Table
from xvfl.training.loop import Record, Trainer

IMAGE_BATCH = 512
"""Default batch size of contrastive learning, which needs many negatives."""
WHITENED_ROWS = 20_000
"""Largest number of training rows that whitening is fitted to."""


def choose_objective(config: EncoderConfig, layout: Layout) -> str:
    """Return the configured objective; by default contrastive for images, else reconstruction."""
    if config.objective is not None:
        return config.objective
    return "contrastive" if layout.image is not None else "reconstruction"


class EncoderTraining:
    """The training of one party's encoder; it can be interrupted and resumed after any step.

    Parameters
    ----------
    name
        Name of the party.
    net
        The party's net on its device; its bottom is the encoder, its completer the decoder.
    table
        The party's encoded rows.
    handles
        Rows to learn from; with stacked runs, run by run.
    config
        The party's configuration of its encoder.
    seeds
        The party's secret; one for each stacked run.
    """

    def __init__(
        self,
        name: str,
        net: PartyNet,
        table: Table,
        handles: Tensor,
        config: EncoderConfig,
        seeds: Sequence[int],
    ) -> None:
        device = next(net.parameters()).device
        contrastive = choose_objective(config, net.layout) == "contrastive"
        method: Contrastive | Reconstruction
        if contrastive:
            worker: PartyWorker = AugmentedImages(name, net, table.to(device), seeds)
            with torch.no_grad():
                width = worker.embed(handles[:1].to(device), ["masked"], 0).shape[-1]
            method = Contrastive(width)
        else:
            worker = PartyWorker(name, net, table.to(device), seeds, reconstruction=1.0)
            method = Reconstruction()
        method.heads.to(device)
        self.worker = worker
        self._whitened = choose_share(config.whitening, contrastive, len(handles) // len(seeds))
        self._handles = handles.to(device)
        held = torch.ones(len(handles), 1, dtype=torch.bool)
        rows = Rows(
            handles.cpu().unsqueeze(1),
            held,
            held,
            torch.zeros(len(handles), dtype=torch.long),
            torch.ones(len(handles)),
            runs=len(seeds),
        ).to(device)
        train = TrainConfig(
            epochs=config.epochs,
            batch_size=config.batch_size or (IMAGE_BATCH if contrastive else AUTO),
            optimizer="adamw",
            learning_rate=config.learning_rate or (1e-3 if contrastive else 2e-3),
            # Without a warmup, contrastive learning fails for some seeds.
            schedule="warmup" if contrastive else "cosine",
            completion_interval=1,
            patience=0,
            precision=config.precision,
        )
        self.trainer = Trainer(
            FusedFederation([worker]),
            method,
            rows,
            train,
            seeds,
            cuda_graph=device.type == "cuda" and worker.row_wise,
        )

    def run(self) -> Iterator[Record]:
        """Train; yield a record after each step and epoch."""
        yield from self.trainer.run(lambda: float(self.trainer.progress.epoch))
        self.worker.net.eval()
        if self._whitened:
            self._whiten()

    def _whiten(self) -> None:
        """Fit the whitening of the embeddings to training rows."""
        worker = self.worker
        (layer,) = (each for each in worker.net.bottom.modules() if isinstance(each, Whitening))
        every = self._handles.view(len(worker.seeds), -1)
        rng = secret_generator(worker.seeds[0], worker.name, "whitening")
        some = torch.randperm(every.shape[1], generator=rng)[:WHITENED_ROWS].to(every.device)
        embeddings = compute_views(worker, every[:, some].flatten(), 0)
        for run, x in enumerate(embeddings.view(len(every), -1, embeddings.shape[-1])):
            layer.fit(run, x, self._whitened, rng)
