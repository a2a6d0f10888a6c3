"""A node: opens its shares, runs `xvfl-secret`, and seals its share of each answer."""

import json
import re
import shutil
import tomllib
from functools import partial
from pathlib import Path

from xvfl.certs import PeerVerifier, peer_name
from xvfl.certs.sealed_file import KEY_BYTES
from xvfl.certs.signed_document import SignedDocument
from xvfl.config import build, read_config
from xvfl.errors import ConfigError, RunError, WireError, XVFLError, unknown
from xvfl.model.run_dir import RunDir
from xvfl.service.config import resolve_paths
from xvfl.service.secret_config import NodeConfig
from xvfl.service.secret_shares.nodes import Agreement, public_key, read_agreement
from xvfl.service.secret_shares.sealed_arrays import read_arrays, write_arrays
from xvfl.service.secret_shares.shares import ANSWER, REQUEST, TASK, UPLOAD, run_program
from xvfl.service.uploads.file_exchange import KEY
from xvfl.system.files import set_private_umask

REQUEST_NAME = re.compile(r"[0-9a-f]{16}")


def load_node_config(path: Path) -> NodeConfig:
    """Read the configuration of a node."""
    try:
        data = tomllib.loads(read_config(path))
    except tomllib.TOMLDecodeError as error:
        raise ConfigError(f"{path}: not valid TOML: {error}") from error
    config: NodeConfig = resolve_paths(build(NodeConfig, data, str(path)), path.resolve().parent)
    return config


class SecretNode:
    """A node's state folder: `inputs`, `requests`, `training` and `answers` of `xvfl-secret`."""

    def __init__(self, config: NodeConfig) -> None:
        set_private_umask()
        self._config, self._folder = config, RunDir(config.state_dir).create()
        self._peers = PeerVerifier(config.tls.ca_certificate, config.revocation_list)
        self.agreement: Agreement = read_agreement(config.secret_options, self._peers)
        name = peer_name(config.tls.read()[1])
        names = [each.name for each in self.agreement.nodes]
        if name not in names:
            raise ConfigError(f"secret_options.nodes: {unknown('node', name, names)}")
        self._rank = names.index(name)
        own = self.agreement.nodes[self._rank]
        if (own.key, own.address) != (public_key(self._folder), config.address):
            raise ConfigError(
                f"secret_options.nodes: the file of {name} has another key or address; write it "
                "again with `xvfl secret key`, and give it to all sides"
            )

    def open(self, path: Path) -> str:
        """Verify, decrypt and store a file of shares or a request; return what it was."""
        try:
            document = read_arrays(
                path,
                self._folder / KEY,
                self._peers.check,
                partial(self._place, path),
                self._config.max_bytes,
            )
            self._describe(self._place(path, document), document)
        except (OSError, ValueError, XVFLError) as error:
            raise RunError(f"{path}: the file is rejected: {error}") from error
        return f"{document.get('what', str)} of {document.owner}"

    def _describe(self, folder: Path, document: SignedDocument) -> None:
        """Write what the header says beside the arrays."""
        what = document.get("what", str)
        if what == TASK:
            (folder / "task.json").write_text(document.get("task", str), encoding="utf-8")
        elif what == UPLOAD:
            about = {key: document.get(key, str) for key in ("session", "version")}
            about["digest"] = document.get("split", str)
            (folder / "about.json").write_text(json.dumps(about), encoding="utf-8")
        else:
            reply = {"key": document.get("key", str)}
            folder.with_suffix(".json").write_text(json.dumps(reply), encoding="utf-8")
            (folder / "rows.npy").rename(folder.with_suffix(".npy"))
            shutil.rmtree(folder)

    def _place(self, path: Path, document: SignedDocument) -> Path:
        """Return where the arrays of a file belong; raise if it is not accepted."""
        node, state = self.agreement.nodes[self._rank].name, Path(self._config.state_dir)
        if document.get("agreement", str) != self.agreement.digest:
            raise WireError(
                "its sender names other nodes, or another protocol; compare the agreement that "
                "each side prints"
            )
        if document.get("node", str) != node:
            raise WireError(f"it is for the node {document.get('node', str)!r}")
        what, owner = document.get("what", str), str(document.owner)
        if what == UPLOAD and owner in self._config.parties:
            return state / "inputs" / f"party-{owner}"
        if what in (TASK, REQUEST) and owner == self._config.coordinator:
            if what == TASK:
                return state / "inputs" / "task"
            name, key = str(document.get("name", str)), bytes.fromhex(document.get("key", str))
            if REQUEST_NAME.fullmatch(name) and len(key) == KEY_BYTES:
                return state / "requests" / name
        raise WireError(f"{owner!r} may not send this to a node ({path.name})")

    @property
    def missing(self) -> list[str]:
        """Return whose shares are not stored yet."""
        inputs = self._folder / "inputs"
        missing = [n for n in self._config.parties if not (inputs / f"party-{n}").is_dir()]
        task = (inputs / "task" / "task.json").is_file()
        return missing if task else [self._config.coordinator, *missing]

    def run(self, out: Path) -> list[Path]:
        """Train unless that is done, and answer the requests; return the files of the answers."""
        config, nodes = self._config, self.agreement.nodes
        settings = {
            "rank": self._rank,
            "names": [each.name for each in nodes],
            "addresses": [each.address for each in nodes],
            "pins": [each.pin for each in nodes],
            "listen": config.listen or config.address,
            "ca_certificate": config.tls.ca_certificate,
            "certificate": config.tls.certificate,
            "private_key": config.tls.private_key,
            "state_dir": str(self._folder.path),
            "wait": config.wait,
            "timeout": config.timeout,
        }
        self._folder.write_json("node.json", settings)
        run_program(config.secret_options.program, "node", self._folder / "node.json", show=True)
        return [self._answer(path, out) for path in (self._folder / "requests").glob("*.npy")]

    def _answer(self, request: Path, out: Path) -> Path:
        """Seal this node's share of an answer to the asker; delete the request."""
        name, answers = request.stem, self._folder / "answers"
        reply = self._folder.read_json(f"requests/{name}.json")
        folder = answers / f"sealed-{name}"
        folder.mkdir(parents=True, exist_ok=True)
        (answers / f"{name}.npy").rename(folder / "answer.npy")
        node = self.agreement.nodes[self._rank].name
        content = {"what": ANSWER, "name": name, "folder": str(folder)}
        out.mkdir(parents=True, exist_ok=True)
        path = out / f"{name}.{ANSWER}.{node}"
        write_arrays(path, self._config.tls, bytes.fromhex(reply["key"]), content)
        shutil.rmtree(folder)
        request.unlink()
        request.with_suffix(".json").unlink()
        return path
