"""`headrace bench serve` and `bench compare` as a user calls them, on a server that answers by a script."""

import json
import os
import re
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
from scripted_server import scripted
from service_law import Script

from headrace.bench.results.result_file import load_comparison, load_result, load_sweeps
from headrace.cli.app import load_verb
from headrace.cli.output import plain

DOCS = Path(__file__).parents[2] / "docs"
QUICK = ["--prompt-tokens", "16", "--output-tokens", "5"]


@pytest.fixture(scope="module")
def url():
    with scripted(Script(ttft=0.01, gap=0.002, slots=4)) as address:
        yield address


def bench(*arguments):
    command = [sys.executable, "-m", "headrace.cli", "bench", *map(str, arguments)]
    wide = {**os.environ, "COLUMNS": "200"}  # so that no cell is broken into lines
    return subprocess.run(command, capture_output=True, text=True, check=False, timeout=120, env=wide)


def test_a_table_a_file_and_a_page(url, tmp_path):
    done = bench(
        *("serve", url, "--requests", 40, "--rate", 40, "--slo", "ttft=1s", *QUICK),
        *("--json", tmp_path / "r.json", "--html", tmp_path / "r.html"),
    )
    assert done.returncode in (0, 3), done.stderr  # 3: this machine may be too busy to certify
    for label in ("TTFT", "TPOT", "ITL", "E2E", "Queue", "Output tokens", "generator"):
        assert label in done.stdout
    result = load_result(tmp_path / "r.json")
    assert (result.plan.requests, result.plan.arrivals, result.target.model) == (40, "poisson", "scripted")
    summary = result.rounds[0].summary
    assert summary.succeeded == summary.requests > 30
    assert summary.goodput.slo == {"ttft": 1.0}
    assert summary.lengths.prompt_differs == summary.lengths.output_differs == 0
    assert result.rounds[0].requests.prompt_tokens == [16] * 40
    assert "<html" in (tmp_path / "r.html").read_text(encoding="utf-8")


def test_json_on_standard_output_is_all_there_is(url):
    done = bench("serve", url, "--requests", 10, "--json", "-", *QUICK)
    result = json.loads(done.stdout)
    assert result["schema"] == "headrace.bench.serve/1"
    assert result["plan"]["arrivals"] == "closed"


def test_the_search_prints_its_trials(url, tmp_path):
    done = bench(
        *("serve", url, "--requests", 40, "--find-max-rate", "--slo", "ttft=100ms", "--tolerance", "50%"),
        *("--rate", 100, "--json", tmp_path / "s.json", *QUICK),
    )
    assert done.returncode in (0, 3), done.stderr
    search = load_result(tmp_path / "s.json").search
    assert search.failed_rate is not None
    assert len(search.points) >= 3
    assert "Highest rate" in done.stdout


def test_two_servers_in_turn(url, tmp_path):
    with scripted(Script(ttft=0.06, gap=0.002)) as slow:
        done = bench(
            *("serve", url, "--against", slow, "--requests", 20, "--concurrency", 2, "--json", tmp_path / "c.json"),
            *QUICK,
        )
    assert done.returncode in (0, 3), done.stderr
    comparison = load_comparison(tmp_path / "c.json")
    assert [len(comparison.a.rounds), len(comparison.b.rounds)] == [3, 3]
    (ttft,) = [ratio for ratio in comparison.ratios if ratio.measure == "ttft.p50"]
    assert ttft.verdict == "a"
    assert "no difference shown" in done.stdout or "is better" in done.stdout


def test_two_files(url, tmp_path):
    for name in ("a", "b"):
        bench("serve", url, "--requests", 20, "--json", tmp_path / f"{name}.json", *QUICK)
    done = bench("compare", tmp_path / "a.json", tmp_path / "b.json", "--json", tmp_path / "c.json")
    assert done.returncode in (0, 3), done.stderr
    assert "no difference shown" in done.stdout
    assert bench("compare", tmp_path / "a.json", tmp_path / "c.json").returncode == 1
    assert "a result is needed" in bench("compare", tmp_path / "a.json", tmp_path / "c.json").stderr


def test_a_list_of_loads_is_a_curve(url, tmp_path):
    done = bench(
        *("serve", url, "--concurrency", "1,2,8", "--requests", 16, "--slo", "ttft=1s", *QUICK),
        *("--json", tmp_path / "s.json", "--html", tmp_path / "s.html"),
    )
    assert done.returncode in (0, 3), done.stderr
    for text in ("concurrency", "output tokens/s", "a user", "ITL p99", "met SLO"):
        assert text in done.stdout
    assert "8 at a time" in done.stderr
    result = load_result(tmp_path / "s.json")
    assert (result.sweep.over, result.sweep.loads) == ("concurrency", [1.0, 2.0, 8.0])
    assert len(result.rounds) == 3
    assert "Throughput against interactivity" in (tmp_path / "s.html").read_text(encoding="utf-8")


