"""Weights that lie between each other: nothing overlaps, nothing is left out, and tasks read straight on."""

import ir_layers
import numpy as np
import pytest

from headrace.compiler.codegen.arrays import Array
from headrace.compiler.ir import DType, Kind
from headrace.compiler.schedule.plan import plan_part
from headrace.compiler.schedule.records import LINE
from headrace.compiler.schedule.tiles import Tile
from headrace.runtime.packed_weights import write

MAXIMA = {"NB": 4, "P": 64}


def planned(**options):
    graph = ir_layers.layer(hidden=64, kv_heads=2, group=2, head_dim=32, ffn=96)
    return graph, plan_part(graph, MAXIMA, 16, **options)


def arrays_of(graph, plan):
    """Record by record, the weights in it with their forms."""
    found = {}
    for at, share in plan.shares.items():
        declared = graph.inputs[str(graph.nodes[at].attrs[0])]
        names = tuple(str(graph.nodes[x].attrs[0]) for x in share.members)
        array = Array(
            declared.name, declared.type.dtype, declared.type.axes, plan.layouts[at], "", ("",), names, share.offset
        )
        found.setdefault(names, []).append(array)
    return found


def bytes_of(graph, array):
    """Which bytes of its region an array writes."""
    shape = [graph.axes[axis].extent for axis in array.axes]
    region = np.full(array.layout.nbytes(array.dtype, dict(zip(array.axes, shape, strict=True))), 255, np.uint8)
    dtype = {DType.U4: np.uint8, DType.F16: np.float16, DType.I8: np.int8}[array.dtype]
    write(region, array, np.zeros(shape, dtype))
    return region == 0


@pytest.mark.parametrize("vectors", [1, 2])
def test_records_are_full_and_nothing_overlaps(vectors):
    graph, plan = planned(tile_for=lambda facts, nest: Tile(4, vectors))
    records = arrays_of(graph, plan)
    assert records
    for arrays in records.values():
        written = sum(bytes_of(graph, array).astype(int) for array in arrays)
        assert (written == 1).all()


def test_every_block_weight_is_in_one():
    graph, plan = planned()
    blocks = {
        n for n, d in graph.inputs.items() if d.kind is Kind.WEIGHT and n.endswith((".codes", ".scales", ".mins"))
    }
    held = {name for names in arrays_of(graph, plan) for name in names}
    assert held == blocks


def test_products_of_a_group_lie_task_by_task():
    """Gate and up: a task's bytes of both follow each other, and the next task's follow them."""
    graph, plan = planned()
    together = [names for names in arrays_of(graph, plan) if any("gate" in n for n in names)]
    assert len(together) == 1
    assert any("up" in name for name in together[0])
    for array in arrays_of(graph, plan)[together[0]]:
        first = array.layout.strides()[0] * (1 if array.layout.nibble else 2)
        assert first % LINE == 0
        place = np.flatnonzero(bytes_of(graph, array))
        tasks = array.layout.pieces[0].extent
        for task in range(tasks):
            mine = place[(place >= task * first) & (place < (task + 1) * first)]
            assert len(mine) == len(place) // tasks
