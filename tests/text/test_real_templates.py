"""The chat templates that models ship, against Transformers: the same text to the byte, or both refuse."""

from __future__ import annotations

import random
from collections.abc import Iterator
from datetime import datetime
from typing import Any

import pytest
from conversations import conversation
from real_templates import real_templates

from headrace.errors import InvalidInput
from headrace.text import ChatTemplate, chat_template

TOKENS = {"bos_token": "<s>", "eos_token": "</s>", "unk_token": "<unk>", "pad_token": "<pad>"}


class _Stopped(datetime):
    @classmethod
    def now(cls, tz: Any = None) -> datetime:
        return datetime(2026, 2, 3, 4, 5, 6, tzinfo=tz)


@pytest.fixture(autouse=True)
def _one_time(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Templates show the time; it must not pass between the two renderings."""
    from transformers.utils import chat_template_utils

    monkeypatch.setattr(chat_template, "datetime", _Stopped)
    monkeypatch.setattr(chat_template_utils, "datetime", _Stopped)
    return


@pytest.fixture(scope="module")
def reference() -> Any:
    """A tokenizer with no vocabulary to speak of: what is asked of it is ``apply_chat_template``."""
    from tokenizers import Tokenizer, models
    from transformers import PreTrainedTokenizerFast

    return PreTrainedTokenizerFast(tokenizer_object=Tokenizer(models.WordLevel({}, "<unk>")), **TOKENS)


def differences(reference: Any, count: int) -> tuple[list[str], int, int]:
    """What differs over so many conversations a template; how many both rendered, and both refused."""
    found, rendered, refused = [], 0, 0
    for name, source in real_templates().items():
        template = ChatTemplate(source, TOKENS)
        for seed in range(count):
            messages, options = conversation(random.Random(f"{name} {seed}"))
            try:
                ours = template.render(messages, **options)
            except InvalidInput as error:
                ours = None
                reason = error
            try:
                theirs = reference.apply_chat_template(messages, chat_template=source, tokenize=False, **options)
            except Exception as error:
                theirs, reason = None, error
            if ours != theirs:
                found.append(f"{name} {seed}: {_where(ours, theirs) if ours and theirs else reason}")
            rendered += ours is not None
            refused += ours is None
    return found, rendered, refused


def _where(ours: str, theirs: str) -> str:
    at = next((i for i, (a, b) in enumerate(zip(ours, theirs, strict=False)) if a != b), 0)
    return f"{ours[max(0, at - 40) : at + 40]!r} is not {theirs[max(0, at - 40) : at + 40]!r}"


def test_renders_as_transformers(reference: Any):
    found, rendered, refused = differences(reference, 10)
    assert not found, "\n".join(found)
    assert rendered > 2 * refused


@pytest.mark.bars
def test_renders_as_transformers_on_many_conversations(reference: Any):
    found, rendered, refused = differences(reference, 100)
    print(f"{rendered} rendered by both, {refused} refused by both")
    assert not found, "\n".join(found)
