"""The API's reference as one HTML page, written from the OpenAPI document: no scripts, nothing fetched."""

from __future__ import annotations

import json
from html import escape
from typing import Any

from headrace.api.schemas import PREFIX, Schema

_STYLE = """
:root { color-scheme: light dark; --ink: #1b2733; --soft: #5c6b7a; --line: #d9e0e6; --paper: #fff; --wash: #f4f7f9;
        --accent: #0b6e8f; --warn: #8a5a00; }
@media (prefers-color-scheme: dark) { :root { --ink: #e3e9ee; --soft: #93a3b1; --line: #2f3b46; --paper: #12181d;
        --wash: #1a2229; --accent: #5ec1e0; --warn: #e0b05e; } }
* { box-sizing: border-box; }
body { margin: 0; font: 16px/1.55 system-ui, sans-serif; color: var(--ink); background: var(--paper); }
a { color: var(--accent); text-decoration: none; } a:hover { text-decoration: underline; }
code, pre { font: 0.875em/1.5 ui-monospace, SFMono-Regular, Menlo, Consolas, monospace; }
.page { display: grid; grid-template-columns: 17rem minmax(0, 1fr); max-width: 82rem; margin: 0 auto; }
nav { position: sticky; top: 0; align-self: start; max-height: 100vh; overflow: auto; padding: 2rem 1rem 2rem 1.5rem; }
nav h2 { font-size: 0.8rem; color: var(--soft); margin: 1.2rem 0 0.3rem; font-weight: 600; }
nav a { display: block; padding: 0.1rem 0; font-size: 0.9rem; overflow-wrap: anywhere; }
main { padding: 2rem 1.5rem 6rem; min-width: 0; }
h1 { margin: 0; font-size: 1.9rem; } h1 + p { color: var(--soft); margin-top: 0.2rem; }
section { border-top: 1px solid var(--line); padding-top: 1.4rem; margin-top: 2.2rem; scroll-margin-top: 1rem; }
h3 { font-size: 1.15rem; margin: 0; overflow-wrap: anywhere; } h4 { margin: 1.4rem 0 0.4rem; font-size: 0.95rem; }
.method { display: inline-block; min-width: 3.6rem; text-align: center; border-radius: 4px; padding: 0.1rem 0.4rem;
          margin-right: 0.5rem; font-size: 0.8rem; color: #fff; background: #0b6e8f; vertical-align: 0.1em; }
.method.post { background: #2f7d4f; }
.scroll { overflow-x: auto; }
table { border-collapse: collapse; width: 100%; font-size: 0.92rem; }
td, th { text-align: left; vertical-align: top; padding: 0.45rem 0.9rem 0.45rem 0;
         border-bottom: 1px solid var(--line); }
th { color: var(--soft); font-weight: 600; }
td:first-child { white-space: nowrap; } td:nth-child(2) { min-width: 11rem; }
.tag { font-size: 0.75rem; border: 1px solid var(--line); border-radius: 3px; padding: 0 0.3rem; color: var(--soft);
       margin-left: 0.4rem; }
.tag.must { color: var(--accent); border-color: var(--accent); }
.tag.no { color: var(--warn); border-color: var(--warn); }
pre { background: var(--wash); border: 1px solid var(--line); border-radius: 6px;
      padding: 0.8rem 1rem; overflow-x: auto; }
@media (max-width: 52rem) { .page { display: block; } nav { position: static; max-height: none; } }
"""


def docs_page(document: dict[str, Any], *, base_url: str = "http://localhost:8000") -> str:
    """The page for an OpenAPI document.

    Args:
        document: What ``openapi.openapi_document`` returns.
        base_url: Where the examples send their requests.
    """
    info = document["info"]
    schemas: dict[str, Schema] = document["components"]["schemas"]
    routes = [(path, method, op) for path, ops in document["paths"].items() for method, op in ops.items()]
    body = "".join(_route(path, method, op, schemas, base_url) for path, method, op in routes)
    shapes = "".join(_shape(name, schema) for name, schema in schemas.items())
    return (
        "<!doctype html><html lang='en'><head><meta charset='utf-8'>"
        "<meta name='viewport' content='width=device-width, initial-scale=1'>"
        f"<title>{escape(info['title'])} API</title><style>{_STYLE}</style></head><body><div class='page'>"
        f"{_contents(routes, schemas)}<main><h1>{escape(info['title'])} API</h1>"
        f"<p>Version {escape(info['version'])}. {escape(info['summary'])} <a href='openapi.json'>openapi.json</a></p>"
        f"<p>{escape(info['description'])}</p>{body}<section><h2>Shapes</h2></section>{shapes}</main></div></body></html>"
    )


def _contents(routes: list[tuple[str, str, dict[str, Any]]], schemas: dict[str, Schema]) -> str:
    groups: dict[str, list[str]] = {}
    for path, _, op in routes:
        groups.setdefault(op["tags"][0], []).append(f"<a href='#{op['operationId']}'>{escape(path)}</a>")
    groups["Shapes"] = [f"<a href='#shape-{name}'>{name}</a>" for name in schemas]
    return "<nav>" + "".join(f"<h2>{escape(tag)}</h2>{''.join(links)}" for tag, links in groups.items()) + "</nav>"


