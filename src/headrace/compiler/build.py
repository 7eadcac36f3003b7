"""A generated program to a loaded library."""

from __future__ import annotations

import ctypes
import re
from pathlib import Path

from headrace.compiler.codegen.program import ProgramSource
from headrace.compiler.codegen.regions import TRIAL, Region
from headrace.compiler.native.build import Builder, Source
from headrace.compiler.native.cpu import cpu_features

HEADER = Path(__file__).with_name("codegen") / "headrace.h"


def native_source(name: str, program: ProgramSource, flags: tuple[str, ...] | None = None) -> Source:
    """The program as a C file for this machine.

    Args:
        name: For people.
        program: What to compile.
        flags: Instead of those for this processor.
    """
    return _source(name, program.text, flags)


def load_program(name: str, program: ProgramSource, builder: Builder | None = None) -> ctypes.CDLL:
    """Compile a program, unless that was done before, and load it.

    Raises:
        ToolchainError: There is no compiler, or it fails.
    """
    return (builder or Builder()).load(native_source(name, program))


def region_source(region: Region, flags: tuple[str, ...] | None = None) -> Source:
    """A block of a program as a C file for this machine; see ``native_source``."""
    return _source(re.sub(r"\W+", "-", region.block), region.text, flags)


def driver_source() -> Source:
    """What runs a step of such blocks."""
    return _source("trial", TRIAL, None)


def _source(name: str, text: str, flags: tuple[str, ...] | None) -> Source:
    flags = ("-O3", *cpu_features().compile_flags()) if flags is None else flags
    return Source(name, text, ((HEADER.name, HEADER.read_text()),), flags)
