"""A trained model: predict in every mode, complete tables, save, load."""

from collections.abc import Collection, Mapping, Sequence
from dataclasses import asdict, replace
from typing import Any, cast

import numpy as np
import pandas as pd
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from xvfl.config import (
    COORDINATOR,
    NO_PROTECTION,
    LossConfig,
    NetConfig,
    PrivacyConfig,
    build,
    build_saved,
)
from xvfl.data.encoded import Encoded
from xvfl.data.encoder import TableEncoder, encoder_from_dict
from xvfl.data.images import ImageEncoder, Images
from xvfl.data.sources import Encoder, Source, encode
from xvfl.dataset.in_memory import rows_of_ids, to_party_table
from xvfl.errors import InputError, ModeError, RunError, unknown, warn
from xvfl.federation.fused import FusedFederation
from xvfl.federation.party_worker import PartyWorker
from xvfl.federation.privacy_accounting import PrivacyStatement, state_privacy
from xvfl.federation.upload.encoder_net import build_encoders
from xvfl.federation.upload.private_worker import PrivateWorker
from xvfl.methods import MODES, Method, Mode, require_mode
from xvfl.methods.base import mode_key
from xvfl.methods.build import build_method, build_parties, shares_inputs
from xvfl.methods.members import member_seeds
from xvfl.methods.pooling import decision_weights, load_decision_weights
from xvfl.model.cell_filler import CellFiller, FitCells
from xvfl.model.complete_rows import complete_rows
from xvfl.model.completion import fill_gaps, fill_images
from xvfl.model.custom_nets import CustomNets, check_custom_nets
from xvfl.model.filled_cells import Completion, check_details, describe_filled_cells
from xvfl.model.prediction import (
    ModelInfo,
    Prediction,
    PredictRequest,
    build_prediction,
    completing_modes,
    row_ids,
    used_tables,
    without_assistance,
)
from xvfl.model.run_dir import CELLS, FORMAT, MANIFEST, MODEL, RunDir
from xvfl.options import resolve_saved
from xvfl.primitives.layout import Layout, any_image
from xvfl.primitives.rows import Rows, Table
from xvfl.primitives.task import Task, task_from_dict
from xvfl.training.calibration import Temperatures
from xvfl.training.optimizer import strip_prefix
from xvfl.training.predict import logits
from xvfl.training.threads import limit_threads
from xvfl.version import VERSION


