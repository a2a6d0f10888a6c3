"""Downloads from a real server: whole, cut short and continued, wrong, refused."""

import hashlib
import io
import threading
import zipfile
from collections.abc import Iterator
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest

from xvfl.errors import InputError
from xvfl_lab.datasets.download import fetch
from xvfl_lab.datasets.source import Download

CONTENT = bytes(range(256)) * 4096


@dataclass
class Server:
    """What the server has, how it misbehaves, and what it was asked."""

    content: bytes = CONTENT
    stop_after: int | None = None
    """Close the connection after this many bytes of an answer."""
    ranges: bool = True
    asked: list[str | None] = field(default_factory=list)
    address: str = ""


@pytest.fixture
def server() -> Iterator[Server]:
    state = Server()

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            wanted = self.headers.get("Range")
            state.asked.append(wanted)
            start = int(wanted.removeprefix("bytes=").rstrip("-")) if wanted and state.ranges else 0
            if self.path != "/file":
                self.send_error(404, "Not here")
                return
            if start >= len(state.content):
                self.send_error(416, "Range Not Satisfiable")
                return
            body = state.content[start:]
            self.send_response(206 if start else 200)
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body[: state.stop_after])

        def log_message(self, *ignored: object) -> None:
            pass

    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as running:
        state.address = f"http://127.0.0.1:{running.server_port}"
        thread = threading.Thread(target=running.serve_forever)
        thread.start()
        yield state
        running.shutdown()
        thread.join()


def wanted(server: Server, content: bytes = CONTENT, kind: str = "sha256") -> Download:
    digest = hashlib.new(kind, content).hexdigest()
    return Download(f"{server.address}/file", "set/file.bin", len(content), f"{kind}:{digest}")


@pytest.mark.parametrize("kind", ["sha256", "md5"])
def test_a_file_comes_whole_and_shows_its_progress(
    server: Server, tmp_path: Path, kind: str
) -> None:
    shown: list[tuple[int, int | None]] = []
    path = fetch(wanted(server, kind=kind), tmp_path, lambda *now: shown.append(now))
    assert path == tmp_path / "set" / "file.bin" and path.read_bytes() == CONTENT
    assert shown[0] == (0, len(CONTENT)) and shown[-1] == (len(CONTENT), len(CONTENT))
    assert len(shown) > 3
    assert [each.name for each in path.parent.iterdir()] == ["file.bin"]


def test_a_download_cut_short_goes_on_where_it_stopped(server: Server, tmp_path: Path) -> None:
    server.stop_after = 300_000
    with pytest.raises(InputError, match="run the same command again to resume at 300,000 bytes"):
        fetch(wanted(server), tmp_path)
    assert not (tmp_path / "set" / "file.bin").exists()
    with pytest.raises(InputError, match="600,000"):
        fetch(wanted(server), tmp_path)
    server.stop_after = None
    shown: list[tuple[int, int | None]] = []
    path = fetch(wanted(server), tmp_path, lambda *now: shown.append(now))
    assert path.read_bytes() == CONTENT
    assert server.asked == [None, "bytes=300000-", "bytes=600000-"]
    assert shown[0] == (600_000, len(CONTENT))


def test_a_server_without_ranges_sends_all_again(server: Server, tmp_path: Path) -> None:
    server.stop_after = 1000
    with pytest.raises(InputError):
        fetch(wanted(server), tmp_path)
    server.stop_after, server.ranges = None, False
    assert fetch(wanted(server), tmp_path).read_bytes() == CONTENT


def test_a_wrong_checksum_leaves_nothing(server: Server, tmp_path: Path) -> None:
    with pytest.raises(InputError, match="expected sha256:.* got sha256:"):
        fetch(wanted(server, b"something else"), tmp_path)
    assert list((tmp_path / "set").iterdir()) == []


def test_a_part_that_is_whole_already_is_checked_and_kept(server: Server, tmp_path: Path) -> None:
    part = tmp_path / "set" / "file.bin.part"
    part.parent.mkdir()
    part.write_bytes(CONTENT)
    assert fetch(wanted(server), tmp_path).read_bytes() == CONTENT
    assert server.asked == [f"bytes={len(CONTENT)}-"] and not part.exists()


def test_what_is_there_is_not_fetched_again_unless_it_is_wrong(
    server: Server, tmp_path: Path
) -> None:
    path = fetch(wanted(server), tmp_path)
    assert fetch(wanted(server), tmp_path) == path and len(server.asked) == 1
    path.write_bytes(b"damaged")
    assert fetch(wanted(server), tmp_path).read_bytes() == CONTENT


def zipped(name: str, data: bytes) -> bytes:
    file = io.BytesIO()
    with zipfile.ZipFile(file, "w") as archive:
        archive.writestr(name, data)
    return file.getvalue()


def test_a_file_is_taken_out_of_a_zip_in_a_zip(server: Server, tmp_path: Path) -> None:
    server.content = zipped("inner.zip", zipped("table.csv", CONTENT))
    plain = wanted(server)
    download = Download(plain.url, plain.file, 1, plain.checksum, ("inner.zip", "table.csv"))
    path = fetch(download, tmp_path)
    assert path.read_bytes() == CONTENT
    assert [each.name for each in path.parent.iterdir()] == ["file.bin"]
    lost = Download(plain.url, "set/other", 1, plain.checksum, ("inner.zip", "nothing.csv"))
    with pytest.raises(InputError, match="expected inner.zip > nothing.csv in it"):
        fetch(lost, tmp_path)


def test_errors_name_the_server_s_answer_and_the_folder(server: Server, tmp_path: Path) -> None:
    absent = Download(f"{server.address}/nothing", "x", 1, "md5:0")
    with pytest.raises(InputError, match="the server says 404 Not here"):
        fetch(absent, tmp_path)
    (tmp_path / "set").write_text("a file, not a folder")
    with pytest.raises(InputError, match="--to"):
        fetch(wanted(server), tmp_path)


def test_nobody_there(tmp_path: Path) -> None:
    with pytest.raises(InputError, match=f"again, or put {tmp_path / 'x'} there manually"):
        fetch(Download("http://127.0.0.1:9/file", "x", 1, "md5:0"), tmp_path)
