"""Options of ``headrace serve`` that are taken apart by hand."""

import pytest

from headrace.cli.serve import _keys, _weights
from headrace.errors import InvalidInput
from headrace.gateway.config import ApiKey


def test_keys_come_from_options_and_from_a_file(tmp_path):
    file = tmp_path / "keys"
    file.write_text("k2 research \n\n  k3 sales\nk1 ours\n")
    names = ("k1", "ours"), ("k2", "research"), ("k3", "sales"), ("k1", "ours")
    assert _keys(["k1 ours"], file) == tuple(ApiKey(*name) for name in names)
    assert _keys([], None) == ()


@pytest.mark.parametrize("given", [[""], [" "], [" k1 ours"], ["k1", ""], ["k1 ours", "k1 theirs"], ["k1", "k1 ours"]])
def test_keys_that_say_nothing_or_two_things_are_refused(given):
    with pytest.raises(InvalidInput) as caught:
        _keys(given, None)
    assert caught.value.field == "api_key"


def test_a_file_without_keys_is_refused(tmp_path):
    (tmp_path / "keys").write_text("\n \n")
    with pytest.raises(InvalidInput) as caught:
        _keys(["k1"], tmp_path / "keys")
    assert caught.value.field == "api_key_file"


def test_weights_belong_to_names():
    assert _weights(["a=2", "b=c=0.5"]) == {"a": 2.0, "b=c": 0.5}


@pytest.mark.parametrize("given", [["a"], ["=2"], ["a="], ["a=0"], ["a=-1"], ["a=inf"], ["a=nan"], ["a=1", "a=2"]])
def test_weights_that_mean_nothing_are_refused(given):
    with pytest.raises(InvalidInput) as caught:
        _weights(given)
    assert caught.value.field == "tenant_weight"
