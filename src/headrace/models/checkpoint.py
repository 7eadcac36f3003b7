"""What every checkpoint reader offers."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt

from headrace.models.stored import StoredWeight

SAFETENSORS_INDEX = "model.safetensors.index.json"


@dataclass(frozen=True, slots=True)
class TokenizerSource:
    """Where the tokenizer and chat template of a checkpoint are; exactly one of the two is set.

    Attributes:
        folder: A folder that may hold ``tokenizer.json``, ``tokenizer_config.json``,
            ``special_tokens_map.json``, ``chat_template.jinja`` and the like.
        gguf: The ``tokenizer.*`` metadata of a GGUF file, keys in full, arrays as lists.
    """

    folder: Path | None = None
    gguf: Mapping[str, Any] | None = None


class Checkpoint(Protocol):
    """A model on disk, in Hugging Face vocabulary whatever its file format.

    Attributes:
        path: The file or folder that was opened.
        config: As ``config.json`` has it: ``architectures``, ``model_type``, ``hidden_size``, rope parameters,
            ``eos_token_id`` (one id or a list), ... . Values are as found; a family's config parser checks them.
        tokenizer: Where tokenizer and chat template are.
    """

    @property
    def path(self) -> Path: ...  # noqa: D102

    @property
    def config(self) -> Mapping[str, Any]: ...  # noqa: D102

    @property
    def tokenizer(self) -> TokenizerSource: ...  # noqa: D102

    def names(self) -> list[str]:
        """Names of all weights, such as ``model.layers.0.self_attn.q_proj.weight``.

        A tensor for which there is no Hugging Face name keeps its own, so that loading reports it.
        """
        ...

    def shape(self, name: str) -> tuple[int, ...]:
        """A weight's shape, slowest dimension first.

        Raises:
            CheckpointError: There is no such tensor.
        """
        ...

    def read(self, name: str) -> npt.NDArray[np.float32]:
        """A weight as a new writable array, dequantized, rows in Hugging Face order.

        Raises:
            CheckpointError: There is no such tensor, or it cannot be read.
        """
        ...

    def stored_format(self, name: str) -> str:
        """The format in which ``stored`` gives a weight.

        Raises:
            CheckpointError: There is no such tensor.
        """
        ...

    def stored(self, name: str) -> StoredWeight:
        """A weight as the file holds it, rows in Hugging Face order.

        Formats other than float and blocks of 32 with one scale (see ``StoredWeight``) are dequantized: they come as
        ``f32``. Arrays may be read-only views of the file.

        Raises:
            CheckpointError: There is no such tensor, or it cannot be read.
        """
        ...

    def content_id(self) -> str:
        """32 hexadecimal digits that name these weights.

        Of the description (config, tensor names, shapes, formats) and of all bytes. Equal files have equal ids
        wherever they lie; it guards against mixing up models, not against forgery.
        """
        ...
