"""What recipes lose, measured on tiny models and on the real one."""

import json
import os
from pathlib import Path

import pytest
from typer.testing import CliRunner

from headrace.bench.quality import measure_quality
from headrace.cli.app import app
from headrace.errors import InvalidInput

WIKITEXT = Path(os.environ.get("HEADRACE_TEST_DATA", "../shared/data")) / "wikitext2" / "test.txt"


@pytest.mark.model
@pytest.mark.bars
@pytest.mark.parametrize("recipe", ["int8", "bf16", "float32"])
def test_the_real_model_passes_its_gate(smollm2, recipe, record_property):
    """Over 20,000 tokens, beside float32 on the same dequantized weights."""
    if not WIKITEXT.exists():
        pytest.skip(f"there is no {WIKITEXT}")
    found = measure_quality(str(smollm2), WIKITEXT.read_text(), recipe=recipe)
    record_property("quality", str(found.quality))
    assert found.tokens > 19_000
    assert found.failures == []
    if recipe == "int8":
        assert found.aim == []


@pytest.mark.model
def test_the_command(smollm2, tmp_path):
    text = tmp_path / "text.txt"
    text.write_text("The quick brown fox jumps over the lazy dog. " * 20)
    args = ["bench", "quality", str(text), "--model", str(smollm2), "--recipe", "float32"]
    result = CliRunner().invoke(
        app, [*args, "--tokens", "64", "--context", "32", "--json", "-"], catch_exceptions=False
    )
    assert result.exit_code == 0
    found = json.loads(result.stdout.splitlines()[-1])
    assert found["quality"]["positions"] == 2 * 15
    assert found["quality"]["logit_difference"] < 1e-3
    result = CliRunner().invoke(app, [*args, "--context", "4000"])
    assert result.exit_code == 1
    assert "tokens" in result.stderr


def test_bad_options(smollm2):
    with pytest.raises(InvalidInput) as caught:
        measure_quality(str(smollm2), "text", recipe="int3")
    assert caught.value.field == "recipe"
    with pytest.raises(InvalidInput) as caught:
        measure_quality(str(smollm2), "text", recipe="int8", context=1 << 20)
    assert caught.value.field == "context"
