"""Organisations with authorities of their own: bundles, intermediates, and their lists."""

from pathlib import Path

import pytest

from tests.certs.issuers import Issuer, bundle
from xvfl.certs import PeerVerifier
from xvfl.certs.chain import MAX_CERTIFICATES, find_chain, parse_certificates
from xvfl.errors import CertificateError


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return tmp_path


def peers(folder: Path, *roots: Issuer, lists: bytes = b"") -> PeerVerifier:
    (folder / "ca.crt").write_bytes(bundle([each.certificate for each in roots]))
    (folder / "ca.crl").write_bytes(lists)
    return PeerVerifier(folder / "ca.crt", folder / "ca.crl" if lists else None)


def test_a_chain_leads_to_one_of_several_authorities(folder: Path) -> None:
    bank, shop = Issuer("bank root"), Issuer("shop root")
    inner = Issuer("shop services", Issuer("shop policy", shop))
    bank.write(folder, "bank")
    inner.write(folder, "shop")
    both = peers(folder, bank, shop)
    assert both.check((folder / "bank.crt").read_bytes()) == "bank"
    assert both.check((folder / "shop.crt").read_bytes()) == "shop"
    given = parse_certificates((folder / "shop.crt").read_bytes())
    # The order of the intermediate authorities does not matter.
    assert both.check(bundle([given[0], *reversed(given[1:])])) == "shop"
    with pytest.raises(CertificateError, match="'shop': .*append the certificates of intermediate"):
        both.check(bundle(given[:2]))
    with pytest.raises(CertificateError, match="not signed by the authority"):
        peers(folder, bank).check((folder / "shop.crt").read_bytes())


def test_who_is_no_authority_can_issue_nothing(folder: Path) -> None:
    root = Issuer("root")
    Issuer("bank", root, is_authority=False).write(folder, "shop")
    with pytest.raises(CertificateError, match="not signed by the authority"):
        peers(folder, root).check((folder / "shop.crt").read_bytes())


def test_a_path_length_is_respected(folder: Path) -> None:
    root = Issuer("root", path_length=1)
    allowed = Issuer("services", root)
    allowed.write(folder, "bank")
    Issuer("more services", allowed).write(folder, "shop")
    trusted = peers(folder, root)
    assert trusted.check((folder / "bank.crt").read_bytes()) == "bank"
    with pytest.raises(CertificateError, match="not signed by the authority"):
        trusted.check((folder / "shop.crt").read_bytes())


def test_an_authority_that_has_expired_is_not_trusted(folder: Path) -> None:
    root = Issuer("root")
    Issuer("services", root, days=-1).write(folder, "shop")
    with pytest.raises(CertificateError, match="authority 'services' is valid from"):
        peers(folder, root).check((folder / "shop.crt").read_bytes())


def test_lists_of_a_root_and_of_an_intermediate_authority(folder: Path) -> None:
    root = Issuer("root")
    inner, other = Issuer("services", root), Issuer("old services", root)
    revoked, kept = inner.write(folder, "bank"), inner.write(folder, "shop")
    other.write(folder, "clinic")
    lists = root.revocation_list(other.certificate) + inner.revocation_list(revoked)
    trusted = peers(folder, root, lists=lists)
    assert trusted.check((folder / "shop.crt").read_bytes()) == "shop"
    assert kept.serial_number != revoked.serial_number
    with pytest.raises(CertificateError, match="'bank': its certificate .* is revoked"):
        trusted.check((folder / "bank.crt").read_bytes())
    with pytest.raises(CertificateError, match="'clinic': the authority 'old services' is revoked"):
        trusted.check((folder / "clinic.crt").read_bytes())
    assert trusted.is_revoked((folder / "bank.crt").read_bytes())
    assert not trusted.is_revoked((folder / "shop.crt").read_bytes())


def test_a_forged_list_revokes_nothing_and_hides_nothing(folder: Path) -> None:
    root, forger = Issuer("root"), Issuer("services")
    inner = Issuer("services", root)
    signed = inner.write(folder, "bank")
    # It has the name of the intermediate authority, but not its key.
    forged = peers(folder, root, lists=root.revocation_list() + forger.revocation_list(signed))
    assert forged.check((folder / "bank.crt").read_bytes()) == "bank"
    with pytest.raises(CertificateError, match="not signed by the authority"):
        peers(folder, root, lists=root.revocation_list() + Issuer("root").revocation_list())
    with pytest.raises(CertificateError, match="not signed by the authority"):
        peers(folder, root, lists=inner.revocation_list())


def test_a_bundle_is_read_again_when_it_changes(folder: Path) -> None:
    old, new = Issuer("root of 2021"), Issuer("root of 2026")
    trusted = peers(folder, old)
    new.write(folder, "bank")
    with pytest.raises(CertificateError, match="not signed"):
        trusted.check((folder / "bank.crt").read_bytes())
    (folder / "ca.crt").write_bytes(bundle([old.certificate, new.certificate]))
    assert trusted.check((folder / "bank.crt").read_bytes()) == "bank"


def test_a_chain_is_bounded() -> None:
    root = Issuer("root")
    with pytest.raises(CertificateError, match=f"1 to {MAX_CERTIFICATES} certificates"):
        parse_certificates(bundle([root.certificate] * (MAX_CERTIFICATES + 1)))
    with pytest.raises(CertificateError, match="in PEM format"):
        parse_certificates(b"")
    # A circle of authorities that sign each other leads nowhere.
    one, two = Issuer("one"), Issuer("two")
    crossed = [
        one.sign("two", two.key.public_key(), 9, is_authority=True),
        two.sign("one", one.key.public_key(), 9, is_authority=True),
    ]
    with pytest.raises(CertificateError, match="not issued by a trusted authority"):
        find_chain(crossed, [root.certificate])
