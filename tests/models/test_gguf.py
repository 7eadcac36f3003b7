"""The GGUF reader: against the gguf package, against llama.cpp's own dequantization, and under damage."""

from __future__ import annotations

import struct
import time
import tracemalloc
from pathlib import Path

import gguf
import numpy as np
import oracles
import pytest
from gguf.constants import GGML_QUANT_SIZES
from hypothesis import given, settings
from hypothesis import strategies as st
from tiny import make

from headrace.errors import CheckpointError
from headrace.models.gguf import FORMATS, GGUFFile
from headrace.models.gguf_checkpoint import GGUFCheckpoint, hf_name, unpermute
from headrace.models.loading import load_model
from headrace.models.opening import open_checkpoint
from headrace.models.registry import load_spec

# A tiny llama that llama-quantize wrote, k and v of its six layers in twelve formats; beside it those tensors
# as llama-quantize turns them back into F32, by format, rows in the file's order. See docs/models.md.
DATA = Path(__file__).parent / "data"
FIXTURE = DATA / "formats.gguf"
FLOAT32 = np.load(DATA / "formats_float32.npz")


def test_format_table_equals_the_packages():
    for form in FORMATS.values():
        assert (form.block, form.size) == GGML_QUANT_SIZES[gguf.GGMLQuantizationType[form.name]]
        assert gguf.GGMLQuantizationType[form.name].value == form.id


@pytest.mark.parametrize("name", FLOAT32.files)
def test_dequantization_equals_llama_cpp(name):
    file = GGUFFile(FIXTURE)
    (tensor,) = (t for t in file.tensors.values() if t.format.name == name and ".attn_" in t.name and t.shape[0] == 16)
    ours = file.read(tensor)
    assert ours.dtype == np.float32
    assert ours.flags.writeable
    np.testing.assert_array_equal(ours, FLOAT32[name])


def test_fixture_covers_every_format_but_f32():
    assert set(FLOAT32.files) == {form.name for form in FORMATS.values()} - {"F32"}


@pytest.mark.parametrize("name", ["Q4_0", "Q4_1", "Q5_0", "Q5_1", "Q8_0", "F16", "BF16", "F32"])
def test_dequantization_of_what_the_package_quantized(name, tmp_path):
    kind = gguf.GGMLQuantizationType[name]
    weight = np.random.default_rng(3).normal(size=(2, 5, 96)).astype(np.float32)
    writer = gguf.GGUFWriter(tmp_path / "m.gguf", "llama")
    writer.add_tensor("x", gguf.quantize(weight, kind), raw_dtype=kind)
    finish(writer)
    file = GGUFFile(tmp_path / "m.gguf")
    expected = gguf.dequantize(gguf.quantize(weight, kind), kind).reshape(weight.shape)
    np.testing.assert_array_equal(file.read(file.tensors["x"]), expected)


def finish(writer):
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


def test_mixed_fixture_loads_and_q_and_k_rows_are_put_back():
    checkpoint = open_checkpoint(FIXTURE)
    model = load_model(checkpoint)
    k = model.model.layers[2].self_attn.k_proj.weight.numpy()
    np.testing.assert_array_equal(oracles.permute(k, 1), FLOAT32["Q6_K"])
    v = model.model.layers[2].self_attn.v_proj.weight.numpy()
    np.testing.assert_array_equal(v, FLOAT32["Q8_0"])
    assert load_spec(checkpoint, "m").eos_token_ids == (2, 7)


@pytest.mark.parametrize(("heads", "tail"), [(4, (7,)), (1, ()), (3, (2, 2))])
def test_unpermute_undoes_the_converter(heads, tail):
    weight = np.random.default_rng(0).normal(size=(heads * 8, *tail)).astype(np.float32)
    np.testing.assert_array_equal(unpermute(oracles.permute(weight, heads), heads, "f", "t"), weight)


