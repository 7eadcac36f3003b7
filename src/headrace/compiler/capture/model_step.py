"""A family's model as one function of a step's tensors."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Protocol, cast

import torch
from torch import Tensor, nn

from headrace.compiler.capture.arguments import Argument, without_memory
from headrace.compiler.capture.paged_attention import PagedAttention, Step
from headrace.compiler.ir import Axis


class Decoder(Protocol):
    """What a family's module offers."""

    def hidden(self, tokens: Tensor, positions: Tensor, attend: Callable[..., Tensor]) -> Tensor:
        """Normalized hidden vectors."""

    def logits(self, hidden: Tensor) -> Tensor:
        """Logits of some of them."""


class ModelStep(nn.Module):
    """The whole step: tokens in, logits of selected ones out, keys and values written.

    Args:
        model: The family's module.
        layers: How many layers keep keys and values.
    """

    def __init__(self, model: nn.Module, layers: int) -> None:
        super().__init__()
        self.model = model
        self.layers = layers

    def forward(
        self, tokens: Tensor, positions: Tensor, row: Tensor, page_rows: Tensor, select: Tensor, context: Tensor,
        *states: Tensor,
    ) -> Tensor:  # fmt: skip
        """``[R, vocab]``; arguments as ``step_arguments`` lists them."""
        attend = PagedAttention(Step(positions, row, page_rows, context), states[: self.layers], states[self.layers :])
        model = cast(Decoder, self.model)
        return model.logits(model.hidden(tokens, positions, attend)[select])


def attention_shapes(model: nn.Module) -> list[tuple[tuple[int, int], tuple[int, int]]]:
    """Heads and their size, of keys and of values, of each layer: asked by running the model without memory."""
    shapes: list[tuple[tuple[int, int], tuple[int, int]]] = []

    def attend(layer: int, query: Tensor, key: Tensor, value: Tensor) -> Tensor:
        shapes.append(((key.shape[1], key.shape[2]), (value.shape[1], value.shape[2])))
        return query.new_empty((*query.shape[:2], value.shape[2]))

    with torch.no_grad(), without_memory(model) as mode, mode:
        tokens = torch.zeros(2, dtype=torch.int32)
        cast(Decoder, model).hidden(tokens, tokens, attend)
    return shapes


def step_arguments(
    shapes: list[tuple[tuple[int, int], tuple[int, int]]], pages: str, page_tokens: int, dtype: torch.dtype
) -> list[Argument]:
    """What ``ModelStep.forward`` takes."""
    row = Axis("row", "B")
    token = Axis("token", "T", "row")
    int32: Any = torch.int32
    page, slot = Axis("page", pages), Axis("slot", page_tokens)
    heads = [(Axis("kv_head", k[0]), Axis("head_dim", k[1]), Axis("value_dim" if v[1] != k[1] else "head_dim", v[1]))
             for k, v in shapes]  # fmt: skip
    return [
        Argument("tokens", int32, (token,), least=0),
        Argument("positions", int32, (token,), least=0),
        Argument("row", int32, (token,), least=0),
        Argument("page_rows", int32, (row, Axis("row_page", "P")), least=0),
        Argument("select", int32, (Axis("selected", "R"),), least=0),
        Argument("context", int32, (Axis("position", "S"),), least=0),
        *(Argument(f"keys.{i}", dtype, (page, slot, h, k), state=True) for i, (h, k, _) in enumerate(heads)),
        *(Argument(f"values.{i}", dtype, (page, slot, h, v), state=True) for i, (h, _, v) in enumerate(heads)),
    ]
