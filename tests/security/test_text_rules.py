"""The same text is accepted, or escaped, alike everywhere."""

import json
import sys
import unicodedata
from dataclasses import asdict, replace
from types import SimpleNamespace
from typing import Any

import pytest

import xvfl.system.printable
import xvfl_serve.printable
from tests.security.hostile_coordinator import HONEST
from xvfl.certs.peers import _name
from xvfl.errors import CertificateError, WireError
from xvfl.federation.request_limits import RequestLimits
from xvfl.federation.run_settings import parse_run_settings


def test_both_packages_escape_every_character_alike() -> None:
    """`xvfl.system` imports torch and numpy alone, so that it does not use `xvfl_serve`."""
    characters = [chr(point) for point in (*range(2**16), *range(2**16, sys.maxunicode, 97))]
    assert len({unicodedata.category(each) for each in characters}) == 30
    for each in characters:
        escaped = xvfl.system.printable.printable(each)
        assert escaped.isprintable() and xvfl_serve.printable.printable(each) == escaped
    text = "a\n\x1b[2J \u202e\U000e0001é"
    assert xvfl.system.printable.printable(text) == xvfl_serve.printable.printable(text)


@pytest.mark.parametrize("name", ["", "a/b", "a b", "é", "x" * 65, "a\n", "..\\", "²"])
def test_runs_and_certificates_have_names_of_one_rule(name: str) -> None:
    expected = "ASCII letters, digits and _ . - of at most 64 characters"
    with pytest.raises(WireError, match=f"Begin: run: expected {expected}"):
        RequestLimits().check(replace(HONEST, run=name))
    if name:
        text = json.dumps({**asdict(HONEST), "run": name})
        with pytest.raises(WireError, match=f"Begin: run: expected {expected}"):
            parse_run_settings(text)
    certificate: Any = SimpleNamespace(
        subject=SimpleNamespace(get_attributes_for_oid=lambda _: [SimpleNamespace(value=name)]),
        extensions=SimpleNamespace(
            get_extension_for_class=lambda _: SimpleNamespace(
                value=SimpleNamespace(get_values_for_type=lambda _: [name])
            )
        ),
    )
    with pytest.raises(CertificateError, match=f"certificate: expected {expected}"):
        _name(certificate)
