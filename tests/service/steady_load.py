"""Send one prediction request after the other, and write a line about each to a file.

A program: `python steady_load.py URL BODY FILE`.
"""

import json
import sys
import time
import urllib.error
import urllib.request

PAUSE_S = 0.1


def main(url: str, body: str, path: str) -> None:
    """Send requests until this process is killed."""
    count = len(json.loads(body)["ids"])
    with open(path, "a", buffering=1, encoding="utf-8") as file:
        while True:
            started = time.monotonic()
            found = result_of(url, body, count)
            found["seconds"] = round(time.monotonic() - started, 2)
            file.write(json.dumps(found) + "\n")
            time.sleep(PAUSE_S)


def result_of(url: str, body: str, count: int) -> dict[str, object]:
    """Send a request; describe the answer, or say why there is none."""
    request = urllib.request.Request(url, body.encode(), {"Content-Type": "application/json"})
    try:
        with urllib.request.urlopen(request, timeout=60) as response:
            answers = json.load(response)["predictions"]
    except urllib.error.HTTPError as error:
        return {"failed": f"{error.code}: {error.read().decode()}"}
    except Exception as error:
        return {"failed": repr(error)}
    if len(answers) != count:
        return {"failed": f"expected {count} predictions, got {len(answers)}"}
    parties = sorted({name for each in answers for name in each["parties"]})
    return {"failed": "", "parties": parties, **answers[0]["model"]}


if __name__ == "__main__":
    main(*sys.argv[1:])
