"""The HTTP port of prediction: bodies are bounded, one by one and together."""

import http.client
import json
import socket
import threading
import time
from contextlib import ExitStack
from select import select
from typing import Any

import pytest

from tests.service.test_http_endpoint import Recorder
from xvfl_serve.http import id_endpoint

LARGEST = 2**16 + 256 * 10
"""Bytes of the largest body of the recorder's endpoint, which accepts 10 ids."""


def send(port: int, body: bytes) -> tuple[int, Any]:
    """Send a body to the port; return status and answer."""
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=60)
    try:
        connection.request("POST", "/predict", body, {"Content-Type": "application/json"})
        answer = connection.getresponse()
        return answer.status, json.loads(answer.read())
    finally:
        connection.close()


def hold(port: int, size: int) -> socket.socket:
    """Send a body of this size but for its last byte, and nothing more."""
    held = socket.create_connection(("127.0.0.1", port), timeout=60)
    head = f"POST /predict HTTP/1.1\r\nHost: localhost\r\nContent-Length: {size}\r\n"
    held.sendall(f"{head}Content-Type: application/json\r\n\r\n".encode() + b" " * (size - 1))
    return held


def test_a_body_is_as_large_as_a_list_of_ids_may_be() -> None:
    endpoint = Recorder().endpoint()
    longest = "x" * (LARGEST - len('{"ids": [""]}'))
    assert send(endpoint.port, json.dumps({"ids": [longest]}).encode())[0] == 200
    status, answer = send(endpoint.port, json.dumps({"ids": [longest + "x"]}).encode())
    assert status == 413 and answer["error"].startswith(f"expected at most {LARGEST} bytes")
    endpoint.close()


def test_the_bodies_of_all_requests_together_are_bounded() -> None:
    endpoint = Recorder().endpoint()
    with ExitStack() as stack:
        held = [stack.enter_context(hold(endpoint.port, LARGEST)) for _ in range(8)]
        refused, until = list[socket.socket](), time.monotonic() + 60
        while len(refused) < 4 and time.monotonic() < until:
            refused = select(held, [], [], 0.1)[0]
        assert [each.recv(12) for each in refused] == 4 * [b"HTTP/1.1 503"]
        assert send(endpoint.port, b'{"ids": ["x"]}')[0] == 200
        for each in held:
            if each not in refused:
                each.sendall(b" ")
                assert each.recv(12) == b"HTTP/1.1 400"
    assert send(endpoint.port, b'{"ids": ["x"]}')[0] == 200
    endpoint.close()


def test_large_bodies_are_parsed_in_a_thread(monkeypatch: pytest.MonkeyPatch) -> None:
    threads, parse = list[str](), id_endpoint.parse_json

    def parse_json(*args: Any) -> dict[str, Any]:
        threads.append(threading.current_thread().name)
        return parse(*args)

    monkeypatch.setattr(id_endpoint, "parse_json", parse_json)
    endpoint = Recorder().endpoint()
    for size in (10, 2**16):
        assert send(endpoint.port, json.dumps({"ids": ["x" * size]}).encode())[0] == 200
    assert threads[0] == "http" and threads[1] != "http"
    endpoint.close()
