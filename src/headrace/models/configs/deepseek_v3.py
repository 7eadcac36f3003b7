"""DeepSeek-V3's dimensions."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from headrace.models.configs.reader import MAX_CONTEXT, MAX_LAYERS, ConfigReader
from headrace.models.configs.rope import RopeConfig, parse_rope, rope_reader, yarn_scale
from headrace.models.spec import StateGroup, StatePart


@dataclass(frozen=True, slots=True)
class RouterConfig:
    """How a token chooses its experts (DeepSeek-AI, arXiv 2412.19437, section 2.1.2).

    Attributes:
        experts: Routed experts in all.
        groups: Groups of neighbouring experts, all of one size.
        groups_chosen: A token's experts are all of so many groups.
        chosen: Experts of each token.
        normalized: The chosen scores are divided by their sum.
        factor: Of the weights that come of it.
    """

    experts: int
    groups: int
    groups_chosen: int
    chosen: int
    normalized: bool
    factor: float


@dataclass(frozen=True, slots=True)
class DeepseekV3Config:
    """Dimensions and switches of a DeepSeek-V3 model.

    Attributes:
        vocab_size: Rows of the output layer.
        hidden_size: Elements of a token's hidden vector.
        intermediate_size: Inner size of the dense feed-forward layers.
        expert_size: Inner size of a routed expert.
        shared_size: Inner size of what all tokens pass besides their routed experts.
        layers: Number of layers.
        dense_layers: So many of the first have a dense feed-forward layer, the others experts.
        heads: Attention heads.
        query_rank: Elements of the vector that queries are compressed to; 0: they are not compressed.
        latent_rank: Elements of the vector that keys and values are compressed to (``kv_lora_rank``).
        plain_dim: Elements of a head's queries and keys that are not rotated (``qk_nope_head_dim``).
        rope_dim: Those that are; the rotated key is one for all heads (``qk_rope_head_dim``).
        value_dim: Elements of a head's values.
        norm_eps: Of the norms of whole hidden vectors.
        context_length: Most tokens of a sequence.
        rope: Of the last ``rope_dim`` elements of queries and keys.
        interleaved: Element 2i is rotated against 2i + 1, not i against i + ``rope_dim / 2``.
        scale: Factor of the attention scores.
        bias: The compressing projections and the attention's output projection have biases.
        router: How experts are chosen.
        tied: The output layer is the embedding matrix.
        extra_layers: Layers behind the last in a published checkpoint, which predict further tokens.
    """

    vocab_size: int
    hidden_size: int
    intermediate_size: int
    expert_size: int
    shared_size: int
    layers: int
    dense_layers: int
    heads: int
    query_rank: int
    latent_rank: int
    plain_dim: int
    rope_dim: int
    value_dim: int
    norm_eps: float
    context_length: int
    rope: RopeConfig
    interleaved: bool
    scale: float
    bias: bool
    router: RouterConfig
    tied: bool
    extra_layers: int

    def state_groups(self) -> tuple[StateGroup, ...]:
        """What a sequence keeps between steps: a token's compressed vector, and its rotated key behind it."""
        part = StatePart("latent", (self.latent_rank + self.rope_dim,))
        return (StateGroup("latent", tuple(range(self.layers)), (part,)),)


