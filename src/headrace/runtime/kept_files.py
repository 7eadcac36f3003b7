"""Files of a cache that several processes share: written beside their place and renamed, so that whatever has the name
is whole; with a digest, so that what a full or failing disk has damaged is made again. What cannot be written is done
without.

    record    SHA-256 of the rest | MessagePack
    block     bytes | b"HRW1" and their CRC-32      at the end, so that the bytes are aligned in a mapped file, too
"""

from __future__ import annotations

import hashlib
import logging
import os
import tempfile
import zlib
from collections.abc import Callable
from pathlib import Path
from typing import IO, Any, TypeVar

import msgspec
import numpy as np
import numpy.typing as npt

from headrace.runtime.native_program import aligned

logger = logging.getLogger(__name__)
T = TypeVar("T")
DIGEST_BYTES = 32
MARK = b"HRW1"
TRAILER_BYTES = len(MARK) + 4


def keep(path: Path, value: Any) -> None:
    """Keep a record in a file, if that can be written."""
    payload = msgspec.msgpack.Encoder(enc_hook=_encode_array).encode(value)
    _write(path, lambda file: file.writelines((hashlib.sha256(payload).digest(), payload)))


def read_kept(path: Path, kind: type[T]) -> T | None:
    """What ``keep`` has written; None if it is not there, or damaged."""
    try:
        data = path.read_bytes()
        if hashlib.sha256(data[DIGEST_BYTES:]).digest() != data[:DIGEST_BYTES]:
            raise ValueError("it is damaged")
        return msgspec.msgpack.decode(data[DIGEST_BYTES:], type=kind, dec_hook=_decode_array)
    except FileNotFoundError:
        return None
    except (OSError, ValueError, TypeError, msgspec.MsgspecError) as error:
        logger.warning("a kept program cannot be read, compiling anew: %s", error, extra={"file": str(path)})
        return None


def keep_block(path: Path, block: npt.NDArray[np.uint8]) -> None:
    """Keep bytes in a file, if that can be written."""
    trailer = MARK + zlib.crc32(block.data).to_bytes(4, "little")
    _write(path, lambda file: file.writelines((block.data, trailer)))


def read_block(path: Path, size: int) -> npt.NDArray[np.uint8] | None:
    """The bytes that ``keep_block`` has written, aligned; None if they are not there, or damaged."""
    try:
        with path.open("rb") as file:
            found = os.fstat(file.fileno()).st_size
            if found != size + TRAILER_BYTES:
                raise ValueError(f"it has {found} bytes, not {size + TRAILER_BYTES}")
            block = aligned(size)
            if size and file.readinto(block.data) != size:
                raise ValueError("it ends too early")
            if file.read() != MARK + zlib.crc32(block.data).to_bytes(4, "little"):
                raise ValueError("it is damaged")
        return block
    except FileNotFoundError:
        return None
    except (OSError, ValueError) as error:
        logger.warning("kept weights cannot be read, packing anew: %s", error, extra={"file": str(path)})
        return None


def _write(path: Path, write: Callable[[IO[bytes]], Any]) -> None:
    part = ""
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.NamedTemporaryFile(dir=path.parent, suffix=".part", delete=False) as file:
            part = file.name
            write(file)
        os.replace(part, path)
    except OSError as error:
        _forget(part)
        logger.warning(
            "a compiled model cannot be kept: %s. Set HEADRACE_CACHE to a folder that can be written and has room.",
            error.strerror or error,
            extra={"file": str(path)},
        )
    except BaseException:
        _forget(part)
        raise


def _forget(part: str) -> None:
    if part:
        Path(part).unlink(missing_ok=True)


def _encode_array(value: Any) -> Any:
    if isinstance(value, np.ndarray):
        return [value.dtype.str, list(value.shape), value.tobytes()]
    raise NotImplementedError(f"{type(value).__name__} is not kept")


def _decode_array(kind: type, value: Any) -> Any:
    dtype, shape, data = value
    return np.frombuffer(data, np.dtype(dtype)).reshape(shape)
