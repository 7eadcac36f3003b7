"""``State``: how a family's forward pass reads and writes what its sequences keep. Executors implement it.

A forward pass sees the tokens of a whole ragged batch side by side. Which token belongs to which sequence, where pages
lie and which of them are shared is the executor's affair; so the places where tokens of one sequence meet are its
methods.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Protocol

from torch import Tensor


class Recurrence(Protocol):
    """One sequence's share of a batch, in a layer that keeps a recurrent state.

    Attributes:
        begin: Its first token in the batch.
        end: One behind its last.
        state: What the layer keeps, by the names of its group's parts, before these tokens: zeros at the start of a
            sequence. Not to be changed.
    """

    @property
    def begin(self) -> int: ...  # noqa: D102

    @property
    def end(self) -> int: ...  # noqa: D102

    @property
    def state(self) -> Mapping[str, Tensor]: ...  # noqa: D102

    def keep(self, **state: Tensor) -> None:
        """Keep what the layer has after these tokens; all parts."""
        ...


class State(Protocol):
    """What the sequences of a batch keep, as far as this step reads and writes it."""

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
        """Store keys and values; let each token see its sequence up to itself, as far as the layer's window goes.

        Args:
            layer: Number of the layer, of a ``full`` or ``window`` group.
            query: ``[T, heads, head_dim]``, rotated.
            key: ``[T, kv_heads, head_dim]``, rotated.
            value: ``[T, kv_heads, head_dim]``.
            scale: Factor of the scores; None: ``head_dim ** -0.5``.
            sinks: ``[heads]``, a score in each head that takes its share of the softmax and adds nothing.

        Returns:
            ``[T, heads, head_dim]``.
        """
        ...

    def attend_latent(self, layer: int, query: Tensor, latent: Tensor, *, value_dim: int, scale: float) -> Tensor:
        """Store latents; let each token see those of its sequence up to itself.

        Args:
            layer: Number of the layer, of a ``latent`` group.
            query: ``[T, heads, latent_dim]``.
            latent: ``[T, latent_dim]``, the key of all heads; its first ``value_dim`` elements are their value.
            value_dim: Elements of a value.
            scale: Factor of the scores.

        Returns:
            ``[T, heads, value_dim]``.
        """
        ...

    def recurrences(self, layer: int) -> Sequence[Recurrence]:
        """Each sequence's share of the batch, in order; each must be told what to keep.

        Args:
            layer: Number of the layer, of a ``recurrent`` group.
        """
        ...
