"""Models whose layers attend in two ways: some over a window of the last tokens, the others over all."""

from __future__ import annotations

from headrace.models.configs.reader import MAX_CONTEXT, ConfigReader
from headrace.models.spec import StateGroup, attention_group

WINDOW, FULL = "sliding_attention", "full_attention"


def parse_windowed(read: ConfigReader, layers: int, every: int) -> tuple[bool, ...]:
    """Of each layer, whether it attends over a window: from ``layer_types``, else every ``every``-th does not.

    Args:
        read: The config.
        layers: How many there are.
        every: Window layers before each full one, plus 1.
    """
    kinds = read.config.get("layer_types")
    if kinds is None:
        return tuple((layer + 1) % every != 0 for layer in range(layers))
    if not isinstance(kinds, list) or len(kinds) != layers:
        raise read.fail("layer_types", f"must list the kinds of the {layers} layers, not {kinds!r:.80}")
    for kind in kinds:
        if kind not in (WINDOW, FULL):
            raise read.fail("layer_types", f"names {kind!r:.50}; known are {WINDOW!r} and {FULL!r}")
    return tuple(kind == WINDOW for kind in kinds)


def parse_window(read: ConfigReader, windowed: tuple[bool, ...], default: int) -> int:
    """Tokens that a token sees in the window layers, itself included; 0 if there are no such layers.

    Args:
        read: The config.
        windowed: Of each layer, whether it attends over a window.
        default: The family's own, where the config does not mention it.
    """
    if not any(windowed):
        return 0
    # Here null is not the same as absent: it says that there is no window.
    if read.config.get("sliding_window", default) is None:
        raise read.fail("sliding_window", f"is null, but layer {windowed.index(True)} attends over a window")
    return read.integer("sliding_window", default, MAX_CONTEXT)


def attention_groups(windowed: tuple[bool, ...], window: int, heads: int, head_dim: int) -> tuple[StateGroup, ...]:
    """A group of the full layers and one of the window layers, without the one that has none.

    Args:
        windowed: Of each layer, whether it attends over a window.
        window: Tokens that a token sees there, itself included.
        heads: Of keys and values.
        head_dim: Elements of each.
    """
    full = attention_group("full", (n for n, some in enumerate(windowed) if not some), heads, head_dim)
    some = attention_group("window", (n for n, some in enumerate(windowed) if some), heads, head_dim, window)
    return tuple(group for group in (full, some) if group.layers)
