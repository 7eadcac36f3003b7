"""The API's reference as one HTML page, written from the OpenAPI document: no scripts, nothing fetched."""

from __future__ import annotations

import json
import re
from collections.abc import Iterable
from html import escape
from typing import Any

from headrace.api.schemas import PREFIX, Schema

_STYLE = """
:root { color-scheme: light dark; --ink: #1b2733; --soft: #5c6b7a; --line: #d9e0e6; --paper: #fff; --wash: #f4f7f9;
        --accent: #0b6e8f; }
@media (prefers-color-scheme: dark) { :root { --ink: #e3e9ee; --soft: #93a3b1; --line: #2f3b46; --paper: #12181d;
        --wash: #1a2229; --accent: #5ec1e0; } }
* { box-sizing: border-box; }
body { margin: 0; font: 16px/1.55 system-ui, sans-serif; color: var(--ink); background: var(--paper); }
a { color: var(--accent); text-decoration: none; } a:hover { text-decoration: underline; }
code, pre { font: 0.875em/1.5 ui-monospace, SFMono-Regular, Menlo, Consolas, monospace; }
code { overflow-wrap: anywhere; }
.page { display: grid; grid-template-columns: 16rem minmax(0, 1fr); max-width: 82rem; margin: 0 auto; }
nav { grid-row: 1 / span 2; position: sticky; top: 0; align-self: start; max-height: 100vh; overflow: auto;
      padding: 2rem 1rem 2rem 1.5rem; }
nav h2 { font-size: 0.8rem; color: var(--soft); margin: 1.2rem 0 0.3rem; font-weight: 600; }
nav a { display: block; padding: 0.1rem 0; font-size: 0.9rem; overflow-wrap: anywhere; }
header { grid-column: 2; padding: 2rem 1.5rem 0; min-width: 0; }
main { grid-column: 2; padding: 0 1.5rem 6rem; min-width: 0; }
h1 { margin: 0; font-size: 1.9rem; } h1 + p { color: var(--soft); margin-top: 0.2rem; }
section { border-top: 1px solid var(--line); padding-top: 1.4rem; margin-top: 2.2rem; scroll-margin-top: 1rem; }
section h2 { font-size: 1.15rem; margin: 0; overflow-wrap: anywhere; }
#shapes { font-size: 1.5rem; margin: 3rem 0 -0.8rem; }
h3 { margin: 1.6rem 0 0.4rem; font-size: 0.95rem; scroll-margin-top: 1rem; }
summary { margin: 1.2rem 0 0.4rem; font-size: 0.95rem; font-weight: 600; cursor: pointer; }
.method { display: inline-block; min-width: 3.6rem; text-align: center; border-radius: 4px; padding: 0.1rem 0.4rem;
          margin-right: 0.5rem; font-size: 0.8rem; color: #fff; background: #0b6e8f; vertical-align: 0.1em; }
.method.post { background: #2f7d4f; }
table { border-collapse: collapse; width: 100%; font-size: 0.92rem; table-layout: fixed; }
td, th { text-align: left; vertical-align: top; padding: 0.45rem 0.9rem 0.45rem 0; overflow-wrap: break-word;
         border-bottom: 1px solid var(--line); }
th { color: var(--soft); font-weight: 600; }
th:first-child { width: 15.5rem; } th:nth-child(2):not(:last-child) { width: 16.5rem; }
.answers th:first-child { width: 4.5rem; } .answers th:nth-child(2):not(:last-child) { width: 27.5rem; }
.tag { font: 0.75rem system-ui, sans-serif; border: 1px solid currentColor; border-radius: 3px; padding: 0 0.3rem;
       margin-left: 0.4rem; white-space: nowrap; color: var(--soft); }
.tag.must { color: var(--accent); }
pre { background: var(--wash); border: 1px solid var(--line); border-radius: 6px;
      padding: 0.8rem 1rem; overflow-x: auto; }
@media (max-width: 58rem) {
  .page, table, tbody, tr, td { display: block; }
  thead, nav .more { display: none; }
  header, main { padding-left: 1rem; padding-right: 1rem; }
  nav { position: static; max-height: none; padding: 0.5rem 1rem 0; }
  nav a { display: inline-block; padding: 0.3rem 0; margin-right: 1.2rem; }
  tr { border-bottom: 1px solid var(--line); padding: 0.5rem 0; }
  td { border: 0; padding: 0.1rem 0; }
  td:first-child, td:first-child code { font-weight: 600; }
}
"""

