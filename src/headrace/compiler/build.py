"""A generated program to a loaded library."""

from __future__ import annotations

import ctypes
from pathlib import Path

from headrace.compiler.codegen.program import ProgramSource
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
    flags = ("-O3", *cpu_features().compile_flags()) if flags is None else flags
    return Source(name, program.text, ((HEADER.name, HEADER.read_text()),), flags)


def load_program(name: str, program: ProgramSource, builder: Builder | None = None) -> ctypes.CDLL:
    """Compile a program, unless that was done before, and load it.

    Raises:
        ToolchainError: There is no compiler, or it fails.
    """
    return (builder or Builder()).load(native_source(name, program))
