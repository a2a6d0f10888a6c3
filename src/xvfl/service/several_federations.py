"""One process of a party for several federations.

Each federation has its own configuration, connections, log, state folder and status address, in a
thread. An error in one of them does not end the others: it is started again after a minute.
"""

import sys
import threading
import traceback
from collections import Counter
from collections.abc import Sequence
from pathlib import Path

from xvfl.errors import ConfigError, XVFLError
from xvfl.service.config import PartyProcessConfig
from xvfl.service.party import own_process, serve_party
from xvfl.system.event_log import EventLog

RESTART_S = 60.0
"""Seconds after an error until a federation is started again."""
POLL_S = 0.5


def serve_several(configs: Sequence[PartyProcessConfig], show: bool = True) -> dict[str, str]:
    """Take part in several federations until a signal stops this process.

    Parameters
    ----------
    configs : sequence of PartyProcessConfig
        The configuration of this party in each federation.
    show : bool, default=True
        Print the logs on standard error as well.

    Returns
    -------
    dict of str to str
        State folders of federations that had failed when the process was stopped, and why.

    """
    shared = [
        path for path, count in Counter(each.state_dir for each in configs).items() if count > 1
    ]
    if shared:
        raise ConfigError(f"state_dir: expected one for each federation; {shared[0]} is used twice")
    stop = threading.Event()
    threads = [FederationThread(each, show, stop) for each in configs]
    device = "cpu" if any(each.device == "cpu" for each in configs) else configs[0].device
    with own_process(device, stop.set):
        for each in threads:
            each.start()
        for each in threads:
            while each.is_alive():
                each.join(POLL_S)
    return {each.config.state_dir: each.problem for each in threads if each.problem}


class FederationThread(threading.Thread):
    """Takes part in one federation until a stop; starts again after an error."""

    def __init__(self, config: PartyProcessConfig, show: bool, stop: threading.Event) -> None:
        super().__init__(name=config.state_dir, daemon=True)
        self.config, self._show, self._stop_request = config, show, stop
        self.problem = ""
        """Why it has failed; empty if it was running until the stop."""

    def run(self) -> None:
        """Take part until the stop."""
        while not self._stop_request.is_set():
            try:
                serve_party(self.config, self._show, stop=self._stop_request)
                self.problem = ""
            except Exception as error:
                known = isinstance(error, XVFLError)
                self.problem = str(error) if known else traceback.format_exc()
                self._log_failure()
                self._stop_request.wait(RESTART_S)

    def _log_failure(self) -> None:
        """Log an error, on standard error if there is no state folder yet."""
        folder, event = Path(self.config.state_dir), {"event": "failed", "reason": self.problem}
        if folder.is_dir():
            as_json = self.config.log_format == "json"
            log = EventLog(folder, self.config.state_dir, self._show, as_json)
            log({**event, "retry_in_s": RESTART_S})
        else:
            print(f"error: {folder}: {self.problem}", file=sys.stderr)
