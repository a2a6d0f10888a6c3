"""What the messages tell that one node receives in a training step: nothing about the labels."""

import subprocess
from pathlib import Path
from tempfile import TemporaryDirectory

import numpy as np
import pytest
from numpy.typing import NDArray

from tests.secret.small_problem import first_state
from tests.secret.three_nodes import PROGRAM, TIMEOUT_S, needs_spu, split

pytestmark = [needs_spu, pytest.mark.slow]
ROWS, WIDTH, HIDDEN = 1024, 6, 2
SCRIPT = Path(__file__).with_name("recorded_step.py")
CONTROLS = 8


@pytest.fixture(scope="module")
def labels() -> NDArray[np.float64]:
    return (np.random.default_rng(0).random(ROWS) < 0.5).astype(np.float64)


@pytest.fixture(scope="module")
def messages(labels: NDArray[np.float64], tmp_path_factory: pytest.TempPathFactory) -> list[bytes]:
    """Return what each node received in a step; embeddings and errors depend on the labels."""
    rng = np.random.default_rng(1)
    x = rng.uniform(-1, 1, (ROWS, WIDTH)) + labels[:, None]
    arrays = {"x": x, "y": labels.reshape(-1, 1), **first_state(WIDTH, 1, HIDDEN, rng)}
    folders = split(tmp_path_factory.mktemp("messages"), arrays)
    # Paths of Unix sockets must be short.
    with TemporaryDirectory(prefix="xs") as name:
        for rank, folder in enumerate(folders):
            folder.rename(Path(name) / f"share-{rank}")
        command = [str(PROGRAM.with_name("python")), str(SCRIPT), name]
        nodes = [subprocess.Popen([*command, str(rank)]) for rank in range(3)]
        try:
            assert [node.wait(TIMEOUT_S) for node in nodes] == [0, 0, 0]
        finally:
            for node in nodes:
                node.kill()
                node.wait()
        return [(Path(name) / f"messages-{rank}").read_bytes() for rank in range(3)]


def strongest(data: bytes, ys: NDArray[np.float64]) -> NDArray[np.float64]:
    """Return for each y (k, n) its largest |r| with numbers that are as far apart as rows. (k,)

    A message has one number, or one for each hidden unit, or both addends of them, for each row;
    it starts anywhere.
    """
    n = ys.shape[1]
    scores = (ys - ys.mean(1, keepdims=True)) / (ys.std(1, keepdims=True) * n)
    found = np.zeros(len(ys))
    for start in range(8):
        whole = data[start : start + (len(data) - start) // 8 * 8]
        numbers = np.frombuffer(whole, np.int64).astype(np.float64) / 2.0**63
        for apart in (1, HIDDEN, 2 * HIDDEN):
            for phase in range(apart):
                series = numbers[phase::apart]
                found = np.maximum(found, np.abs(correlations(series, scores)).max(1))
    return found


def correlations(series: NDArray[np.float64], scores: NDArray[np.float64]) -> NDArray[np.float64]:
    """Return r of each score (k, n) and every n neighbors in the series, by FFT."""
    n = scores.shape[1]
    size = 1 << (len(series) + n).bit_length()
    spectra = np.conj(np.fft.rfft(scores, size)) * np.fft.rfft(series, size)
    across = np.fft.irfft(spectra, size)[:, : len(series) - n + 1]
    sums, squares = (np.concatenate([[0], np.cumsum(series**k)]) for k in (1, 2))
    mean, square = ((each[n:] - each[:-n]) / n for each in (sums, squares))
    return across / np.sqrt(np.maximum(square - mean**2, 1e-6))


@pytest.mark.parametrize("rank", range(3))
def test_messages_of_one_node_do_not_tell_labels(
    messages: list[bytes], labels: NDArray[np.float64], rank: int
) -> None:
    data = messages[rank]
    assert len(data) > 100 * ROWS
    rng = np.random.default_rng(2)
    tested = np.stack([labels, *(rng.permutation(labels) for _ in range(CONTROLS))])
    reached = strongest(data, tested)
    assert reached[0] < 1.2 * reached[1:].max()
    # The attack finds labels that are there.
    plain = (labels * 2.0**60).astype(np.int64).tobytes()
    assert strongest(data[:1001] + plain + data[1001:], tested)[0] > 0.99