def test_curves_of_two_servers_and_of_several_files(url, tmp_path):
    with scripted(Script(ttft=0.01, gap=0.01)) as slow:
        done = bench(
            *("serve", url, "--against", slow, "--rate", "20,40", "--requests", 16, *QUICK),
            *("--json", tmp_path / "both.json"),
        )
    assert done.returncode in (0, 3), done.stderr
    both = load_sweeps(tmp_path / "both.json")
    assert [each.result.sweep.loads for each in both.sweeps] == [[20.0, 40.0]] * 2
    assert both.sweeps[0].result.rounds[0].summary.user_tokens.value > 100
    assert both.sweeps[1].result.rounds[0].summary.user_tokens.value < 110
    for name in ("a", "b", "c"):
        bench("serve", url, "--rate", "40,80", "--requests", 16, "--json", tmp_path / f"{name}.json", *QUICK)
    files = [tmp_path / f"{name}.json" for name in "abc"]
    done = bench("compare", *files, "--html", tmp_path / "abc.html", "--json", tmp_path / "abc.json")
    assert done.returncode == 0, done.stderr
    assert [each.name for each in load_sweeps(tmp_path / "abc.json").sweeps] == ["a", "b", "c"]
    assert "3 sweeps" in (tmp_path / "abc.html").read_text(encoding="utf-8")
    bench("serve", url, "--requests", 8, "--json", tmp_path / "plain.json", *QUICK)
    for wrong, says in (
        ([files[0]], "two sweeps at least"),
        ([files[0], tmp_path / "plain.json"], "compare like with like"),
        ([tmp_path / "plain.json"] * 3, "two results are compared, not 3"),
    ):
        done = bench("compare", *wrong)
        assert (done.returncode, says in done.stderr) == (1, True), done.stderr


def test_nothing_that_succeeds_is_not_certified():
    with scripted(Script(faults={"http": (1, 0)})) as url:
        done = bench("serve", url, "--requests", 5, *QUICK)
    assert done.returncode == 3
    assert "NOT CERTIFIED" in done.stdout
    assert "http 429: too much" in done.stdout


def test_rates_are_there_where_all_sessions_begin_at_once(url, tmp_path):
    bench("serve", url, "--requests", 4, "--concurrency", 4, "--json", tmp_path / "r.json", *QUICK)
    summary = load_result(tmp_path / "r.json").rounds[0].summary
    assert summary.requests == 4
    assert summary.rates["requests_completed"].value > 10
    assert summary.rates["output_tokens"].value > 50


def test_a_file_says_the_same_of_its_requests_as_its_summary(url, tmp_path):
    bench("serve", url, "--requests", 40, "--rate", 200, "--json", tmp_path / "r.json", *QUICK)
    found = load_result(tmp_path / "r.json").rounds[0]
    begin, close = found.summary.window
    assert sum(begin <= due <= close for due in found.requests.due) == found.summary.requests == 32
    assert found.requests.due[-1] == pytest.approx(40 / 200, abs=1e-5), "so many requests take so long at such a rate"


def test_links_stay_links_and_devices_devices(url, tmp_path):
    (tmp_path / "link.json").symlink_to(tmp_path / "real.json")
    bench("serve", url, "--requests", 4, "--json", tmp_path / "link.json", *QUICK)
    assert (tmp_path / "link.json").is_symlink()
    assert load_result(tmp_path / "real.json")
    os.mkfifo(tmp_path / "pipe")
    with subprocess.Popen(["cat", tmp_path / "pipe"], stdout=subprocess.PIPE) as reader:
        bench("serve", url, "--requests", 4, "--json", tmp_path / "pipe", *QUICK)
        assert json.loads(reader.communicate(timeout=30)[0])["schema"] == "headrace.bench.serve/1"


def test_a_closed_stream_ends_no_measurement(url):
    command = [sys.executable, "-m", "headrace.cli", "bench", "serve", url, "--requests", "4", *QUICK]
    for closed in ("2>&-", ">&-"):
        shell = ["sh", "-c", f'"$@" {closed}', "sh", *command]
        done = subprocess.run(shell, capture_output=True, text=True, check=False)
        assert done.returncode in (0, 3), (done.stdout, done.stderr)
        assert "output tokens" in (done.stdout + done.stderr).lower()


def test_what_a_server_says_cannot_command_the_terminal():
    assert plain("\x1b[2Jred\u202e\x07") == "\ufffd[2Jred\ufffd\ufffd"


