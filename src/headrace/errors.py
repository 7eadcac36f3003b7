"""The errors that Headrace raises on purpose.

Every error names what is wrong and what to do about it. ``InvalidInput`` is the caller's fault and becomes
an HTTP 4xx; ``CheckpointError`` is the file's; ``EngineError`` is ours.
"""

from __future__ import annotations


class HeadraceError(Exception):
    """Base class: catch it to catch everything that Headrace raises on purpose."""


class InvalidInput(HeadraceError):
    """A value that the caller gave cannot be used.

    Args:
        message: What is wrong and what would be right, in one sentence.
        field: The path of the offending field as the caller wrote it, such as ``messages[0].content``.
        code: A short machine-readable name, such as ``context_length_exceeded``.
    """

    def __init__(self, message: str, *, field: str | None = None, code: str | None = None) -> None:
        super().__init__(f"{field}: {message}" if field else message)
        self.message = message
        self.field = field
        self.code = code

    def renamed(self, field: str) -> InvalidInput:
        """The same error under the name that the caller of the caller gave the field."""
        return InvalidInput(self.message, field=field, code=self.code)


class CheckpointError(HeadraceError):
    """A model file cannot be used: unreadable, truncated, of an unknown kind, or not fitting its own config.

    Args:
        message: What is wrong, in one sentence.
        file: The file (or folder) that was read.
        tensor: The tensor concerned, if it is about one.
    """

    def __init__(self, message: str, *, file: object, tensor: str | None = None) -> None:
        where = f"{file}, tensor {tensor!r}" if tensor else str(file)
        super().__init__(f"{where}: {message}")
        self.message = message
        self.file = str(file)
        self.tensor = tensor


class EngineError(HeadraceError):
    """The engine could not finish a request, through no fault of the request."""


class ConstraintError(HeadraceError):
    """What constrains a sample's output cannot follow it any further; the sample ends with this error.

    Args:
        message: Why, in one sentence.
    """

    def __init__(self, message: str) -> None:
        super().__init__(message)
        self.message = message