def parse_deepseek_v3(config: Mapping[str, Any], file: object) -> DeepseekV3Config:
    """Parse the config of a DeepSeek-V3 model.

    Args:
        config: ``config.json``, with the rope settings under ``rope_parameters`` (Transformers 5) or under
            ``rope_theta`` and ``rope_scaling`` (before).
        file: What to name in errors.

    Raises:
        CheckpointError: A value is missing, unusable, contradicts another, or asks for something unsupported.
    """
    read = ConfigReader(config, file)
    context = read.integer("max_position_embeddings", most=MAX_CONTEXT)
    plain, rotated = read.integer("qk_nope_head_dim"), read.integer("qk_rope_head_dim")
    rope = parse_rope(read, rotated, context)
    expert_size = read.integer("moe_intermediate_size")
    parsed = DeepseekV3Config(
        vocab_size=read.integer("vocab_size"),
        hidden_size=read.integer("hidden_size"),
        intermediate_size=read.integer("intermediate_size"),
        expert_size=expert_size,
        shared_size=expert_size * read.integer("n_shared_experts"),
        layers=read.integer("num_hidden_layers", most=MAX_LAYERS),
        dense_layers=read.integer("first_k_dense_replace", least=0),
        heads=read.integer("num_attention_heads"),
        query_rank=_parse_query_rank(read),
        latent_rank=read.integer("kv_lora_rank"),
        plain_dim=plain,
        rope_dim=rotated,
        value_dim=read.integer("v_head_dim"),
        norm_eps=read.number("rms_norm_eps", 1e-6),
        context_length=context,
        rope=rope,
        interleaved=_parse_switch(read, "rope_interleave"),
        scale=(plain + rotated) ** -0.5 * _sharpening(read, rope),
        bias=read.boolean("attention_bias", default=False),
        router=_parse_router(read),
        tied=read.boolean("tie_word_embeddings", default=False),
        extra_layers=read.integer("num_nextn_predict_layers", 0, MAX_LAYERS, least=0),
    )
    _refuse_unsupported(read, parsed)
    return parsed


def _parse_query_rank(read: ConfigReader) -> int:
    """Null says that queries are not compressed. Transformers has a rank of its own for a missing key."""
    if "q_lora_rank" in read.config and read.config["q_lora_rank"] is None:
        return 0
    return read.integer("q_lora_rank")


def _parse_switch(read: ConfigReader, key: str) -> bool:
    """True if missing. Null is false in Transformers, which nobody can mean."""
    if key in read.config and read.config[key] is None:
        raise read.fail(key, "must be true or false, not None")
    return read.boolean(key, default=True)


def _sharpening(read: ConfigReader, rope: RopeConfig) -> float:
    """The part of the scores' factor that comes of a stretched context: DeepSeek moved it there from the rope."""
    settings = rope_reader(read)
    if not settings.config.get("mscale_all_dim"):
        return 1.0
    return yarn_scale(rope.factor, settings.number("mscale_all_dim")) ** 2


def _parse_router(read: ConfigReader) -> RouterConfig:
    router = RouterConfig(
        experts=read.integer("n_routed_experts"),
        groups=read.integer("n_group"),
        groups_chosen=read.integer("topk_group"),
        chosen=read.integer("num_experts_per_tok"),
        normalized=_parse_switch(read, "norm_topk_prob"),
        factor=read.number("routed_scaling_factor"),
    )
    size, left = divmod(router.experts, router.groups)
    if left or size < 2:
        raise read.fail("n_group", f"must split the {router.experts} experts into groups of two or more of one size")
    if router.groups_chosen > router.groups:
        raise read.fail("topk_group", f"must be at most n_group {router.groups}, not {router.groups_chosen}")
    if router.chosen > router.groups_chosen * size:
        most = router.groups_chosen * size
        raise read.fail("num_experts_per_tok", f"is {router.chosen}, but the chosen groups have {most} experts")
    return router


def _refuse_unsupported(read: ConfigReader, parsed: DeepseekV3Config) -> None:
    if parsed.rope_dim % 2:
        raise read.fail("qk_rope_head_dim", f"must be even for rotary embeddings, not {parsed.rope_dim}")
    if read.integer("head_dim", parsed.rope_dim) != parsed.rope_dim:
        raise read.fail("head_dim", f"must equal qk_rope_head_dim {parsed.rope_dim}, the part that is rotated")
    if read.integer("num_key_value_heads", parsed.heads) != parsed.heads:
        raise read.fail("num_key_value_heads", f"must equal the {parsed.heads} attention heads")
    if read.integer("moe_layer_freq", 1) != 1:
        raise read.fail("moe_layer_freq", "must be 1: dense layers between those with experts are not supported")
    for key, supported in (("hidden_act", "silu"), ("scoring_func", "sigmoid"), ("topk_method", "noaux_tc")):
        found = read.text(key, supported)
        if found != supported:
            raise read.fail(key, f"is {found!r:.50}; only {supported!r} is supported")
    if read.config.get("quantization_config") is not None:
        raise read.fail("quantization_config", "is set: pre-quantized safetensors (FP8) are not supported")
