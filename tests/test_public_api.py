"""The public names of the package, and what importing it does."""

import pytest

import xvfl
from tests.processes import run_python


def test_public_names() -> None:
    assert xvfl.__all__ == [
        "CertificateError",
        "Config",
        "ConfigError",
        "DataWarning",
        "Federation",
        "Images",
        "InputError",
        "LabelsConfig",
        "LossConfig",
        "MatchingError",
        "Method",
        "ModeError",
        "NetConfig",
        "PartyConfig",
        "PartyError",
        "PrivacyConfig",
        "RunError",
        "TableOptions",
        "TrainConfig",
        "WireError",
        "XVFLClassifier",
        "XVFLError",
        "XVFLRegressor",
        "__version__",
        "describe",
        "scorer",
    ]
    assert dir(xvfl) == xvfl.__all__
    assert all(getattr(xvfl, name) is not None for name in xvfl.__all__)
    assert all(getattr(xvfl, name).__doc__ for name in xvfl.__all__ if name != "__version__")
    with pytest.raises(AttributeError, match="no attribute 'XVFLRanker'"):
        xvfl.XVFLRanker  # noqa: B018


def test_every_error_has_one_base_class() -> None:
    errors = [getattr(xvfl, name) for name in xvfl.__all__ if name.endswith("Error")]
    assert all(issubclass(error, xvfl.XVFLError) for error in errors)


@pytest.mark.slow
def test_import_loads_little_and_changes_no_environment_variable() -> None:
    script = (
        "import os, sys\n"
        "before = dict(os.environ)\n"
        "import xvfl\n"
        "print(dict(os.environ) == before, 'torch' in sys.modules)\n"
        "xvfl.XVFLClassifier\n"
        "print('MIMALLOC_PURGE_DELAY' in os.environ)\n"
    )
    done = run_python("-c", script)
    assert done.stdout == "True False\nFalse\n", done.stderr


def test_the_command_line_sets_the_allocator_before_torch_is_imported() -> None:
    script = (
        "import os, sys\n"
        "from xvfl.cli import main\n"
        "print('MIMALLOC_PURGE_DELAY' in os.environ)\n"
        "main.run(lambda: print(os.environ['MIMALLOC_PURGE_DELAY'], 'torch' in sys.modules))\n"
    )
    done = run_python("-c", script)
    assert done.stdout == "False\n10000 False\n", done.stderr