_NO_EFFECT = "Accepted without effect"
_NOT_SUPPORTED = "Known but not supported: only these values are taken"


def docs_page(document: dict[str, Any], *, base_url: str = "http://localhost:8000") -> str:
    """The page for an OpenAPI document.

    Args:
        document: What ``openapi.openapi_document`` returns.
        base_url: Where the examples send their requests.
    """
    info = document["info"]
    schemas: dict[str, Schema] = document["components"]["schemas"]
    routes = [(path, method, op) for path, ops in document["paths"].items() for method, op in ops.items()]
    bodies = {_request_of(op) for _, _, op in routes if "requestBody" in op}
    asked = _reachable(bodies, schemas)
    shapes = {name: schema for name, schema in schemas.items() if name not in bodies}
    body = "".join(_route(path, method, op, schemas, base_url) for path, method, op in routes)
    return (
        "<!doctype html><html lang='en'><head><meta charset='utf-8'>"
        "<meta name='viewport' content='width=device-width, initial-scale=1'><link rel='icon' href='data:,'>"
        f"<title>{escape(info['title'])} API</title><style>{_STYLE}</style></head><body><div class='page'>"
        f"<header><h1>{escape(info['title'])} API</h1>"
        f"<p>Version {escape(info['version'])}. {escape(info['summary'])} <a href='openapi.json'>openapi.json</a></p>"
        f"<p>{_prose(info['description'])}</p>{_start(document, base_url)}</header>"
        f"{_contents(routes, shapes)}<main>{body}<h2 id='shapes'>Shapes</h2>"
        f"{''.join(_shape(name, schema, name in asked) for name, schema in shapes.items())}</main></div></body></html>"
    )


def _request_of(op: dict[str, Any]) -> str:
    ref: str = op["requestBody"]["content"]["application/json"]["schema"]["$ref"]
    return ref.removeprefix(PREFIX)


def _reachable(names: Iterable[str], schemas: dict[str, Schema]) -> set[str]:
    """The shapes that requests are made of: there, a field that is not required may be left out."""
    found: set[str] = set()
    stack = list(names)
    while stack:
        name = stack.pop()
        if name not in found:
            found.add(name)
            stack += _references(schemas[name])
    return found


def _references(schema: Schema) -> list[str]:
    return re.findall(re.escape(PREFIX) + r"(\w+)", json.dumps(schema))


def _link(name: str) -> str:
    return f"<a href='#shape-{name}'>{name}</a>"


def _start(document: dict[str, Any], base_url: str) -> str:
    op = document["paths"]["/v1/chat/completions"]["post"]
    example = op["requestBody"]["content"]["application/json"]["examples"]["plain"]["value"]
    arguments = "".join(f"    {name}={json.dumps(value, ensure_ascii=False)},\n" for name, value in example.items())
    key = "KEY" if "security" in op else "none"
    code = (
        "from openai import OpenAI\n\n"
        f'client = OpenAI(base_url="{base_url}/v1", api_key="{key}")\n'
        f"answer = client.chat.completions.create(\n{arguments})\n"
        "print(answer.choices[0].message.content)"
    )
    return f"<h3>With OpenAI's client</h3><pre>{escape(code, quote=False)}</pre>"


def _contents(routes: list[tuple[str, str, dict[str, Any]]], shapes: dict[str, Schema]) -> str:
    groups: dict[str, list[str]] = {}
    for path, _, op in routes:
        groups.setdefault(op["tags"][0], []).append(f"<a href='#{op['operationId']}'>{escape(path)}</a>")
    links = "".join(f"<h2>{escape(tag)}</h2>{''.join(group)}" for tag, group in groups.items())
    more = "".join(f"<a href='#shape-{name}'>{name}</a>" for name in shapes)
    return f"<nav>{links}<h2><a href='#shapes'>Shapes</a></h2><div class='more'>{more}</div></nav>"