class Model:
    """Encoders and nets of all parties, the method with its heads, and calibration."""

    def __init__(
        self,
        encoders: Mapping[str, Encoder],
        full_threshold: Mapping[str, float],
        task: Task,
        prior: Sequence[float],
        net: NetConfig,
        loss: LossConfig,
        random_state: int,
        custom_nets: CustomNets | None = None,
        privacy: PrivacyConfig = NO_PROTECTION,
        head_net: NetConfig | None = None,
        shared_inputs: bool = True,
    ) -> None:
        """Build untrained nets for these parties; options are resolved.

        `head_net` has the sizes of heads on uploads; `net` then has those of the encoders.
        `shared_inputs` is that of `build_parties`.
        """
        custom_nets = custom_nets or CustomNets()
        self.encoders = dict(encoders)
        self.full_threshold = dict(full_threshold)
        self.task = task
        self.prior = list(prior)
        self.net, self.loss, self.random_state = net, loss, random_state
        self.head_net = head_net
        self.privacy = privacy
        self.differential_privacy = state_privacy(privacy)
        self.adds_noise = True
        """Whether differential privacy adds noise; a party that predicts alone needs none."""
        self.has_custom_nets = custom_nets.any()
        self.temperatures: Temperatures = {}
        self.class_factors: list[float] | None = None
        """Factors of the probabilities that decide the predicted class; None: the largest one."""
        self._cells: CellFiller | FitCells | None = None
        layouts, seeds = self.layouts, [random_state]
        own = custom_nets.bottoms, custom_nets.completers
        with torch.random.fork_rng(devices=[]):
            if head_net is None:
                self.parties = build_parties(
                    layouts, net, loss, seeds, *own, privacy, shared_inputs
                )
            else:
                self.parties = build_encoders(layouts, net, privacy, seeds, *own)
            self.method: Method = build_method(
                len(layouts),
                task,
                any_image(layouts),
                head_net or net,
                loss,
                seeds,
                privacy,
                [net.embedding_dim] * len(layouts) if head_net else None,
                custom_nets.head,
            )
        check_custom_nets(self.parties, self.method, task.n_outputs, custom_nets)

    @property
    def classes(self) -> list[Any]:
        """The labels of classes, in the order of the outputs; empty if it predicts numbers."""
        return self.task.classes

    @property
    def cells(self) -> CellFiller | None:
        """Fills the cells of tables; fitted apart from the nets, when it is used or stored."""
        if callable(self._cells):
            try:
                self._cells = self._cells()
            except (np.linalg.LinAlgError, MemoryError, ValueError) as error:
                self._cells = None
                warn(f"this model fills no cells of tables, their model cannot be fitted: {error}")
        return self._cells

    @cells.setter
    def cells(self, value: CellFiller | FitCells | None) -> None:
        self._cells = value

    def __getstate__(self) -> dict[str, Any]:
        """Return what is pickled: no training rows."""
        return {**self.__dict__, "_cells": self.cells}

    @property
    def layouts(self) -> dict[str, Layout]:
        """Layout of each party's encoded features."""
        return {name: encoder.layout for name, encoder in self.encoders.items()}

    @property
    def embedding_dim(self) -> int:
        """Size d of every embedding."""
        net = next(iter(self.parties.values()))
        shape = net.layout.image or (net.layout.encoded,)
        with torch.no_grad():
            observed = torch.ones(self.net.members, net.layout.raw, dtype=torch.bool)
            return net.embed(torch.zeros(self.net.members, *shape), observed).shape[1]

    @property
    def completes(self) -> bool:
        """Whether it completes features from the embeddings of other parties."""
        return self.loss.cross_completion and "assisted" in self.method.modes

    @property
    def modules(self) -> dict[str, nn.Module]:
        """Nets by party, and the heads under the coordinator's name."""
        return {**self.parties, COORDINATOR: self.method.heads}

    def predict(
        self,
        sources: Mapping[str, Source],
        mode: Mode | None = None,
        party: str | None = None,
        ids: Sequence[str] | None = None,
        strict: bool = True,
        without_rows: Collection[str] = (),
    ) -> Prediction:
        """Predict the rows of the given tables, or the rows with the given ids.

        Unless `strict`, absent columns count as missing; rows have a note on them, and on the
        parties `without_rows`.
        """
        request = self.resolve_request(sources, mode, party)
        sources = used_tables(request, sources)
        given = [name for name in self.encoders if name in sources]
        encoded = {name: encode(self.encoders[name], sources[name], strict) for name in given}
        chosen = list(ids) if ids is not None else row_ids(sources, given, request.party)
        rows, federation = self.rows_of(encoded, chosen)
        if request.party is not None:
            request = replace(request, index=given.index(request.party))
        with (
            limit_threads(any_image(self.layouts), torch.device("cpu")),
            torch.random.fork_rng(devices=[]),
        ):
            method = self.method.select_parties([list(self.encoders).index(name) for name in given])
            out = logits(method, federation, rows, request.mode, request.index)
        values = self.task.values(out.double() / self.temperature(request, rows))
        nothing = [name for name in given if name in without_rows]
        info = self.info(request)
        return build_prediction(request, rows, encoded, chosen, values, info, nothing)

    def resolve_request(
        self, parties: Collection[str], mode: Mode | None, party: str | None
    ) -> PredictRequest:
        """Choose the defaults of mode and party, and check them against the given tables."""
        self.check_parties(parties)
        if mode is not None and mode not in (*MODES, "peers"):
            raise ModeError(unknown("mode", str(mode), (*MODES, "peers")))
        if party is not None and party not in self.encoders:
            raise ModeError(unknown("party", party, self.encoders))
        if mode is None:
            complete = party is None and set(parties) == set(self.encoders)
            mode = "collaborative" if complete else "local"
        require_mode(self.method, mode, self.loss.method)
        if mode == "collaborative":
            return PredictRequest(mode, None)
        if party is None:
            if len(parties) > 1:
                first = next(iter(parties))
                raise ModeError(
                    f"mode {mode!r}: choose the predicting party, one of {', '.join(parties)}: "
                    f"party={first!r}, or give its table alone; mode 'collaborative' needs no party"
                )
            party = next(iter(parties))
        if party not in parties:
            raise ModeError(f"mode {mode!r} of {party!r}: expected its table, got {list(parties)}")
        return PredictRequest(mode, party)

    def complete(
        self, sources: Mapping[str, Source], party: str, ids: Sequence[str] | None = None
    ) -> Source:
        """Fill a party's missing values in its own columns and units; observed values stay.

        A cell of a table is filled from all observed cells of the row, the party's own and those
        of the other given tables. Images are completed by the nets: from the parties that observe
        the row in full, otherwise from their own pixels or from what other parties observe.
        """
        return self.complete_parties(sources, [party], ids)[party]

    def complete_parties(
        self, sources: Mapping[str, Source], parties: Sequence[str], ids: Sequence[str] | None
    ) -> dict[str, Source]:
        """Fill the tables of several parties as `complete`; each table is encoded once."""
        encoded, result = self._encode_for_completion(sources, parties), {}
        for name in parties:
            chosen = list(ids) if ids is not None else encoded[name].ids
            encoder, source = self.encoders[name], sources[name]
            if isinstance(encoder, TableEncoder):
                assert self.cells is not None
                completed = self.cells.complete(self.encoders, encoded, name, chosen).decode()
                table = cast(pd.DataFrame, source)
                result[name] = cast(Source, fill_gaps(encoder, completed, table, chosen))
            else:
                values = self._complete_pixels(encoded, name, chosen)
                result[name] = fill_images(encoder, cast(Images, source), chosen, values)
        return result

    def complete_details(
        self,
        sources: Mapping[str, Source],
        party: str,
        ids: Sequence[str] | None = None,
        level: float = 0.8,
        n_draws: int = 0,
        rng: np.random.Generator | None = None,
    ) -> Completion:
        """Fill a table as `complete`; describe each filled cell, and draw from its distribution."""
        encoded = self._encode_for_completion(sources, [party])
        assert self.cells is not None
        chosen = list(ids) if ids is not None else encoded[party].ids
        rows = self.cells.complete(self.encoders, encoded, party, chosen)
        source = cast(pd.DataFrame, sources[party])
        rng = rng or np.random.default_rng(self.random_state)
        return describe_filled_cells(rows, source, chosen, level, n_draws, rng)

    def check_details(self, party: str, level: float, n_draws: int) -> None:
        """Check the parameters of `complete_details`."""
        if isinstance(self.encoders.get(party), ImageEncoder):
            raise InputError(
                f"complete: {party!r} has images; intervals, probabilities and draws need a table: "
                "use XVFLClassifier.complete"
            )
        check_details(level, n_draws)

    def _require_completion(self, party: str) -> None:
        """Reject a party whose missing values this model cannot fill."""
        if isinstance(self.encoders[party], ImageEncoder):
            if not self.completes:
                raise ModeError(
                    f"method {self.loss.method!r} was trained without cross completion; to "
                    "complete images, train with 'xvfl+' or 'xvfl', cross_completion, and "
                    "label_protection 'off' or 'noise'"
                )
        elif self.cells is None:
            raise ModeError(
                "this model cannot fill cells: it was trained before version 0.4.0, or with "
                "differential privacy; train it again, without `epsilon`"
            )

    def _encode_for_completion(
        self, sources: Mapping[str, Source], parties: Sequence[str]
    ) -> dict[str, Encoded]:
        """Check that the rows of `parties` can be completed; encode all given tables."""
        self.check_parties(sources)
        for name in parties:
            if name not in sources:
                raise ModeError(f"complete: expected a table of {name!r}, got {list(sources)}")
            self._require_completion(name)
        given = [name for name in self.encoders if name in sources]
        return {name: encode(self.encoders[name], sources[name]) for name in given}

    def _complete_pixels(
        self, encoded: Mapping[str, Encoded], party: str, ids: Sequence[str]
    ) -> NDArray[np.float64]:
        """Complete rows of a party with images. (n, …)"""
        rows, federation = self.rows_of(encoded, ids)
        with torch.random.fork_rng(devices=[]):
            completed = complete_rows(
                federation, rows, list(encoded).index(party), self.net.members
            )
        return completed.double().cpu().numpy()

    def federation(
        self,
        tables: Mapping[str, Table],
        reconstruction_weight: float = 0.0,
        image_shift: float = 0.0,
        unmasked: Mapping[str, float] | None = None,
    ) -> FusedFederation:
        """Combine the parties' nets with their tables, on the device of the heads.

        `unmasked` is each party's share of masked copies that keep all features.
        """
        device = next(self.method.heads.parameters()).device
        workers = [
            self.worker(
                name,
                table.to(device),
                reconstruction_weight,
                image_shift,
                (unmasked or {}).get(name, 0.0),
            )
            for name, table in tables.items()
        ]
        return FusedFederation(workers, self.head_width)

    @property
    def head_width(self) -> int:
        """Width of the embeddings that heads on uploads take: that of the widest; else 0."""
        return self.head_net.embedding_dim if self.head_net else 0

    def worker(
        self,
        name: str,
        table: Table,
        reconstruction_weight: float = 0.0,
        image_shift: float = 0.0,
        unmasked: float = 0.0,
    ) -> PartyWorker:
        """Combine a party's net with a table on its device."""
        net, seeds = self.parties[name], member_seeds([self.random_state], self.net.members)
        if self.differential_privacy is not None:
            noise = self.differential_privacy.noise_std if self.adds_noise else 0.0
            return PrivateWorker(name, net, table, seeds, noise)
        return PartyWorker(name, net, table, seeds, reconstruction_weight, image_shift, unmasked)

    def save(self, folder: RunDir, extra: Mapping[str, Any] | None = None) -> None:
        """Write the model to a folder; the manifest also gets the `extra` entries."""
        folder.create()
        tensors = {
            f"{holder}/{name}": value
            for holder, module in self.modules.items()
            for name, value in module.state_dict().items()
        }
        with folder.transaction():
            for name, encoder in self.encoders.items():
                folder.write_json(f"encoders/{name}.json", encoder.to_dict())
            folder.save_tensors(MODEL, tensors, {})
            if self.cells is not None:
                folder.save_tensors(CELLS, self.cells.to_tensors(), {})
            folder.write_json(MANIFEST, {**self.manifest(), **(extra or {})})

    def manifest(self) -> dict[str, Any]:
        """Return the contents of the manifest."""
        return {
            "format": FORMAT,
            "version": VERSION,
            "parties": list(self.encoders),
            **self.task.to_dict(),
            "prior": self.prior,
            "full_threshold": self.full_threshold,
            "temperatures": self.temperatures,
            "class_factors": self.class_factors,
            "decision_weights": decision_weights(self.method),
            "net": asdict(self.net),
            "head_net": self.head_net and asdict(self.head_net),
            "loss": asdict(self.loss),
            "privacy": asdict(self.privacy),
            "differential_privacy": self.differential_privacy and vars(self.differential_privacy),
            "random_state": self.random_state,
            "custom_nets": self.has_custom_nets,
            "cells": list(self.cells.parties) if self.cells is not None else [],
        }

    @classmethod
    def load(cls, folder: RunDir, custom_nets: CustomNets | None = None) -> "Model":
        """Read a model from a folder."""
        manifest = folder.manifest()
        if manifest.get("custom_nets") and not (custom_nets and custom_nets.any()):
            raise RunError(
                f"{folder.path}: trained with custom nets; pass the same bottoms=, completers= or "
                "head= to load"
            )
        try:
            encoders = {
                name: encoder_from_dict(folder.read_json(f"encoders/{name}.json"))
                for name in manifest["parties"]
            }
            net = build_saved(NetConfig, manifest["net"], MANIFEST)
            loss = build_saved(LossConfig, manifest["loss"], MANIFEST)
            privacy = build(PrivacyConfig, manifest["privacy"], MANIFEST)
            image = any(isinstance(each, ImageEncoder) for each in encoders.values())
            net, loss = resolve_saved(net, loss, privacy, image=image)
            heads = manifest.get("head_net")
            tensors, _ = folder.load_tensors(MODEL)
            stored_nets = (strip_prefix(tensors, f"{name}/") for name in encoders)
            model = cls(
                encoders,
                manifest["full_threshold"],
                task_from_dict(manifest),
                manifest["prior"],
                net,
                loss,
                manifest["random_state"],
                custom_nets,
                privacy,
                build_saved(NetConfig, heads, MANIFEST) if heads else None,
                all(map(shares_inputs, stored_nets)),
            )
            model.temperatures = manifest["temperatures"]
            model.class_factors = manifest.get("class_factors")
            load_decision_weights(model.method, manifest["decision_weights"])
            model.adds_noise = "bundle" not in manifest
            if statement := manifest.get("differential_privacy"):
                model.differential_privacy = PrivacyStatement(**statement)
            # Runs before version 0.4 have none.
            if parties := manifest.get("cells"):
                model.cells = CellFiller.from_tensors(folder.load_tensors(CELLS)[0], parties)
            for holder, module in model.modules.items():
                module.load_state_dict(strip_prefix(tensors, f"{holder}/"))
        except (KeyError, TypeError) as error:
            raise RunError(f"{folder.path}: damaged ({error!r}); train it again") from error
        except RuntimeError as error:
            if isinstance(error, RunError):
                raise
            raise RunError(f"{folder.path}: its weights do not fit its nets ({error})") from error
        return model

    def info(self, request: PredictRequest) -> ModelInfo:
        """Return the properties of the model that a prediction reports."""
        partial_peers = self.loss.self_completion_weight > 0
        modes = completing_modes(self.method, request.party or "")
        return ModelInfo(
            self.task,
            self.prior,
            modes,
            self.completes,
            partial_peers,
            self.class_factors,
        )

    def check_parties(self, names: Collection[str]) -> None:
        """Reject no table at all, and tables of unknown parties."""
        if not names:
            raise InputError(f"expected at least one party's table; parties: {list(self.encoders)}")
        for name in names:
            if name not in self.encoders:
                raise InputError(unknown("party", name, self.encoders))

    def rows_of(
        self, encoded: Mapping[str, Encoded], ids: Sequence[str]
    ) -> tuple[Rows, FusedFederation]:
        """Look up ids in encoded tables; return the rows and the federation of their parties."""
        device = next(self.method.heads.parameters()).device
        tables = {n: to_party_table(self.encoders[n].layout, each) for n, each in encoded.items()}
        rows = rows_of_ids(ids, encoded, tables, self.full_threshold)
        if self.differential_privacy is not None:
            rows = rows.hide_missing()
        return rows.to(device), self.federation(tables)

    def temperature(self, request: PredictRequest, rows: Rows) -> Tensor:
        """Return each row's temperature; local where no peer assists. (n, 1)"""
        requested = self.temperatures.get(mode_key(request.mode, request.party or ""), 1.0)
        local = self.temperatures.get(mode_key("local", request.party or ""), 1.0)
        temperatures = torch.full((len(rows), 1), requested, dtype=torch.float64)
        alone = (
            without_assistance(request, rows, self.loss.self_completion_weight > 0)
            .cpu()
            .unsqueeze(1)
        )
        return torch.where(alone, local, temperatures)
