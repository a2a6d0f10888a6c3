"""From tables to predictions on shares: what parties, coordinator and nodes exchange as files."""

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from threading import Event
from typing import Any

import numpy as np
import pytest

from tests.processes import free_port
from tests.secret.three_nodes import NAMES, PROGRAM, needs_spu
from tests.upload.file_federation import FileFederation, tls
from tests.upload.local_federation import PARTIES
from xvfl.errors import ConfigError, RunError
from xvfl.model.run_dir import RunDir
from xvfl.service.config import CoordinatorConfig, PartyProcessConfig
from xvfl.service.coordinator_service import CoordinatorService
from xvfl.service.party import open_party
from xvfl.service.party_inputs import PartyInputs
from xvfl.service.secret_config import NodeConfig, SecretOptions, SecretTraining
from xvfl.service.secret_shares.label_holder import LabelHolder
from xvfl.service.secret_shares.node import SecretNode
from xvfl.service.secret_shares.nodes import write_node
from xvfl.service.secret_shares.share_upload import share_upload
from xvfl.service.uploads.file_exchange import export_held_out, export_upload, import_upload
from xvfl.service.uploads.upload_party import UploadPartyService
from xvfl.wire import codec
from xvfl.wire.messages import AskChunk, AskUpload, ErrorReply

N_ROWS = 240
TRAINING = SecretTraining(epochs=8, batch_rows=32)


class SecretFederation(FileFederation):
    """A matched federation with three nodes whose files all sides have."""

    def __init__(self, folder: Path) -> None:
        self.options: SecretOptions | None = None
        super().__init__(folder)
        addresses = [f"localhost:{free_port()}" for _ in NAMES]
        files = tuple(str(folder / f"{name}.node") for name in NAMES)
        self.options = SecretOptions(nodes=files, hidden=8, program=str(PROGRAM))
        self.node_configs = []
        for name, address, file in zip(NAMES, addresses, files, strict=True):
            self.authority.issue(name, ["localhost"])
            own, state = tls(self.certs, name), folder / f"node {name}"
            write_node(RunDir(state).create(), own, address, Path(file))
            config = NodeConfig(
                address, "coordinator", PARTIES, own, self.options, state_dir=str(state)
            )
            self.node_configs.append(replace(config, revocation_list=str(self.certs / "ca.crl")))

    def config(self, **options: Any) -> CoordinatorConfig:
        plain = super().config(**options)
        if self.options is None:
            return plain
        return replace(plain, secret="spu", secret_options=self.options, secret_training=TRAINING)

    def party(self, name: str) -> PartyProcessConfig:
        plain = super().party(name)
        if self.options is None:
            return plain
        return replace(plain, secret="spu", secret_options=self.options)

    def held_out(self, name: str) -> Path:
        path = self.folder / f"{name}.heldout"
        export_held_out(self.service(), name, path)
        return path

    def share(self, name: str, out: str = "shares") -> list[Path]:
        """Write the shares of a party."""
        service = self.start_party(name)
        found = share_upload(service, self.held_out(name), self.folder / out, Event())
        service.close()
        assert found is not None
        return found[1]

    def nodes(self) -> list[SecretNode]:
        return [SecretNode(config) for config in self.node_configs]


@pytest.fixture
def federation(tmp_path: Path) -> Iterator[SecretFederation]:
    made = SecretFederation(tmp_path)
    yield made
    made.close()


@needs_spu
@pytest.mark.slow
def test_from_tables_to_predictions(federation: SecretFederation, tmp_path: Path) -> None:
    holder = LabelHolder(federation.service())
    files = [federation.share(name) for name in PARTIES]
    files += [holder.share_labels(tmp_path / "shares")]
    files += [holder.ask(holder.rows_of("test"), tmp_path / "requests")]
    nodes = federation.nodes()
    assert all(set(node.missing) == {"coordinator", *PARTIES} for node in nodes)
    for own in files:
        for node, path in zip(nodes, own, strict=True):
            node.open(path)
    assert not any(node.missing for node in nodes)
    with ThreadPoolExecutor(3) as pool:
        answers = [path for (path,) in pool.map(lambda n: n.run(tmp_path / "answers"), nodes)]
    predicted = holder.read_answers(answers)
    assert len(predicted.frame) == len(holder.rows_of("test"))
    assert np.allclose(predicted.frame.to_numpy().sum(1), 1) and predicted.scores["auroc"] > 0.6
    # Only the asker can read the answers: their key is the coordinator's, and nodes keep none.
    for config in federation.node_configs:
        kept = [each.name for each in Path(config.state_dir).rglob("*") if each.is_file()]
        assert not any("answer" in each or each.startswith("rows") for each in kept)
    with pytest.raises(RunError, match="file of each node"):
        holder.read_answers([answers[0], answers[0], answers[1]])


