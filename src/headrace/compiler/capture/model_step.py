"""A family's model as one function of a step's tensors."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any, Protocol, cast

import torch
from torch import Tensor, nn

from headrace.compiler.capture.arguments import Argument, without_memory
from headrace.compiler.capture.paged_attention import PagedAttention, Step
from headrace.compiler.ir import Axis


class Decoder(Protocol):
    """What a family's module offers."""

    def hidden(self, tokens: Tensor, positions: Tensor, state: Any) -> Tensor:
        """Normalized hidden vectors."""

    def logits(self, hidden: Tensor) -> Tensor:
        """Logits of some of them."""


@dataclass(frozen=True, slots=True)
class LayerState:
    """What attention keeps of a token in one layer: heads and their sizes."""

    heads: int
    key_dim: int
    value_dim: int


class ModelStep(nn.Module):
    """The whole step: tokens in, logits and hidden vectors of selected ones out, keys and values written.

    Args:
        model: The family's module.
        layers: Numbers of the layers that keep keys and values.
    """

    def __init__(self, model: nn.Module, layers: Iterable[int]) -> None:
        super().__init__()
        self.model = model
        self.layers = tuple(layers)

    def forward(
        self, tokens: Tensor, positions: Tensor, row: Tensor, page_rows: Tensor, select: Tensor, context: Tensor,
        *states: Tensor,
    ) -> tuple[Tensor, Tensor]:  # fmt: skip
        """``[R, vocab]`` and ``[R, hidden]``; arguments as ``step_arguments`` lists them."""
        keys = dict(zip(self.layers, states[::2], strict=True))
        values = dict(zip(self.layers, states[1::2], strict=True))
        state = PagedAttention(Step(positions, row, page_rows, context), keys, values)
        model = cast(Decoder, self.model)
        hidden = model.hidden(tokens, positions, state)[select]
        return model.logits(hidden), hidden


@dataclass(frozen=True, slots=True)
class _Noted:
    """Notes what each layer wants to keep, and computes nothing."""

    layers: dict[int, LayerState] = field(default_factory=dict)

    def attend(
        self,
        layer: int,
        query: Tensor,
        key: Tensor,
        value: Tensor,
        *,
        scale: float | None = None,
        sinks: Tensor | None = None,
    ) -> Tensor:
        self.layers[layer] = LayerState(key.shape[1], key.shape[2], value.shape[2])
        return query.new_empty((*query.shape[:2], value.shape[2]))


def layer_states(model: nn.Module) -> dict[int, LayerState]:
    """What each layer keeps: asked by running the model without memory."""
    noted = _Noted()
    with torch.no_grad(), without_memory(model) as mode, mode:
        tokens = torch.zeros(2, dtype=torch.int32)
        cast(Decoder, model).hidden(tokens, tokens, noted)
    return noted.layers


def step_arguments(
    states: Mapping[int, LayerState], pages: str, page_tokens: int, dtype: torch.dtype
) -> list[Argument]:
    """What ``ModelStep.forward`` takes."""
    row = Axis("row", "B")
    token = Axis("token", "T", "row")
    page, slot = Axis("page", pages), Axis("slot", page_tokens)
    arguments = [
        Argument("tokens", torch.int32, (token,), least=0),
        Argument("positions", torch.int32, (token,), least=0),
        Argument("row", torch.int32, (token,), least=0),
        Argument("page_rows", torch.int32, (row, Axis("row_page", "P")), least=0),
        Argument("select", torch.int32, (Axis("selected", "R"),), least=0),
        Argument("context", torch.int32, (Axis("position", "S"),), least=0),
    ]
    for layer, state in states.items():
        head, key = Axis("kv_head", state.heads), Axis("head_dim", state.key_dim)
        value = key if state.key_dim == state.value_dim else Axis("value_dim", state.value_dim)
        arguments.append(Argument(f"keys.{layer}", dtype, (page, slot, head, key), state=True))
        arguments.append(Argument(f"values.{layer}", dtype, (page, slot, head, value), state=True))
    return arguments