def _route(path: str, method: str, op: dict[str, Any], schemas: dict[str, Schema], base_url: str) -> str:
    parts = [
        f"<section id='{op['operationId']}'><h3><span class='method {method}'>{method.upper()}</span>"
        f"<code>{escape(path)}</code></h3><p>{escape(op['summary'])}.</p>"
    ]
    if "security" in op:
        parts.append("<p>Needs a key: <code>Authorization: Bearer KEY</code>.</p>")
    if "requestBody" in op:
        content = op["requestBody"]["content"]["application/json"]
        name = content["schema"]["$ref"].removeprefix(PREFIX)
        parts.append(f"<h4>Request: {_link(name)}</h4>{_fields(schemas[name])}")
        for title, example in content["examples"].items():
            parts.append(f"<h4>Example: {escape(title)}</h4>{_curl(base_url + path, example['value'])}")
    parts.append(f"<h4>Answers</h4>{_answers(op['responses'])}</section>")
    return "".join(parts)


def _curl(url: str, value: Any) -> str:
    body = json.dumps(value, indent=2, ensure_ascii=False).replace("'", "'\\''")
    command = f"curl {url} -H 'Content-Type: application/json' -d '{body}'"
    return f"<pre>{escape(command, quote=False)}</pre>"


def _answers(responses: dict[str, Any]) -> str:
    rows = []
    for status, response in responses.items():
        kinds = [
            f"{escape(kind)}: {_type(content['schema']) if kind == 'application/json' else _event(content['schema'])}"
            for kind, content in response["content"].items()
        ]
        rows.append(
            f"<tr><td>{status}</td><td>{'<br>'.join(kinds)}</td><td>{_prose(response['description'])}</td></tr>"
        )
    return f"<div class='scroll'><table><tr><th>Status<th>Body<th>Meaning</tr>{''.join(rows)}</table></div>"


def _event(schema: Schema) -> str:
    return _prose(schema.get("description", "text"))


def _shape(name: str, schema: Schema) -> str:
    about = _prose(schema.get("description", "").split("\n\nAttributes:")[0])
    return f"<section id='shape-{name}'><h3>{name}</h3><p>{about}</p>{_fields(schema)}</section>"


def _fields(schema: Schema) -> str:
    required = schema.get("required", [])
    rows = []
    for name, prop in sorted(schema.get("properties", {}).items(), key=lambda item: item[0] not in required):
        text, marks = _marks(prop.get("description", ""))
        if name in required:
            marks = "<span class='tag must'>required</span>" + marks
        example = "".join(f"<br>Example: <code>{escape(json.dumps(e))}</code>" for e in prop.get("examples", [])[:1])
        cells = f"<td><code>{escape(name)}</code>{marks}</td><td>{_type(prop)}</td><td>{_prose(text)}{example}</td>"
        rows.append(f"<tr>{cells}</tr>")
    return f"<div class='scroll'><table><tr><th>Field<th>Type<th>Meaning</tr>{''.join(rows)}</table></div>"


def _marks(description: str) -> tuple[str, str]:
    for prefix, mark in (
        ("Extension. ", "<span class='tag'>extension</span>"),
        ("Not supported. ", "<span class='tag no'>neutral values only</span>"),
    ):
        if description.startswith(prefix):
            return description.removeprefix(prefix), mark
    return description, ""


def _prose(text: str) -> str:
    """Docstring text: double or single back quotes mark code."""
    pieces = text.replace("``", "`").split("`")
    return "".join(f"<code>{escape(p)}</code>" if i % 2 else escape(p) for i, p in enumerate(pieces))


def _link(name: str) -> str:
    return f"<a href='#shape-{name}'>{name}</a>"


def _type(schema: Schema) -> str:
    """A type in words, with links to shapes. Null is left out: it means absent."""
    if "$ref" in schema:
        return _link(schema["$ref"].removeprefix(PREFIX))
    if "enum" in schema:
        values = [value for value in schema["enum"] if value is not None]
        return " or ".join(f"<code>{escape(json.dumps(value))}</code>" for value in values) or "null"
    if "anyOf" in schema:
        options = dict.fromkeys(_type(option) for option in schema["anyOf"])
        return " or ".join(option for option in options if option != "null")
    kind = schema.get("type", "any value")
    if kind == "array":
        items = _type(schema["items"]) if "items" in schema else "any value"
        return f"list of {f'({items})' if ' or ' in items else items}{_bounds(schema)}"
    if kind == "object" and isinstance(schema.get("additionalProperties"), dict):
        return f"object of {_type(schema['additionalProperties'])}{_bounds(schema)}"
    return f"{escape(str(kind))}{_bounds(schema)}"


def _bounds(schema: Schema) -> str:
    """A range, where it says more than that a number fits its machine type."""
    low = schema.get("minimum", schema.get("exclusiveMinimum"))
    high = schema.get("maximum")
    words = []
    if low is not None and abs(low) < 2**31 - 1:
        words.append(f"{'above' if 'exclusiveMinimum' in schema else 'from'} {low:g}")
    if high is not None and high < 2**31 - 1:
        words.append(f"to {high:g}")
    if 1 in (schema.get("minLength"), schema.get("minItems")):
        words.append("not empty")
    sizes = {"maxLength": "at most {} long", "maxItems": "at most {}", "maxProperties": "at most {}"}
    words += [text.format(schema[name]) for name, text in sizes.items() if name in schema]
    return f", {' '.join(words[:2])}{''.join(', ' + word for word in words[2:])}" if words else ""
