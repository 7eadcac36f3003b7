import json

from typer.testing import CliRunner

from headrace.bench.tiers import measure_tiers
from headrace.cli.app import app


def test_every_way_is_measured_and_nothing_is_left(tmp_path):
    found = measure_tiers(tmp_path, tokens=256, repeat=2)
    assert found.nbytes == 16 * 368_640
    seconds = [value for key, value in vars_of(found).items() if key not in ("tokens", "nbytes")]
    assert len(seconds) == 8
    assert all(0 < value < 60 for value in seconds)
    assert not list(tmp_path.iterdir())


def vars_of(found):
    return {name: getattr(found, name) for name in found.__struct_fields__}


def test_the_command_prints_a_table_or_json(tmp_path):
    runner = CliRunner()
    args = ["bench", "tiers", str(tmp_path), "--tokens", "100", "--repeat", "1"]
    shown = runner.invoke(app, args)
    assert shown.exit_code == 0
    assert "host memory to arena" in shown.stdout
    told = runner.invoke(app, [*args, "--json", "-"])
    assert json.loads(told.stdout.splitlines()[-1])["tokens"] == 100
