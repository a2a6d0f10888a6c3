"""Generated requests, valid and invalid, never make the server fail."""

import re
import subprocess
import sys
from pathlib import Path

import pytest

from serve_tests.server import serving

REQUESTS = 600
ROUND = 100
"""Requests that a round generates for each operation with a body, at most."""


@pytest.mark.slow
def test_no_server_error(bundles: Path, tmp_path: Path) -> None:
    checks = "not_a_server_error,response_schema_conformance,status_code_conformance"
    count, seed = 0, 0
    with serving(bundles / "both.xvfl") as server:
        while count < REQUESTS:
            seed += 1
            done = subprocess.run(
                [
                    *(str(Path(sys.executable).with_name("st")), "run"),
                    f"http://127.0.0.1:{server.port}/openapi.json",
                    *("--checks", checks, "--phases", "coverage,fuzzing"),
                    *("--max-examples", str(ROUND), "--seed", str(seed)),
                ],
                cwd=tmp_path,
                capture_output=True,
                text=True,
                check=False,
            )
            assert done.returncode == 0, done.stdout
            text = server.ask("GET", "/metrics").body.decode()
            found = re.findall(r'xvfl_requests_total\{.*status="(\d+)"\} (\d+)', text)
            count = sum(int(number) for _, number in found)
            assert not [status for status, _ in found if status >= "500"]
    print(f"{count} requests, no status 5xx")