def all_kinds_of_metadata(writer):
    for kind, value in [("uint8", 255), ("int8", -128), ("uint16", 65535), ("int16", -32768), ("uint32", 2**32 - 1)]:
        getattr(writer, f"add_{kind}")(f"x.{kind}", value)
    writer.add_int32("x.int32", -(2**31))
    writer.add_uint64("x.uint64", 2**64 - 1)
    writer.add_int64("x.int64", -(2**63))
    writer.add_float32("x.float32", 0.1)
    writer.add_float64("x.float64", 0.1)
    writer.add_bool("x.bool", True)
    writer.add_string("x.string", "héllo \0 \N{GRINNING FACE}")
    writer.add_array("x.strings", ["a", "", "ü"])
    writer.add_array("x.floats", [1.5, -2.5])
    writer.add_array("x.bools", [True, False])
    writer.add_array("x.nested", [[1, 2], [3]])


def test_metadata_equals_the_packages_reader(tmp_path):
    path = tmp_path / "m.gguf"
    oracles.write_gguf(make("qwen3"), path, extra=all_kinds_of_metadata)
    file = GGUFFile(path)
    reader = gguf.GGUFReader(path)
    theirs = {
        key: f.contents() for key, f in reader.fields.items() if not key.startswith("GGUF.") and key != "x.nested"
    }
    assert file.metadata.pop("x.nested") == [[1, 2], [3]]
    assert file.metadata == theirs
    assert [(t.name, t.shape) for t in file.tensors.values()] == [
        (t.name, tuple(reversed(t.shape.tolist()))) for t in reader.tensors
    ]
    for tensor in reader.tensors:
        assert file.tensors[tensor.name].begin == tensor.data_offset


def test_unaligned_and_custom_alignment(tmp_path):
    path = tmp_path / "m.gguf"
    oracles.write_gguf(make("llama2"), path, extra=lambda w: w.add_custom_alignment(256))
    assert GGUFFile(path).data_begin % 256 == 0
    assert all(t.begin % 256 == 0 for t in GGUFFile(path).tensors.values())
    load_model(open_checkpoint(path))


def test_names_without_translation_are_kept():
    assert hf_name("blk.12.ffn_up.weight") == "model.layers.12.mlp.up_proj.weight"
    assert hf_name("blk.0.attn_q.bias") == "model.layers.0.self_attn.q_proj.bias"
    for name in ("blk.0.ssm_in.weight", "blk.x.attn_q.weight", "output", "rope_freqs.weight", "weight"):
        assert hf_name(name) == name


def test_content_id_follows_the_weights(tmp_path):
    data = bytearray(FIXTURE.read_bytes())
    (tmp_path / "copy.gguf").write_bytes(data)
    assert open_checkpoint(FIXTURE).content_id() == open_checkpoint(tmp_path / "copy.gguf").content_id()
    data[-1] ^= 1
    (tmp_path / "other.gguf").write_bytes(data)
    assert open_checkpoint(FIXTURE).content_id() != open_checkpoint(tmp_path / "other.gguf").content_id()


# Damage


def header(tensors=0, pairs=0, version=3):
    return b"GGUF" + struct.pack("<IQQ", version, tensors, pairs)


def text(value):
    data = value.encode()
    return struct.pack("<Q", len(data)) + data


