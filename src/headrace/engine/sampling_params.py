"""``SamplingParams``: how the tokens of one request are chosen and when it ends. Names as in vLLM."""

from __future__ import annotations

import math
from collections.abc import Sequence

import msgspec

from headrace.errors import InvalidInput

MAX_LOGPROBS = 20
MAX_N = 128
MAX_GRAMMAR_BYTES = 1 << 20


class SamplingParams(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """How the tokens of one request are chosen and when it ends.

    The order of operations on the float32 logits of a position: grammar and ``min_tokens`` masks, ``logit_bias``,
    ``repetition_penalty`` (CTRL, arXiv:1909.05858), ``presence_penalty`` and ``frequency_penalty`` (OpenAI's
    definition, over output tokens), ``temperature``, ``top_k``, ``top_p`` (arXiv:1904.09751), ``min_p``
    (arXiv:2407.01082), then one draw by inverse transform from a random number that is a function of
    (seed, sample index, position) alone.

    Attributes:
        n: Independent samples of the same prompt.
        temperature: 0 (and below 1e-5) is greedy: the token with the largest logit, the smallest id on a tie.
        top_k: Keep the k most likely tokens; 0 or -1 keeps all.
        top_p: Keep the smallest set of tokens whose probability reaches top_p.
        min_p: Drop tokens less likely than min_p times the likeliest.
        repetition_penalty: Over prompt and output tokens; 1 is none.
        presence_penalty: Subtracted once from every token already in the output.
        frequency_penalty: Subtracted per occurrence in the output.
        logit_bias: Token id to a value added to its logit.
        seed: Equal seeds give equal tokens for equal prompts; None draws one per request.
        stop: Strings that end the output; the string itself is not returned.
        stop_token_ids: Tokens that end the output.
        grammar: A grammar's source, which the replica's constraint factory compiles. The output follows it and ends
            where it ends, so ``min_tokens`` and ``ignore_eos`` are not for such a request.
        reading: How the output is taken apart, for the replica's constraint factory: stop strings depend on it.
        min_tokens: No end of sequence, stop token or stop string before this many tokens.
        max_tokens: At most this many tokens; None is whatever the context leaves.
        ignore_eos: The model's end-of-sequence token is a token like any other.
        logprobs: Log probabilities to return per output token, beside the chosen token's; None is none.
            They are *raw*: log-softmax of the model's logits before bias, penalties, temperature and cuts.
        prompt_logprobs: The same for each prompt token but the first. The prompt is then computed whole.
        include_stop_str_in_output: Return the stop string too.
        skip_special_tokens: Leave special tokens out of the text.
    """

    n: int = 1
    temperature: float = 1.0
    top_k: int = 0
    top_p: float = 1.0
    min_p: float = 0.0
    repetition_penalty: float = 1.0
    presence_penalty: float = 0.0
    frequency_penalty: float = 0.0
    logit_bias: dict[int, float] = {}
    seed: int | None = None
    stop: tuple[str, ...] = ()
    stop_token_ids: tuple[int, ...] = ()
    grammar: str | None = None
    reading: str | None = None
    min_tokens: int = 0
    max_tokens: int | None = 16
    ignore_eos: bool = False
    logprobs: int | None = None
    prompt_logprobs: int | None = None
    include_stop_str_in_output: bool = False
    skip_special_tokens: bool = True

    def __post_init__(self) -> None:
        # A list or a lone string is what users write; keep the record hashable and uniform.
        stop = (self.stop,) if isinstance(self.stop, str) else tuple(self.stop or ())
        msgspec.structs.force_setattr(self, "stop", stop)
        msgspec.structs.force_setattr(self, "stop_token_ids", tuple(self.stop_token_ids or ()))
        self._validate()

    def _validate(self) -> None:
        _check_int("n", self.n, 1, MAX_N)
        _check_float("temperature", self.temperature, 0.0, 100.0)
        _check_int("top_k", self.top_k, -1, 2**31 - 1)
        _check_float("top_p", self.top_p, 0.0, 1.0, open_low=True)
        _check_float("min_p", self.min_p, 0.0, 1.0)
        # Logits are divided by it: a smaller one would make them infinite.
        _check_float("repetition_penalty", self.repetition_penalty, 0.01, 100.0)
        _check_float("presence_penalty", self.presence_penalty, -100.0, 100.0)
        _check_float("frequency_penalty", self.frequency_penalty, -100.0, 100.0)
        if self.seed is not None:
            _check_int("seed", self.seed, -(2**63), 2**63 - 1)
        if self.max_tokens is not None:
            _check_int("max_tokens", self.max_tokens, 1, 2**31 - 1)
        _check_int("min_tokens", self.min_tokens, 0, self.max_tokens or 2**31 - 1)
        for name in ("logprobs", "prompt_logprobs"):
            value = getattr(self, name)
            if value is not None:
                _check_int(name, value, 0, MAX_LOGPROBS)
        for i, stop in enumerate(self.stop):
            if not isinstance(stop, str) or not stop:
                raise InvalidInput("a stop string must be a non-empty string", field=f"stop[{i}]")
        if self.grammar is not None:
            self._check_grammar(self.grammar)
        _check_token_map(self.logit_bias)
        _check_token_ids("stop_token_ids", self.stop_token_ids)

    def _check_grammar(self, source: object) -> None:
        if not isinstance(source, str) or not source or len(source.encode(errors="replace")) > MAX_GRAMMAR_BYTES:
            raise InvalidInput(f"must be a string of 1 to {MAX_GRAMMAR_BYTES} bytes", field="grammar")
        for field in ("min_tokens", "ignore_eos"):
            if getattr(self, field):
                raise InvalidInput("is not for a request with a grammar, which says where its output ends", field=field)

    def check_vocabulary(self, vocab_size: int) -> None:
        """Raise ``InvalidInput`` where a token id named here is not below ``vocab_size``, or too few can be drawn."""
        for i, token in enumerate(self.stop_token_ids):
            if token >= vocab_size:
                raise InvalidInput(_outside(token, vocab_size), field=f"stop_token_ids[{i}]")
        if self.min_tokens and len(set(self.stop_token_ids)) > vocab_size // 2:
            raise InvalidInput("with min_tokens, at most half of the vocabulary may stop", field="stop_token_ids")
        for token in self.logit_bias:
            if token >= vocab_size:
                raise InvalidInput(_outside(token, vocab_size), field=f"logit_bias.{token}")


def _outside(token: int, vocab_size: int) -> str:
    return f"token id {token} is outside the vocabulary (0 to {vocab_size - 1})"


def _check_int(field: str, value: object, low: int, high: int) -> None:
    if isinstance(value, bool) or not isinstance(value, int) or not low <= value <= high:
        raise InvalidInput(f"must be an integer from {low} to {high}, got {value!r}", field=field)


def _check_float(field: str, value: object, low: float, high: float, *, open_low: bool = False) -> None:
    number = isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value)
    if not number or not low <= value <= high or (open_low and value == low):  # type: ignore[operator]
        bounds = f"above {low:g}, up to {high:g}" if open_low else f"from {low:g} to {high:g}"
        raise InvalidInput(f"must be a finite number {bounds}, got {value!r}", field=field)


def _check_token_ids(field: str, tokens: Sequence[int]) -> None:
    for i, token in enumerate(tokens):
        _check_int(f"{field}[{i}]", token, 0, 2**31 - 1)


def _check_token_map(bias: dict[int, float]) -> None:
    for token, value in bias.items():
        _check_int(f"logit_bias.{token}", token, 0, 2**31 - 1)
        _check_float(f"logit_bias.{token}", value, -100.0, 100.0)
