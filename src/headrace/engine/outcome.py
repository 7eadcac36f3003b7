"""Pure functions of the step loop: settings for a slot, how a sample ends."""

from __future__ import annotations

import secrets

import numpy as np

from headrace.engine.messages import Finish, PositionLogprobs
from headrace.engine.sampling_params import SamplingParams
from headrace.engine.sequence import Sequence
from headrace.engine.timeline import Timeline
from headrace.errors import ConstraintError, HeadraceError, InvalidInput
from headrace.runtime.batch import Pooling, SlotSampling, TokenLogprobs


def seed_of(params: SamplingParams) -> int:
    """The request's seed, or a fresh one."""
    return secrets.randbits(63) if params.seed is None else params.seed


def slot_sampling(
    params: SamplingParams, seed: int, index: int, stop_ids: frozenset[int], pooling: Pooling | None = None
) -> SlotSampling:
    """The executor's part of the sampling parameters; of a prompt that is to be embedded, how."""
    if pooling is not None:
        return SlotSampling(pooling=pooling)
    return SlotSampling(
        temperature=params.temperature,
        top_k=max(params.top_k, 0),
        top_p=params.top_p,
        min_p=params.min_p,
        repetition_penalty=params.repetition_penalty,
        presence_penalty=params.presence_penalty,
        frequency_penalty=params.frequency_penalty,
        bias_tokens=np.array(list(params.logit_bias), np.int32),
        bias_values=np.array(list(params.logit_bias.values()), np.float32),
        seed=seed,
        sample_index=index,
        min_tokens=params.min_tokens,
        suppress=np.array(sorted(stop_ids), np.int32),
        logprobs=params.logprobs,
        prompt_logprobs=params.prompt_logprobs if index == 0 else None,
    )


def failure(error: HeadraceError) -> Finish:
    """How a sample ends that an error ends."""
    return Finish("error", message=str(error), unfit=isinstance(error, InvalidInput | ConstraintError))


def finish_of(sequence: Sequence, token: int) -> Finish | None:
    """How a sample ends with the token just taken, whatever a constraint says, or None when it goes on."""
    params = sequence.params
    if token in sequence.stop_ids:
        stop = token if token in params.stop_token_ids else None
        hidden = 0 if params.include_stop_str_in_output else 1
        return Finish("stop", stop=stop, hidden_tokens=hidden, timeline=timeline_of(sequence))
    if sequence.known >= sequence.limit:
        return Finish("length", timeline=timeline_of(sequence))
    return None


def timeline_of(sequence: Sequence) -> Timeline:
    """The sample's stamps as a record."""
    return Timeline(
        received=sequence.received,
        tokenized=sequence.tokenized,
        routed=sequence.routed,
        queued=sequence.queued,
        first_scheduled=sequence.first_scheduled,
        prefill_done=sequence.prefill_done,
        first_token=sequence.first_token,
        last_token=sequence.last_token,
    )


def position_logprobs(entry: TokenLogprobs) -> PositionLogprobs:
    """The executor's record as the wire has it."""
    top = list(zip(entry.top_tokens.tolist(), entry.top_logprobs.tolist(), strict=True))
    return PositionLogprobs(entry.token, entry.logprob, entry.rank, top)
