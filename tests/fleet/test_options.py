"""Options that cannot be run are refused by name, before anything is loaded."""

import pytest

from headrace.errors import InvalidInput
from headrace.fleet.options import EngineOptions


@pytest.mark.parametrize(
    ("option", "value"),
    [
        ("threads", 0),
        ("threads", 100_000),
        ("context_length", 1),
        ("max_running", 0),
        ("max_running", 10**6),
        ("max_batch_tokens", 0),
        ("max_step_ms", -1.0),
        ("objective", "speed"),
        ("policy", "random"),
        ("slo_ttft_ms", 0.0),
        ("slo_itl_ms", float("inf")),
        ("tenant_weights", {"a": 0.0}),
        ("max_step_ms", float("nan")),
    ],
)
def test_an_option_out_of_range_is_named(option, value):
    with pytest.raises(InvalidInput) as caught:
        EngineOptions(path="m", name="m", **{option: value})
    assert caught.value.field == option


@pytest.mark.parametrize(
    ("objective", "seconds", "policy"), [("throughput", 0.5, "fcfs"), ("latency", 0.025, "fcfs"), ("slo", 0.04, "slo")]
)
def test_an_objective_says_how_long_steps_are_and_who_comes_first(objective, seconds, policy):
    limits = EngineOptions(path="m", name="m", objective=objective, slo_itl_ms=50.0).limits()
    assert limits.max_step_seconds == pytest.approx(seconds)
    assert limits.policy == policy


@pytest.mark.parametrize(
    ("field", "options"),
    [
        ("recipe", {"executor": "eager", "recipe": "bf16"}),
        ("recipe", {"executor": "auto", "dtype": "bfloat16", "recipe": "bf16"}),
        ("numerics", {"executor": "eager", "numerics": "free"}),
        ("dtype", {"executor": "compiled", "dtype": "bfloat16"}),
        ("tenant_weights", {"tenant_weights": {"a": 2.0}}),
        ("host_tier", {"host_tier": 1, "prefix_cache": False}),
        ("disk_tier", {"disk_tier": "here", "prefix_cache": False}),
        ("disk_tier_size", {"disk_tier": "here", "disk_tier_size": 0}),
    ],
)
def test_what_only_the_other_executor_does_is_refused(field, options):
    with pytest.raises(InvalidInput) as caught:
        EngineOptions(path="m", name="m", **options)
    assert caught.value.field == field
