"""Ratios of a measure of two servers, with their 95 % confidence intervals."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np

from headrace.bench.results.schema import Estimate
from headrace.bench.results.statistics import student_t


def centre(rounds: Sequence[Estimate]) -> float:
    """The geometric mean; of rounds of which one is 0 or less, the plain one."""
    values = [each.value for each in rounds]
    if min(values) <= 0:
        return sum(values) / len(values)
    return math.exp(sum(math.log(value) for value in values) / len(values))


def paired_ratio(a: Sequence[Estimate], b: Sequence[Estimate]) -> Estimate:
    """The ratio over pairs of rounds, at least 2, with Student's t interval of its logarithm. Values above 0."""
    logs = np.log([each.value for each in a]) - np.log([each.value for each in b])
    middle = float(logs.mean())
    half = student_t(len(logs) - 1) * float(logs.std(ddof=1)) / math.sqrt(len(logs))
    return Estimate(math.exp(middle), _exp(middle - half), _exp(middle + half))


def combined_ratio(a: Sequence[Estimate], b: Sequence[Estimate]) -> Estimate:
    """The ratio of two independent figures from their own intervals, rounds as independent too. Values above 0.

    The distances from each figure to the ends of its interval are added in squares, on the logarithm, so that lopsided
    intervals stay so (the method of variance estimates recovery: Zou and Donner, Statistics in Medicine 27, 2008).
    An end is None where one of those that it needs is not known, or is 0.
    """
    value = math.log(centre(a)) - math.log(centre(b))
    down = _distance(a, upwards=False), _distance(b, upwards=True)
    up = _distance(a, upwards=True), _distance(b, upwards=False)
    low = None if None in down else _exp(value - math.hypot(*(each or 0.0 for each in down)))
    high = None if None in up else _exp(value + math.hypot(*(each or 0.0 for each in up)))
    return Estimate(math.exp(value), low, high)


def _exp(power: float) -> float | None:
    """None where it is beyond what a number can hold."""
    return math.exp(power) if abs(power) < 700 else None


def _distance(rounds: Sequence[Estimate], *, upwards: bool) -> float | None:
    """How far the mean logarithm reaches up or down."""
    distances = []
    for each in rounds:
        end = each.high if upwards else each.low
        if end is None or end <= 0:
            return None
        distances.append(math.log(end) - math.log(each.value))
    return math.hypot(*distances) / len(distances)
