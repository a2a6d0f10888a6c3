"""The documentation page of a server: one page that loads nothing from outside."""

import json
from collections.abc import Iterator
from html import escape
from typing import Any

STYLE = """
:root { color-scheme: light dark; --line: #8884; --code: #8881; }
body { font: 16px/1.5 system-ui, sans-serif; max-width: 60rem; margin: 2rem auto; padding: 0 1rem; }
code, pre { font: 14px/1.45 ui-monospace, monospace; background: var(--code); border-radius: 4px; }
pre { padding: .75rem 1rem; overflow-x: auto; }
h2 { border-bottom: 1px solid var(--line); margin-top: 2.5rem; }
table { border-collapse: collapse; display: block; overflow-x: auto; }
td, th { border: 1px solid var(--line); padding: .25rem .6rem; text-align: left; }
"""


def docs_page(openapi: dict[str, Any], url: str, card: str = "") -> str:
    """Write the page from the OpenAPI description and the model card, if there is one."""
    return "\n".join(_lines(openapi, url, card))


def _lines(openapi: dict[str, Any], url: str, card: str) -> Iterator[str]:
    title = escape(openapi["info"]["title"])
    yield "<!doctype html><html lang='en'><head><meta charset='utf-8'>"
    yield "<meta name='viewport' content='width=device-width, initial-scale=1'>"
    yield f"<title>{title}</title><style>{STYLE}</style></head><body>"
    yield f"<h1>{title}</h1><p>{escape(openapi['info']['description'])} "
    yield "<a href='openapi.json'>OpenAPI</a>"
    yield " · <a href='card'>Model card</a></p>" if card else "</p>"
    schemas = openapi["components"]["schemas"]
    body = json.dumps(schemas["PredictRequest"]["example"], ensure_ascii=False)
    token = ' -H "Authorization: Bearer $TOKEN"' if "security" in openapi else ""
    yield "<h2>Example</h2><pre>"
    quoted = body.replace("'", "'\\''")
    kind = "-H 'Content-Type: application/json'"
    yield f"curl {escape(url)}predict{token} {escape(kind)} -d '{escape(quoted)}'</pre>"
    yield "<h2>Endpoints</h2>"
    for path, methods in openapi["paths"].items():
        for method, each in methods.items():
            yield f"<h3><code>{method.upper()} {escape(path)}</code></h3>"
            yield f"<p>{escape(each['summary'])}</p>"
            yield from _parameters(each.get("parameters", []))
            yield "<table><tr><th>status</th><th></th></tr>"
            for status, response in each["responses"].items():
                yield f"<tr><td>{status}</td><td>{escape(response['description'])}</td></tr>"
            yield "</table>"
    yield (
        f"<h2>Model card</h2><pre>{escape(card)}</pre></body></html>" if card else "</body></html>"
    )


def _parameters(parameters: list[dict[str, Any]]) -> Iterator[str]:
    if parameters:
        yield "<table><tr><th>query parameter</th><th></th></tr>"
        for each in parameters:
            yield f"<tr><td><code>{escape(each['name'])}</code></td>"
            yield f"<td>{escape(each['description'])}</td></tr>"
        yield "</table>"