HUGE = 2**63
BROKEN = {
    "empty": (b"", "empty"),
    "magic": (b"PK\3\4" + bytes(40), "not a GGUF file"),
    "short magic": (b"GG", "truncated"),
    "version 1": (header(version=1), "version 1 is not supported"),
    "big-endian": (b"GGUF" + struct.pack(">IQQ", 3, 0, 0), "big-endian"),
    "tensor count": (header(tensors=HUGE), "tensor count"),
    "metadata count": (header(pairs=HUGE), "metadata count"),
    "key length": (header(pairs=1) + struct.pack("<Q", HUGE), "length of metadata key 0"),
    "key not UTF-8": (header(pairs=1) + struct.pack("<Q", 2) + b"\xff\xfe" + bytes(40), "not UTF-8"),
    "key twice": (header(pairs=2) + 2 * (text("a") + struct.pack("<IB", 0, 1)), "occurs twice"),
    "value type": (header(pairs=1) + text("a") + struct.pack("<I", 99) + bytes(40), "unknown type 99"),
    "array count": (header(pairs=1) + text("a") + struct.pack("<IIQ", 9, 4, HUGE), "element count"),
    "array count too large for the file": (
        header(pairs=1) + text("a") + struct.pack("<IIQ", 9, 8, 4_000_000) + bytes(100),
        "cannot hold 4000000 elements",
    ),
    "number array beyond the end": (header(pairs=1) + text("a") + struct.pack("<IIQ", 9, 4, 1_000_000), "truncated"),
    "arrays without end": (
        header(pairs=1) + text("a") + struct.pack("<I", 9) + 20 * struct.pack("<IQ", 9, 1) + bytes(200),
        "nests arrays deeper",
    ),
    "alignment 3": (header(pairs=1) + text("general.alignment") + struct.pack("<II", 4, 3), "power of two"),
    "alignment text": (header(pairs=1) + text("general.alignment") + struct.pack("<I", 8) + text("x"), "power of two"),
    "dimensions": (header(tensors=1) + text("t") + struct.pack("<I", 9) + bytes(99), "dimension count"),
    "no dimensions": (header(tensors=1) + text("t") + struct.pack("<IIQ", 0, 0, 0) + bytes(99), "no elements"),
    "zero dimension": (header(tensors=1) + text("t") + struct.pack("<IQIQ", 1, 0, 0, 0) + bytes(99), "no elements"),
    "format": (header(tensors=1) + text("t") + struct.pack("<IQIQ", 1, 32, 20, 0) + bytes(999), "format 20"),
    "block": (header(tensors=1) + text("t") + struct.pack("<IQIQ", 1, 31, 2, 0) + bytes(999), "blocks of 32"),
    "offset": (header(tensors=1) + text("t") + struct.pack("<IQIQ", 1, 32, 0, 7) + bytes(999), "alignment 32"),
    "size": (header(tensors=1) + text("t") + struct.pack("<IQQIQ", 2, HUGE, HUGE, 0, 0) + bytes(999), "truncated"),
    "tensor twice": (header(tensors=2) + 2 * (text("t") + struct.pack("<IQIQ", 1, 8, 0, 0)) + bytes(999), "twice"),
}


@pytest.mark.parametrize(("data", "message"), BROKEN.values(), ids=BROKEN)
def test_damaged_files_are_named(data, message, tmp_path):
    path = tmp_path / "broken.gguf"
    path.write_bytes(data)
    with pytest.raises(CheckpointError, match=message) as caught:
        GGUFFile(path)
    assert caught.value.file == str(path)


@pytest.fixture(scope="module")
def small(tmp_path_factory):
    path = tmp_path_factory.mktemp("gguf") / "small.gguf"
    model = make("llama2", num_hidden_layers=1)
    oracles.write_gguf(model, path, gguf.GGMLQuantizationType.Q4_0, np.ones(8), all_kinds_of_metadata)
    return path


def use(path):
    """Everything that reads the file."""
    checkpoint = GGUFCheckpoint(path)
    load_spec(checkpoint, "m")
    checkpoint.content_id()
    for name in checkpoint.names():
        assert checkpoint.read(name).shape == checkpoint.shape(name)
    load_model(checkpoint)


@settings(max_examples=150, deadline=None)
@given(cut=st.floats(0, 1, exclude_max=True))
def test_truncation_is_a_checkpoint_error(small, tmp_path_factory, cut):
    data = small.read_bytes()
    path = tmp_path_factory.getbasetemp() / "cut.gguf"
    path.write_bytes(data[: int(len(data) * cut)])
    with pytest.raises(CheckpointError):
        use(path)


@pytest.mark.filterwarnings("ignore::RuntimeWarning")  # flipped scales overflow, as they should
@settings(max_examples=400, deadline=None)
@given(
    flips=st.lists(st.tuples(st.integers(0, 6000), st.integers(0, 255)), min_size=1, max_size=6),
    near_start=st.booleans(),
)
def test_flipped_bytes_escape_only_as_checkpoint_errors(small, tmp_path_factory, flips, near_start):
    data = bytearray(small.read_bytes())
    for at, value in flips:
        data[at % 400 if near_start else at] = value
    path = tmp_path_factory.getbasetemp() / "flipped.gguf"
    path.write_bytes(data)
    tracemalloc.start()
    try:
        use(path)
    except CheckpointError:
        pass
    finally:
        peak = tracemalloc.get_traced_memory()[1]
        tracemalloc.stop()
    assert peak < 64 * len(data) + 10_000_000


@pytest.mark.model
def test_smollm2_opens_quickly(smollm2):
    GGUFFile(smollm2)
    begin = time.perf_counter()
    GGUFFile(smollm2)
    assert time.perf_counter() - begin < 0.5