@needs_spu
def test_a_node_opens_only_what_is_for_it(federation: SecretFederation, tmp_path: Path) -> None:
    files = federation.share("bank")
    first, second, _ = federation.nodes()
    assert first.open(files[0]) == "upload of bank"
    with pytest.raises(RunError, match="another receiver"):
        second.open(files[0])
    changed = bytearray(files[0].read_bytes())
    changed[-1] ^= 1
    (tmp_path / "changed").write_bytes(changed)
    with pytest.raises(RunError, match="was changed"):
        first.open(tmp_path / "changed")
    small = SecretNode(replace(federation.node_configs[0], max_bytes=1000))
    with pytest.raises(RunError, match="at most 1000 bytes"):
        small.open(files[0])
    stranger = SecretNode(replace(federation.node_configs[0], parties=("shop",)))
    with pytest.raises(RunError, match="'bank' may not send"):
        stranger.open(files[0])


@needs_spu
def test_shares_for_other_nodes_are_rejected(federation: SecretFederation) -> None:
    config = replace(federation.node_configs[2], address="localhost:1")
    state = RunDir(config.state_dir)
    write_node(state, config.tls, config.address, federation.folder / "gamma.node")
    files = federation.share("bank", "others")
    federation.node_configs[2] = config
    assert federation.options is not None
    node = federation.nodes()[2]
    assert node.open(files[2]) == "upload of bank"
    federation.options = replace(federation.options, hidden=16)
    files = federation.share("bank", "again")
    with pytest.raises(RunError, match="names other nodes"):
        node.open(files[2])


def test_a_party_with_secret_refuses_to_send_plain_embeddings(
    federation: SecretFederation,
) -> None:
    with pytest.raises(ConfigError, match="plain embeddings"):
        open_party(
            PartyInputs(
                "bank",
                federation.party("bank"),
                federation.tables["bank"],
                RunDir(federation.folder / "bank"),
            ),
            federation.log.append,
        )
    service = federation.start_party("bank")
    try:
        with pytest.raises(ConfigError, match="plain embeddings"):
            export_upload(service, federation.held_out("bank"), federation.folder / "x", Event())
        for message in (AskUpload(1), AskChunk(2, 1, 0)):
            reply = codec.decode(service.endpoint.handle(codec.encode(message)))
            assert isinstance(reply, ErrorReply)
    finally:
        service.close()


def test_a_coordinator_with_secret_trains_and_imports_nothing(
    federation: SecretFederation,
) -> None:
    service: CoordinatorService = federation.service()
    with pytest.raises(ConfigError, match="`xvfl coordinator` works on plain"):
        service.run(Event())
    with pytest.raises(ConfigError, match="`xvfl upload import` works on plain"):
        import_upload(service, federation.folder / "any")


@pytest.mark.parametrize(
    ("options", "reason"),
    [
        ({"protocol": "semi2k"}, "one of the nodes deals the correlated randomness"),
        ({"protocol": "cheetah"}, "it has two nodes"),
        ({"protocol": "other"}, "unknown protocol 'other'"),
        ({"nodes": ("a", "b")}, "expected the files of 3 nodes"),
        ({"nodes": ("a", "b", "b")}, "expected the files of 3 nodes"),
        ({"hidden": 0}, "expected 1 to 1024"),
    ],
)
def test_options_are_refused_with_the_reason(options: dict[str, Any], reason: str) -> None:
    with pytest.raises(ConfigError, match=reason):
        SecretOptions(**options)


def test_secret_and_its_nodes_belong_together(federation: SecretFederation) -> None:
    with pytest.raises(ConfigError, match="or neither"):
        replace(federation.config(), secret_options=SecretOptions())
    with pytest.raises(ConfigError, match="or neither"):
        replace(federation.party("bank"), secret=None)
    with pytest.raises(ConfigError, match="no `prediction`"):
        replace(federation.config(), release_to=("bank",))
    with pytest.raises(ConfigError, match="no interactive training"):
        replace(federation.party("bank"), training="interactive")
    assert isinstance(federation.services["bank"], UploadPartyService)