def _route(path: str, method: str, op: dict[str, Any], schemas: dict[str, Schema], base_url: str) -> str:
    summary = op["summary"] if op["summary"].endswith("?") else op["summary"] + "."
    parts = [
        f"<section id='{op['operationId']}'><h2><span class='method {method}'>{method.upper()}</span>"
        f"<code>{escape(path)}</code></h2><p>{escape(summary)}</p>"
    ]
    parts += [
        f"<p><code>{escape(parameter['name'])}</code>: {_prose(parameter['description'])}</p>"
        for parameter in op.get("parameters", ())
    ]
    key = " -H 'Authorization: Bearer KEY'" if "security" in op else ""
    if key:
        parts.append("<p>Needs a key: <code>Authorization: Bearer KEY</code>.</p>")
    if "requestBody" in op:
        name = _request_of(op)
        for title, example in op["requestBody"]["content"]["application/json"]["examples"].items():
            parts.append(f"<h3>Example: {escape(title)}</h3>{_curl(base_url + path + key, example['value'])}")
        parts.append(f"<h3 id='shape-{name}'>Request: {name}</h3>{_fields(schemas[name], asked=True)}")
    parts.append(f"<h3>Answers</h3>{_answers(op['responses'])}</section>")
    return "".join(parts)


def _curl(url: str, value: dict[str, Any]) -> str:
    lines = ",\n".join(f"  {json.dumps(k)}: {json.dumps(v, ensure_ascii=False)}" for k, v in value.items())
    body = f"{{\n{lines}\n}}".replace("'", "'\\''")
    command = f"curl {url} -H 'Content-Type: application/json' -d '{body}'"
    return f"<pre>{escape(command, quote=False)}</pre>"


def _answers(responses: dict[str, Any]) -> str:
    rows = []
    for status, response in responses.items():
        kinds = [
            f"{escape(kind)}: {_type(content['schema']) if kind == 'application/json' else _event(content['schema'])}"
            for kind, content in response["content"].items()
        ]
        rows.append([status, "<br>".join(kinds), _prose(response["description"])])
    return _table(["Status", "Body", "Meaning"], rows, "answers")


def _event(schema: Schema) -> str:
    """What a stream or a text holds; the shapes that its words name are links."""
    text = _prose(schema.get("description", "text"))
    for name in _references(schema):
        text = re.sub(rf"\b{name}\b", _link(name), text, count=1)
    return text


def _shape(name: str, schema: Schema, asked: bool) -> str:
    about, _ = _docstring(schema)
    return f"<section id='shape-{name}'><h2>{name}</h2><p>{_prose(about)}</p>{_fields(schema, asked=asked)}</section>"


def _docstring(schema: Schema) -> tuple[str, dict[str, str]]:
    """What a shape's docstring says of it, and of each of its fields."""
    about, _, attributes = schema.get("description", "").partition("\n\nAttributes:\n")
    lines = re.sub(r"\n {5,}", " ", attributes).split("\n")
    return about, dict(line.strip().split(": ", 1) for line in lines if ": " in line)


def _fields(schema: Schema, *, asked: bool) -> str:
    """Tables of the fields: what counts first, then what is ours, then what does nothing here."""
    required = schema.get("required", [])
    _, documented = _docstring(schema)
    groups: dict[str, list[list[str]]] = {"": [], "Extensions": [], _NO_EFFECT: [], _NOT_SUPPORTED: []}
    for name, prop in sorted(schema.get("properties", {}).items(), key=lambda item: item[0] not in required):
        group, text = _group(prop.get("description") or documented.get(name, ""))
        tag = "<span class='tag must'>required</span>" if asked and name in required else ""
        if not asked and name not in required:
            tag = "<span class='tag'>not always</span>"
        example = "".join(f"<br>Example: <code>{escape(json.dumps(e))}</code>" for e in prop.get("examples", [])[:1])
        groups[group].append(
            [f"<code>{escape(name)}</code>{tag}", _type(prop, null=not asked), f"{_prose(text)}{example}"]
        )
    parts = []
    for title, rows in groups.items():
        table = _table(["Field", "Type", "Meaning"], rows)
        if title in (_NO_EFFECT, _NOT_SUPPORTED) and rows:
            parts.append(f"<details><summary>{title} ({len(rows)})</summary>{table}</details>")
        elif rows:
            parts.append(f"<h3>{title}</h3>{table}" if title else table)
    return "".join(parts)


