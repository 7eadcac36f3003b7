"""A tokenizer read from a model folder: ``tokenizer.json`` and the small files beside it."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from tokenizers import AddedToken, Tokenizer

from headrace.errors import CheckpointError
from headrace.text.vocabulary import Vocabulary

_TEMPLATE_TOKENS = ("bos_token", "eos_token", "unk_token", "sep_token", "pad_token", "cls_token", "mask_token")


def read_folder_vocabulary(folder: Path) -> Vocabulary:
    """Read the tokenizer of a model folder in the layout of the Hugging Face hub.

    ``tokenizer.json`` is the tokenizer, and says by itself what goes around a text: ``add_bos_token`` and
    ``add_eos_token`` in the config do not count beside it (as in Transformers 5). ``tokenizer_config.json``
    names the special tokens and may hold the chat template, unless ``chat_template.jinja`` does;
    ``generation_config.json`` (or ``config.json``) lists the tokens that end a sequence.

    Raises:
        CheckpointError: A file is missing or cannot be read.
    """
    file = folder / "tokenizer.json"
    if not file.is_file():
        raise CheckpointError("the folder has no tokenizer.json", file=folder)
    try:
        backend = Tokenizer.from_file(str(file))
    except Exception as error:  # the library raises bare Exception
        raise CheckpointError(f"not a readable tokenizer: {error}", file=file) from error
    # Some files were saved with the settings of a training run.
    backend.no_padding()
    backend.no_truncation()
    # The older special_tokens_map.json repeats part of tokenizer_config.json, which has the last word.
    config = _read_json(folder / "special_tokens_map.json") | _read_json(folder / "tokenizer_config.json")
    _add_missing_tokens(backend, config)
    named = {name: text for name in _TEMPLATE_TOKENS if (text := _token_text(config.get(name))) is not None}
    return Vocabulary(
        backend=backend,
        source=str(file),
        bos_token_id=backend.token_to_id(named["bos_token"]) if "bos_token" in named else None,
        eos_token_ids=_eos_token_ids(folder, backend, named),
        template_tokens=named,
        chat_template=_chat_template(folder, config),
    )


def _read_json(file: Path) -> dict[str, Any]:
    if not file.is_file():
        return {}
    try:
        value = json.loads(file.read_text(encoding="utf-8"))
    except (OSError, ValueError, RecursionError) as error:
        raise CheckpointError(f"not readable as JSON: {error}", file=file) from error
    if not isinstance(value, dict):
        raise CheckpointError("not a JSON object", file=file)
    return value


def _token_text(value: object) -> str | None:
    """A token is written as its text or as an object with its text in ``content``."""
    if isinstance(value, Mapping):
        value = value.get("content")
    return value if isinstance(value, str) else None


def _add_missing_tokens(backend: Tokenizer, config: Mapping[str, Any]) -> None:
    """Add the special tokens that only ``tokenizer_config.json`` knows, in the order of their ids."""
    listed = config.get("added_tokens_decoder")
    entries = listed.items() if isinstance(listed, Mapping) else ()
    known = backend.get_added_tokens_decoder()
    for key, entry in sorted(entries, key=lambda item: int(item[0]) if str(item[0]).isdigit() else 0):
        text = _token_text(entry)
        if text is None or not str(key).isdigit() or int(key) in known:
            continue
        flags = {name: bool(entry.get(name, False)) for name in ("lstrip", "rstrip", "normalized", "single_word")}
        backend.add_tokens([AddedToken(text, special=bool(entry.get("special", False)), **flags)])


def _eos_token_ids(folder: Path, backend: Tokenizer, named: Mapping[str, str]) -> tuple[int, ...]:
    # As in Transformers, generation_config.json overrules the others.
    for name in ("generation_config.json", "config.json"):
        value = _read_json(folder / name).get("eos_token_id")
        ids = value if isinstance(value, list) else [value]
        found = tuple(i for i in ids if isinstance(i, int) and not isinstance(i, bool))
        if found:
            break
    else:
        found = ()
    own = backend.token_to_id(named["eos_token"]) if "eos_token" in named else None
    return tuple(dict.fromkeys((*found, *(() if own is None else (own,)))))


def _chat_template(folder: Path, config: Mapping[str, Any]) -> str | None:
    file = folder / "chat_template.jinja"
    if file.is_file():
        try:
            return file.read_text(encoding="utf-8")
        except (OSError, ValueError) as error:
            raise CheckpointError(f"not readable as text: {error}", file=file) from error
    template = config.get("chat_template")
    if isinstance(template, list):
        # Several templates by name; the one for everyday use is "default".
        named = {t.get("name"): t.get("template") for t in template if isinstance(t, Mapping)}
        template = named.get("default")
    return template if isinstance(template, str) else None
