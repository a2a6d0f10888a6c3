"""What a party replies when something fails at its own side."""

from typing import Any

from xvfl.errors import CertificateError, ConfigError, InputError, RunError, XVFLError
from xvfl.federation.endpoint import Endpoint
from xvfl.wire import codec
from xvfl.wire.messages import ErrorReply, Hello, Match

PATH = "/srv/secret/bank.key"


class NoStore:
    def save(self, *args: object) -> None:
        raise RunError(f"{PATH}: could not be written")

    def newest(self, run: str, step: int) -> None:
        return


def test_no_reply_names_a_file_of_the_party() -> None:
    raised: list[XVFLError | OSError] = [
        kind(f"{PATH}: cannot be read") for kind in (RunError, ConfigError, InputError)
    ]
    raised += [CertificateError(PATH), OSError(2, "No such file", PATH)]
    for number, error in enumerate(raised, 1):
        events: list[dict[str, Any]] = []

        def fail(message: object, error: Exception = error) -> Any:
            raise error

        hello = Hello(0, "id", False, 3, "columns", "session")
        endpoint = Endpoint(hello, fail, NoStore(), events.append, {Match: fail})  # type: ignore[arg-type]
        reply = codec.decode(endpoint.handle(codec.encode(Match(number, b""))))
        assert isinstance(reply, ErrorReply)
        assert "secret" not in reply.text and "see the party's log" in reply.text
        assert any(PATH in str(event) for event in events)