def _group(description: str) -> tuple[str, str]:
    """Which table a field belongs to, by the words with which its description begins or ends."""
    for prefix, title in (("Extension. ", "Extensions"), ("Not supported. ", _NOT_SUPPORTED)):
        if description.startswith(prefix):
            return title, description.removeprefix(prefix)
    return _NO_EFFECT if "Accepted" in description else "", description


def _table(titles: list[str], rows: list[list[str]], kind: str = "fields") -> str:
    """A table, without its last column if that is empty."""
    width = len(titles) if any(row[-1] for row in rows) else len(titles) - 1
    head = "".join(f"<th>{title}</th>" for title in titles[:width])
    lines = "".join("<tr>" + "".join(f"<td>{cell}</td>" for cell in row[:width]) + "</tr>" for row in rows)
    return f"<table class='{kind}'><thead><tr>{head}</tr></thead><tbody>{lines}</tbody></table>"


def _prose(text: str) -> str:
    """Docstring text: double or single back quotes mark code."""
    pieces = text.replace("``", "`").split("`")
    return "".join(f"<code>{escape(p)}</code>" if i % 2 else escape(p) for i, p in enumerate(pieces))


def _type(schema: Schema, *, null: bool = False) -> str:
    """A type in words, with links to shapes.

    Args:
        schema: The type.
        null: Whether null is worth a word. In requests it is not: it means absent.
    """
    if "$ref" in schema:
        return _link(schema["$ref"].removeprefix(PREFIX))
    if "enum" in schema:
        values = [value for value in schema["enum"] if value is not None or null]
        return " or ".join(f"<code>{escape(json.dumps(value))}</code>" for value in values) or "null"
    if "anyOf" in schema:
        options = list(dict.fromkeys(_type(option, null=null) for option in schema["anyOf"]))
        options = [option for option in options if null or option != "null"]
        return ("<br>or " if any(option.startswith("list") for option in options) else " or ").join(options)
    kind = schema.get("type", "any value")
    if kind == "array":
        items = _type(schema["items"], null=null).replace("<br>", " ") if "items" in schema else "any value"
        return f"list{_bounds(schema)} of {f'({items})' if ' or ' in items else items}"
    if kind == "object" and isinstance(schema.get("additionalProperties"), dict):
        return f"object{_bounds(schema)} of {_type(schema['additionalProperties'], null=null)}"
    return f"{escape(str(kind))}{_bounds(schema)}"


def _bounds(schema: Schema) -> str:
    """The range of a value or the size of a text or list, where it says more than that it fits a machine's word."""
    words = []
    low, above = schema.get("minimum"), schema.get("exclusiveMinimum")
    high = schema.get("maximum")
    if above is not None:
        words.append(f"above {_number(above)}")
    if low is not None and abs(low) < 2**31 - 1:
        words.append(f"{_number(low)} or more" if high is None or high >= 2**31 - 1 else f"{_number(low)}")
    if high is not None and high < 2**31 - 1:
        words.append(f"{'to' if low is not None else 'at most'} {_number(high)}")
    text = ", ".join(words) if above is not None else " ".join(words)
    for least, most in (("minLength", "maxLength"), ("minItems", "maxItems"), ("", "maxProperties")):
        if most in schema:
            text = f"at most {_number(schema[most])}{' long' if most == 'maxLength' else ''}"
        if schema.get(least) == 1:
            text = f"not empty{', ' if text else ''}{text}"
    return f" ({text})" if text else ""


def _number(value: float) -> str:
    return f"{int(value):,}" if value == int(value) else f"{value:g}"
