"""An enrolment kit: what its operator unpacks, and what is refused."""

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from tests.command_line import rejected_with, run_xvfl
from xvfl.certs import Authority, create_authority
from xvfl.certs.kit import MAX_BYTES, Kit, create_kit, read_kit, unpack_kit
from xvfl.errors import CertificateError
from xvfl.service.config import load_coordinator_config, load_party_config

ADDRESS = "fl.example.org:8443"


@pytest.fixture
def authority(tmp_path: Path) -> Authority:
    made = create_authority(tmp_path / "certs")
    made.issue("coordinator", ["fl.example.org"])
    return made


def test_a_federation_starts_from_four_commands(tmp_path: Path) -> None:
    """The authority's side, two parties, and the signatures."""
    made = ("certs", "init", tmp_path / "certs", "--coordinator", ADDRESS)
    said = run_xvfl(*made, "--party", "bank", "--party", "shop")
    assert said.code == 0, said.err
    main = load_coordinator_config(tmp_path / "coordinator.toml")
    assert main.parties == ("bank", "shop") and main.listen == "0.0.0.0:8443"
    assert main.signing_key is not None
    main.tls.read()
    for name in main.parties:
        kit = tmp_path / f"{name}.kit"
        assert read_kit(kit).fingerprint in said.out
        assert run_xvfl("certs", "unpack", kit, "--dir", tmp_path / name).code == 0
    requests = [tmp_path / name / f"{name}.csr" for name in main.parties]
    assert run_xvfl("certs", "sign", *requests, "--dir", tmp_path / "certs").code == 0
    for name in main.parties:
        config = load_party_config(tmp_path / name / f"{name}.toml")
        config.tls.read()
        assert config.coordinator == ADDRESS and Path(str(config.release_key)).is_file()
        for own, private in ((main.tls, main.signing_key), (config.tls, config.tls.private_key)):
            assert Path(own.ca_certificate).read_bytes() == (tmp_path / "certs/ca.crt").read_bytes()
            assert not Path(private).stat().st_mode & 0o077


def test_options_that_do_not_belong_together_are_refused(tmp_path: Path) -> None:
    folder = tmp_path / "certs"
    for options in (("--coordinator", ADDRESS), ("--party", "bank")):
        line = rejected_with("certs", "init", folder, *options)
        assert "expected --coordinator and at least one --party" in line
    assert not folder.exists()
    for name in ("bank", "shop"):
        assert run_xvfl("certs", "request", name, "--dir", tmp_path).code == 0
    given = (tmp_path / "bank.csr", tmp_path / "shop.csr", "--fingerprint", "00ff")
    assert "expected one request" in rejected_with("certs", "sign", *given, "--dir", folder)


def test_a_party_is_enrolled_with_three_commands(authority: Authority, tmp_path: Path) -> None:
    certs, shop, file = authority.folder, tmp_path / "shop", tmp_path / "shop.kit"
    said = run_xvfl("certs", "kit", "shop", "--coordinator", ADDRESS, "--dir", certs, "--out", file)
    fingerprint = read_kit(file).fingerprint
    assert said.code == 0 and f"created {file}" in said.out and fingerprint in said.out
    assert b"PRIVATE" not in file.read_bytes()
    said = run_xvfl("certs", "unpack", file, "--dir", shop, "--fingerprint", fingerprint)
    names = ["ca.crl", "ca.crt", "coordinator.release.pub", "shop.csr", "shop.key", "shop.toml"]
    assert said.code == 0 and sorted(each.name for each in shop.iterdir()) == names
    for name in ("ca.crt", "ca.crl", "coordinator.release.pub"):
        assert (shop / name).read_bytes() == (certs / name).read_bytes()
        assert f"created {shop / name}" in said.out
    assert run_xvfl("certs", "sign", shop / "shop.csr", "--dir", certs).code == 0
    config = load_party_config(shop / "shop.toml")
    assert config.coordinator == ADDRESS
    assert all(map(Path.is_file, map(Path, (config.tls.certificate, config.tls.private_key))))
    assert "already exists" in rejected_with("certs", "unpack", file, "--dir", shop)


def test_another_fingerprint_is_refused(authority: Authority, tmp_path: Path) -> None:
    file, shop = tmp_path / "shop.kit", tmp_path / "shop"
    file.write_bytes(create_kit(authority.folder, "shop", "coordinator", ADDRESS).to_bytes())
    line = rejected_with("certs", "unpack", file, "--dir", shop, "--fingerprint", "00ff")
    assert "expected the fingerprint 00ff" in line and not shop.exists()


def changed(authority: Authority, fields: dict[str, Any]) -> bytes:
    kit = create_kit(authority.folder, "shop", "coordinator", ADDRESS)
    return json.dumps({**json.loads(kit.to_bytes()), **fields}).encode()


@pytest.mark.parametrize(
    ("fields", "words"),
    [
        ({"kind": "another"}, "of the kind"),
        ({"more": "x"}, "expected an enrolment kit"),
        ({"authority": 3}, "expected an enrolment kit"),
        ({"party": "../shop"}, "expected a name"),
        ({"party": "ca"}, "reserved"),
        ({"coordinator": "a/b"}, "expected a name"),
        ({"address": "fl.example.org"}, "expected HOST:PORT"),
        ({"address": 'x:1"\ntable = "sql:SELECT 1'}, "expected HOST:PORT"),
        ({"address": "x" * 400 + ":1"}, "expected HOST:PORT"),
        ({"release_key": "-----BEGIN PRIVATE KEY-----"}, "has a private key"),
        ({"revocation_list": "x" * MAX_BYTES}, f"at most {MAX_BYTES} bytes"),
    ],
)
def test_an_invalid_kit_is_rejected(
    authority: Authority, tmp_path: Path, fields: dict[str, Any], words: str
) -> None:
    (tmp_path / "shop.kit").write_bytes(changed(authority, fields))
    with pytest.raises(CertificateError, match=words):
        read_kit(tmp_path / "shop.kit")


@pytest.mark.parametrize("data", [b"", b"[]", b"{}", b"[" * 100_000, b"\xff", b"null"])
def test_what_is_no_kit_is_rejected(data: bytes, tmp_path: Path) -> None:
    (tmp_path / "shop.kit").write_bytes(data)
    with pytest.raises(CertificateError, match="expected an enrolment kit"):
        read_kit(tmp_path / "shop.kit")


def test_contents_that_do_not_belong_together_leave_no_file(
    authority: Authority, tmp_path: Path
) -> None:
    kit = create_kit(authority.folder, "shop", "coordinator", ADDRESS)
    stranger = create_authority(tmp_path / "stranger").folder
    wrong: list[tuple[Kit, str]] = [
        (replace(kit, authority=(stranger / "ca.crt").read_text()), "not signed by the authority"),
        (replace(kit, authority="no certificate"), "expected a certificate"),
        (replace(kit, release_key="no key"), "expected a public key"),
    ]
    for each, words in wrong:
        with pytest.raises(CertificateError, match=words):
            unpack_kit(each, tmp_path / "shop")
        assert not list((tmp_path / "shop").iterdir())


def test_a_private_key_is_never_packed(authority: Authority) -> None:
    folder = authority.folder
    secret = folder / "coordinator.release.key"
    with pytest.raises(CertificateError, match="expected a public key"):
        create_kit(folder, "shop", "coordinator", ADDRESS, secret)
    (folder / "ca.crt").write_bytes(
        (folder / "ca.crt").read_bytes() + (folder / "ca.key").read_bytes()
    )
    with pytest.raises(CertificateError, match="has a private key"):
        create_kit(folder, "shop", "coordinator", ADDRESS)
