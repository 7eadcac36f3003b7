"""The code in docs/agents.md, as it stands there."""

import re
from pathlib import Path

import pytest
from servers import NAME

PAGE = Path(__file__).parents[2] / "docs" / "agents.md"
COMMON, *LOOPS = re.findall(r"```python\n(.*?)```", PAGE.read_text(encoding="utf-8"), re.DOTALL)


@pytest.mark.model
@pytest.mark.parametrize("code", LOOPS, ids=["chat", "responses", "messages"])
def test_the_loops_of_the_page_run(server, code, capsys):
    ran = []
    names = {"server": server.url, "model": NAME}
    exec(COMMON, names)
    weather = names["get_weather"]
    names["get_weather"] = lambda **arguments: ran.append(arguments) or weather(**arguments)
    exec(code, names)
    assert ran
    assert all(isinstance(arguments["city"], str) for arguments in ran)
    assert capsys.readouterr().out
