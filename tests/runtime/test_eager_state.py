"""The eager executor's pages against tensors that hold everything: any cut of any sequences, pages in any order."""

from random import Random

import numpy as np
import pytest
import torch
from dense_state import DenseState
from hypothesis import given, settings
from hypothesis import strategies as st

from headrace.memory.state_memory import READ, WRITE
from headrace.models.spec import StateGroup, StatePart, attention_group
from headrace.runtime.eager_state import GroupPages, PagedState, Row
from headrace.runtime.state_layout import StateLayout

PAGE, PAGES, LONGEST = 4, 24, 30
GROUPS = (
    attention_group("full", (0,), 2, 8),
    attention_group("window", (1, 3), 1, 6, window=7),
    StateGroup("latent", (2,), (StatePart("latent", (10,)),)),
    StateGroup("recurrent", (4, 5), (StatePart("conv", (3, 1)), StatePart("sum", (5,), wide=True))),
)


class Toy(torch.nn.Module):
    """Mixes each token with what its sequence keeps, in every way that there is."""

    def __init__(self):
        super().__init__()
        torch.manual_seed(0)
        self.embedding = torch.nn.Parameter(torch.randn(16, 24), requires_grad=False)
        self.sinks = torch.nn.Parameter(torch.randn(3), requires_grad=False)

    def hidden(self, tokens, positions, state):
        x = (self.embedding[tokens] + 0.1 * positions[:, None]).to(self.embedding.dtype)
        out = [state.attend(0, x.view(-1, 3, 8)[:, [0, 1, 2, 0]], x[:, :16].view(-1, 2, 8), x[:, 8:].view(-1, 2, 8))]
        for layer, sinks in ((1, self.sinks), (3, None)):
            key, value = x[:, None, :6], x[:, None, 6:12]
            out.append(state.attend(layer, x[:, :18].view(-1, 3, 6), key, value, scale=0.3, sinks=sinks))
        out.append(state.attend_latent(2, x[:, :20].view(-1, 2, 10), x[:, 5:15], value_dim=7, scale=0.2))
        for layer in (4, 5):
            mixed = torch.empty(len(x), 8)
            for row in state.recurrences(layer):
                conv, total = row.state["conv"], row.state["sum"]
                for n in range(row.begin, row.end):
                    conv = torch.cat([conv[1:], x[n : n + 1, layer : layer + 1]])
                    total = 0.9 * total + x[n, :5]
                    mixed[n] = torch.cat([conv.flatten(), total])
                row.keep(conv=conv, sum=total)
            out.append(mixed)
        return torch.cat([part.flatten(1).float() for part in out], 1)

    def logits(self, hidden):
        return hidden


def runs(random):
    """Steps of (sequence, tokens) pairs, no sequence longer than there is room for."""
    lengths = {name: random.randint(1, LONGEST) for name in range(random.randint(1, 3))}
    steps = []
    while any(lengths.values()):
        step = []
        for name, left in lengths.items():
            count = min(left, random.choice([0, 1, 1, 2, 5, LONGEST]))
            if count:
                step.append((name, [random.randrange(16) for _ in range(count)]))
                lengths[name] -= count
        if step:
            steps.append(step)
    return steps


@settings(deadline=None, max_examples=60)
@given(st.integers(0, 2**32 - 1), st.sampled_from([torch.float32, torch.bfloat16]))
def test_pages_hold_what_sequences_keep(seed, dtype):
    random = Random(seed)
    model = Toy().to(dtype)
    dense = DenseState(GROUPS, dtype)
    layouts = [StateLayout(g, PAGE if g.by_token else 1, dtype.itemsize) for g in GROUPS]
    slab = max(layout.page_bytes for layout in layouts) * 5 // 8 * 8
    arena = np.full(slab * PAGES * len(GROUPS), 0xFF, np.uint8)  # NaN wherever nothing was written
    pools = [GroupPages(layout, arena, slab, dtype) for layout in layouts]
    # Every group has slabs of its own, in any order; handles are any numbers.
    slabs = random.sample(range(PAGES * len(GROUPS)), PAGES * len(GROUPS))
    tables = [np.array([s * slab for s in slabs[n :: len(GROUPS)]], np.int64) for n in range(len(GROUPS))]
    handles = [iter(random.sample(range(PAGES), PAGES)) for _ in GROUPS]
    rows = [np.full((3, 10), -1, np.int32) for _ in GROUPS]
    lengths = dict.fromkeys(range(3), 0)
    for step in runs(random):
        batch, at = [], 0
        for name, tokens in step:
            lengths[name] += len(tokens)
            for group, row, mine in zip(GROUPS, rows, handles, strict=True):
                if group.by_token:
                    for page in range(-(-lengths[name] // PAGE)):
                        if row[name, page] < 0:
                            row[name, page] = next(mine)
                else:
                    row[name, READ] = row[name, WRITE]
                    if row[name, WRITE] < 0 or random.random() < 0.2:
                        row[name, WRITE] = next(mine, row[name, WRITE])
            batch.append(Row(name, at, at + len(tokens), lengths[name]))
            at += len(tokens)
        wanted = dense.step(model, *step)
        tokens = torch.tensor([token for _, some in step for token in some])
        positions = torch.cat([torch.arange(row.start, row.context) for row in batch])
        with torch.inference_mode():
            found = model.hidden(tokens, positions, PagedState(pools, tables, rows, batch))
        assert not found.isnan().any()
        atol, rtol = (2e-6, 1e-5) if dtype == torch.float32 else (0.05, 0.05)
        torch.testing.assert_close(found, torch.cat(wanted), atol=atol, rtol=rtol)


def test_a_layer_is_not_asked_for_what_it_does_not_keep():
    layouts = [StateLayout(g, 1, 4) for g in (GROUPS[0], GROUPS[3])]
    arena = np.zeros(1 << 12, np.uint8)
    pools = [GroupPages(layout, arena, 1 << 12, torch.float32) for layout in layouts]
    tables, rows = [np.zeros(1, np.int64)] * 2, [np.zeros((1, 2), np.int32)] * 2
    state = PagedState(pools, tables, rows, [Row(0, 0, 1, 1)])
    with pytest.raises(RuntimeError, match="layer 0 keeps no recurrent state"):
        state.recurrences(0)
    with pytest.raises(RuntimeError, match="layer 4 keeps nothing of single tokens"):
        state.attend(4, *[torch.zeros(1, 1, 1)] * 3)