def test_ctrl_c_reports_what_was_seen(url):
    command = [sys.executable, "-m", "headrace.cli", "bench", "serve", url, "--rate", "20", "--requests", "5000"]
    process = subprocess.Popen([*command, *QUICK], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    time.sleep(5)
    process.send_signal(signal.SIGINT)
    out, err = process.communicate(timeout=60)
    assert process.returncode == 3, err
    assert "interrupted" in out
    assert "TTFT" in out


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (["--rate", "fast"], "--rate"),
        (["--rate", "0"], "--rate"),
        (["--rate", "-1"], "--rate"),
        (["--rate", "4", "--concurrency", "2"], "--rate"),
        (["--prompt-tokens", "none"], "--prompt-tokens"),
        (["--prompt-tokens", "99999", "--output-tokens", "9999"], "context"),
        (["--turns", "uniform:1:3", "--workload", "shared-prefix"], "--turns"),
        (["--workload", "mooncake"], "--trace"),
        (["--trace", "README.md"], "--trace"),
        (["--find-max-rate"], "--slo"),
        (["--find-max-rate", "--slo", "ttft=1s", "--concurrency", "2"], "--find-max-rate"),
        (["--find-max-rate", "--slo", "ttft=1s", "--rate", "1:2"], "--arrivals"),
        (["--slo", "ttft=1"], "--slo"),
        (["--slo", "speed=1s"], "--slo"),
        (["--warmup", "120%"], "--warmup"),
        (["--duration", "soon"], "--duration"),
        (["--header", "nocolon"], "--header"),
        (["--body", "[1]"], "--body"),
        (["--arrivals", "trace"], "--arrivals"),
        (["--burstiness", "3", "--rate", "3"], "--burstiness"),
        (["--target-share", "101%", "--find-max-rate", "--slo", "ttft=1s"], "--target-share"),
        (["--timeout", "never"], "--timeout"),
        (["--warmup", "60s", "--rate", "10", "--requests", "10"], "--warmup"),
        (["--json", "/nowhere/r.json"], "--json"),
        (["--rate", "nan", "--duration", "9s"], "--rate"),
        (["--rate", "inf", "--duration", "9s"], "--rate"),
        (["--rate", "-4", "--duration", "9s"], "--rate"),
        (["--rate", "1:2:3"], "--rate"),
        (["--rate", "2,1"], "--rate"),
        (["--rate", "1,"], "--rate"),
        (["--rate", "1:2,4"], "--rate"),
        (["--rate", "1,2", "--rounds", "2"], "--rounds"),
        (["--rate", "1,2", "--find-max-rate", "--slo", "ttft=1s"], "--rate"),
        (["--rate", "1,2", "--concurrency", "1,2"], "--rate"),
        (["--concurrency", "many"], "--concurrency"),
        (["--concurrency", "0"], "--concurrency"),
        (["--concurrency", "8,4"], "--concurrency"),
        (["--concurrency", "1,2,"], "--concurrency"),
        (["--arrivals", "poisson"], "--rate"),
        (["--arrivals", "gamma", "--burstiness", "0", "--rate", "4", "--duration", "9s"], "--burstiness"),
        (["--duration", "0s"], "--duration"),
        (["--warmup", "60%", "--cooldown", "50%"], "--warmup"),
        (["--tolerance", "0.1%", "--find-max-rate", "--slo", "ttft=1s"], "--tolerance"),
        (["--tolerance", "5%"], "--tolerance"),
        (["--against-model", "x"], "--against-model"),
        (["--turns", "2"], "--turns"),
        (["--workload", "chat", "--system-tokens", "9"], "--system-tokens"),
        (["--scale", "2"], "--scale"),
        (["--workload", "azure", "--output-tokens", "9"], "--output-tokens"),
        (["--api", "chat", "--prompts", "tokens"], "--prompts"),
        (["--body", '{"max_tokens": 3}'], "--body"),
        (["--api-key", "na\u00efve"], "--api-key"),
        (["--header", "Content-Length: 5"], "--header"),
        (["--body", '{"x": NaN}'], "--body"),
        (["--body", '{"x": "\\ud800"}'], "--body"),
        (["--salt", "\x1b[31m"], "--salt"),
        (["--model", ""], "--model"),
        (["--timeout", "0s"], "--timeout"),
        (["--html", "-"], "--html"),
        (["--json", "same", "--html", "same"], "--html"),
        (["--rate", ""], "--rate"),
        (["--html", "/nowhere/r.html"], "--html"),
    ],
)
def test_options_that_cannot_be(url, arguments, says):
    done = bench("serve", url, *arguments)
    assert done.returncode == 1, (done.stdout, done.stderr)
    (line,) = done.stderr.strip().splitlines()
    assert line.startswith("error: ")
    assert says in line


def test_no_server():
    done = bench("serve", "http://127.0.0.1:9")
    assert done.returncode == 1
    assert "no server answers at http://127.0.0.1:9" in done.stderr


def test_every_option_is_documented():
    command = load_verb("bench").commands["serve"]
    text = (DOCS / "bench-serve.md").read_text(encoding="utf-8")
    documented = set(re.findall(r"`(--[a-z-]+)`", text))
    options = {name for parameter in command.params for name in parameter.opts if name.startswith("--")}
    assert options - {"--help"} <= documented
    assert all(parameter.help for parameter in command.params)
