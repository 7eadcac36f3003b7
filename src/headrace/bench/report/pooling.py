"""Several rounds of one load as one account."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping, Sequence

import numpy as np

from headrace.bench.report.views import within
from headrace.bench.results.measure import cached_counts, user_tokens
from headrace.bench.results.samples import Floats, Samples
from headrace.bench.results.schema import Distribution, Estimate, Goodput, Lengths, Summary


def pool(summaries: Sequence[Summary], samples: Sequence[Samples], latencies: Mapping[str, Floats]) -> Summary:
    """One account of rounds of the same load, at least one.

    Latencies and shares are those of all rounds together, rates those of all windows together. The ends of every
    estimate are the lowest and the highest of the rounds: how far rounds differ says more than how well one of them is
    known.

    Args:
        summaries: One a round.
        samples: One a round.
        latencies: Of all rounds together, seconds.
    """
    if len(summaries) == 1:
        return summaries[0]
    seconds = np.array([each.window[1] - each.window[0] for each in summaries])
    weights = seconds / seconds.sum() if seconds.sum() > 0 else np.full(len(seconds), 1 / len(seconds))

    def over(value: Callable[[Summary], float | None]) -> Estimate:
        found = [(value(each), weight) for each, weight in zip(summaries, weights, strict=True)]
        known = [(each, weight) for each, weight in found if each is not None]
        total = sum(weight for _, weight in known)
        mean = sum(each * weight for each, weight in known) / total if total else 0.0
        return _ranged(float(mean), [each for each, _ in known])

    def rate(key: str) -> Callable[[Summary], float | None]:
        return lambda each: each.rates[key].value if key in each.rates else None

    names = dict.fromkeys(key for each in summaries for key in each.rates)
    rates = {key: over(rate(key)) for key in names}
    latency = {key: _distribution(key, values, summaries) for key, values in latencies.items() if len(values)}
    return Summary(
        window=(0.0, float(seconds.sum())),
        requests=sum(each.requests for each in summaries),
        succeeded=sum(each.succeeded for each in summaries),
        errors=dict(sum((Counter(each.errors) for each in summaries), Counter())),
        latency=latency,
        rates=rates,
        per_device={
            key: sum(each.per_device.get(key, 0.0) * weight for each, weight in zip(summaries, weights, strict=True))
            for key in names
        },
        cached_share=_cached_share(summaries, samples),
        goodput=_goodput(summaries, over),
        lengths=_lengths([each.lengths for each in summaries]),
        user_tokens=user_tokens(latency),
    )


def _ranged(value: float, rounds: Sequence[float]) -> Estimate:
    """A value with the range of what the rounds give."""
    # Rounding may put the value of equal rounds beside them.
    return Estimate(value, min(value, *rounds), max(value, *rounds)) if len(rounds) > 1 else Estimate(value)


def _distribution(key: str, values: Floats, summaries: Sequence[Summary]) -> Distribution:
    told = [each.latency[key] for each in summaries if key in each.latency]
    names = list(told[0].percentiles) if told else []
    return Distribution(
        count=len(values),
        mean=_ranged(float(values.mean()), [each.mean.value for each in told]),
        minimum=float(values.min()),
        maximum=float(values.max()),
        percentiles={
            name: _ranged(
                float(np.percentile(values, float(name[1:]))), [each.percentiles[name].value for each in told]
            )
            for name in names
        },
    )


def _cached_share(summaries: Sequence[Summary], samples: Sequence[Samples]) -> float | None:
    pairs = zip(samples, summaries, strict=True)
    counts = [cached_counts(each, within(each, summary.window)) for each, summary in pairs]
    told = [(cached.sum(), prompt.sum()) for cached, prompt in filter(None, counts)]
    return float(sum(cached for cached, _ in told) / sum(prompt for _, prompt in told)) if told else None


def _goodput(
    summaries: Sequence[Summary], over: Callable[[Callable[[Summary], float | None]], Estimate]
) -> Goodput | None:
    told = [(each.goodput, each.requests) for each in summaries if each.goodput is not None]
    if not told:
        return None
    met, due = sum(found.met for found, _ in told), sum(requests for _, requests in told)
    share = _ranged(met / due if due else 0.0, [found.share.value for found, requests in told if requests])
    rate = over(lambda each: None if each.goodput is None else each.goodput.rate.value)
    return Goodput(slo=told[0][0].slo, met=met, share=share, rate=rate)


def _lengths(each: Sequence[Lengths]) -> Lengths:
    told = [(found.tokens_per_event, found.output_tokens) for found in each if found.tokens_per_event is not None]
    events = sum(tokens / per for per, tokens in told if per)
    return Lengths(
        planned_prompt_tokens=sum(found.planned_prompt_tokens for found in each),
        prompt_tokens=sum(found.prompt_tokens for found in each),
        prompt_differs=sum(found.prompt_differs for found in each),
        output_tokens=sum(found.output_tokens for found in each),
        output_differs=sum(found.output_differs for found in each),
        output_uncounted=sum(found.output_uncounted for found in each),
        tokens_per_event=sum(tokens for _, tokens in told) / events if events else None,
    )
