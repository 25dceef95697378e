"""Codecs of token vectors: the numbers that a store keeps of a vector, and products computed from them.

    int8   a byte for each dimension
    int4   half a byte
    fp16   two bytes

int8 and int4 rotate a vector and write each value as `zero + step * number`, with two constants for each
dimension. None of this is undone for a score: the query is rotated, too, the steps are folded into it before
it becomes 8-bit integers, and the zeros add the same to all similarities of one query vector.

The constants are fitted to the first documents of a store (see `fit`), as the buckets of PLAID are to a
sample (Santhanam et al., CIKM 2022). After the rotation all dimensions have about the same spread and no long
tails, so that a small sample suffices, and no dimension's steps are coarse where queries are large. Random
rotations before rounding: Suresh et al., "Distributed Mean Estimation with Limited Communication", ICML 2017.

The steps of int4 are so coarse that the direction of the errors matters. A query's largest products are those
with vectors that point as it does, so errors along the vector itself count most (Guo et al., "Accelerating
Large-Scale Inference with Anisotropic Vector Quantization", ICML 2020). int4 rounds a few numbers to their
second nearest, those near the middle first, until hardly anything is left of that error.
"""

from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from functools import cache
from typing import Any, Protocol

import numpy as np
import torch
from numpy.typing import NDArray
from threadpoolctl import ThreadpoolController
from torch import Tensor

from farrank_runtimes.runtime import CodecName

Vectors = NDArray[np.float32]
# The vectors of a store: int8, uint8 (two numbers of int4) or fp16. Shape: (T, bytes or numbers).
Rows = NDArray[Any]

# Ranges in standard deviations of the sample. int8 has room for values that no sample holds. The 15 steps of
# int4 would be too coarse with such a range; a clipped value loses little.
_INT8_RANGE, _INT4_RANGE = 5.0, 3.0
_HALF_BYTE = 15
# Vectors are rounded in blocks: those of a long document would need many times their own memory.
_BLOCK_ROWS = 4_096
# With 128 dimensions three to six numbers of a vector move.
_MOST_MOVES = 16
# A dimension may have the same value in all vectors.
_NARROWEST = np.float32(1e-6)


@cache
def _rotation(width: int) -> Vectors:
    """Make the same random orthogonal matrix everywhere. Shapes: (K, K)."""
    # The numbers of RandomState never change between versions of numpy. With positive signs on the diagonal
    # of its triangle a decomposition is unique.
    orthogonal, triangle = np.linalg.qr(np.random.RandomState(0).standard_normal((width, width)))
    rotation: Vectors = (orthogonal * np.sign(np.diag(triangle))).astype(np.float32)
    return rotation


class Products(Protocol):
    """The vectors of one query, ready to be compared with rows of one codec. Used by one thread."""

    def compare(self, rows: Sequence[Tensor]) -> NDArray[Any]:
        """Compare with rows of documents, joined. Shapes: n times (T, …) -> (Q, T), not yet similarities."""
        ...

    def on_threads(self) -> AbstractContextManager[Any]:
        """Choose the threads of torch for many calls of `compare`."""
        ...

    def similarities(self, compared: NDArray[Any]) -> Vectors:
        """Turn results of `compare`, or maxima of them, into dot products. Shapes: (Q, N) -> (Q, N)."""
        ...


class TokenCodec(Protocol):
    """Writes token vectors of K dimensions as rows."""

    @property
    def name(self) -> CodecName:
        """The name in a manifest and on the command line."""
        ...

    @property
    def parameters(self) -> Vectors:
        """The fitted numbers, from which `restored` makes the codec. Shape: (0 or 2, K)."""
        ...

    def encode(self, vectors: Vectors) -> Rows:
        """Round vectors. Shapes: (T, K) -> (T, `row_values`). Raises: ValueError if one is not finite."""
        ...

    def decode(self, rows: Rows) -> Vectors:
        """Return the rounded vectors. Shapes: (T, …) -> (T, K)."""
        ...

    def products(self, query: Tensor, room: int) -> Products:
        """Prepare a query's vectors for at most `room` rows at once. Shapes: query (Q, K), in fp32."""
        ...


@dataclass(frozen=True, slots=True, eq=False)
class HalfCodec:
    """fp16, of vectors of `width` dimensions."""

    width: int
    name: CodecName = "fp16"

    @property
    def parameters(self) -> Vectors:
        """It has none. Shape: (0, K)."""
        return np.zeros((0, self.width), dtype=np.float32)

    def encode(self, vectors: Vectors) -> Rows:
        """Round to 11 bits. Raises: ValueError if a number is not finite, or too large for 16 bits."""
        _check(vectors, float(np.finfo(np.float16).max))
        return vectors.astype("<f2")

    def decode(self, rows: Rows) -> Vectors:
        """Shapes: (T, K) -> (T, K)."""
        return rows.astype(np.float32)

    def products(self, query: Tensor, room: int) -> Products:
        """Compare in fp32."""
        return FloatProducts(query, room)


@dataclass(frozen=True, slots=True, eq=False)
class Int8Codec:
    """A byte for each dimension. Shapes: parameters (2, K), the value of the number 0 and the steps."""

    parameters: Vectors
    name: CodecName = "int8"

    @classmethod
    def fit(cls, sample: Vectors) -> "Int8Codec":
        """Give every dimension room for the sample and more. Shapes: (N, K)."""
        rotated = sample @ _rotation(sample.shape[1])
        centres = rotated.mean(axis=0)
        half = np.maximum(np.abs(rotated - centres).max(axis=0), _INT8_RANGE * _spread(rotated))
        return cls(np.stack([centres, half / 127]).astype(np.float32))

    def encode(self, vectors: Vectors) -> Rows:
        """Round; values outside the range become its ends. Raises: ValueError if one is not finite."""
        return _numbers(vectors, self.parameters, -127, 127)

    def decode(self, rows: Rows) -> Vectors:
        """Shapes: (T, K) -> (T, K)."""
        return _restored(rows, self.parameters)

    def products(self, query: Tensor, room: int) -> Products:
        """Compare as integers."""
        return IntegerProducts(query, self.parameters, room, torch.int8, _join)


@dataclass(frozen=True, slots=True, eq=False)
class Int4Codec:
    """Half a byte for each dimension: number i is the low half of byte i, and i + K / 2 the high half.

    Shapes: parameters (2, K), the value of the number 0 and the steps.
    """

    parameters: Vectors
    name: CodecName = "int4"

    @classmethod
    def fit(cls, sample: Vectors) -> "Int4Codec":
        """Give every dimension the range in which most of the sample lies. Shapes: (N, K).

        Raises: ValueError if K is odd.
        """
        if sample.shape[1] % 2:
            raise ValueError(f"the vectors have {sample.shape[1]} dimensions; int4 needs an even number")
        rotated = sample @ _rotation(sample.shape[1])
        half = _INT4_RANGE * _spread(rotated)
        return cls(np.stack([rotated.mean(axis=0) - half, 2 * half / _HALF_BYTE]).astype(np.float32))

    def encode(self, vectors: Vectors) -> Rows:
        """Round; values outside the range become its ends. Raises: ValueError if one is not finite."""
        numbers = _numbers(vectors, self.parameters, 0, _HALF_BYTE, is_coarse=True).view(np.uint8)
        half = numbers.shape[1] // 2
        rows: Rows = numbers[:, :half] | numbers[:, half:] << 4
        return rows

    def decode(self, rows: Rows) -> Vectors:
        """Shapes: (T, K / 2) -> (T, K)."""
        return _restored(np.concatenate([rows & _HALF_BYTE, rows >> 4], axis=1), self.parameters)

    def products(self, query: Tensor, room: int) -> Products:
        """Compare as integers."""
        packed = torch.empty(room, query.shape[1] // 2, dtype=torch.uint8)
        return IntegerProducts(query, self.parameters, room, torch.uint8, _Unpacked(packed))


def _spread(rotated: Vectors) -> Vectors:
    """Compute the standard deviation of each dimension. Shapes: (N, K) -> (K,)."""
    spread: Vectors = np.maximum(rotated.std(axis=0), _NARROWEST)
    return spread


def _numbers(
    vectors: Vectors, parameters: Vectors, smallest: int, largest: int, *, is_coarse: bool = False
) -> NDArray[np.int8]:
    """Rotate and round to whole numbers between two limits. Shapes: (T, K), (2, K) -> (T, K).

    With `is_coarse` the errors along each vector cancel each other.
    Raises: ValueError if a value is not finite.
    """
    _check(vectors)
    numbers = np.empty(vectors.shape, dtype=np.int8)
    for first in range(0, len(vectors), _BLOCK_ROWS):
        some = slice(first, first + _BLOCK_ROWS)
        numbers[some] = _rounded(vectors[some], parameters, smallest, largest, is_coarse=is_coarse)
    return numbers


def _rounded(
    vectors: Vectors, parameters: Vectors, smallest: int, largest: int, *, is_coarse: bool
) -> Vectors:
    zeros, steps = parameters
    rotated = vectors @ _rotation(vectors.shape[1])
    exact = (rotated - zeros) / steps
    numbers: Vectors = np.clip(np.rint(exact), smallest, largest)
    if is_coarse:
        left = exact - numbers  # the errors, in steps
        moves = np.where(left < 0, np.float32(-1), np.float32(1))
        moves[(numbers + moves < smallest) | (numbers + moves > largest)] = 0
        # A vector far outside the sample may have products beyond fp32. Its numbers then stay.
        with np.errstate(over="ignore", invalid="ignore"):
            numbers += _cancelling(left, moves, rotated * steps, steps)
    return numbers


def _cancelling(left: Vectors, moves: Vectors, products: Vectors, steps: Vectors) -> Vectors:
    """Choose the moves of numbers to their second nearest that cancel the errors along the vectors.

    `products` are the parts of a vector's own dot product that one step of each number has. Moves that add
    least to the squared error for what they cancel come first. Shapes: three times (T, K), (K,) -> (T, K).
    """
    error = (left * products).sum(axis=1, keepdims=True)  # (T, 1)
    cancelled = moves * products * np.sign(error)
    added = steps**2 * (1 - 2 * np.abs(left))
    # One that cancels twice the error gains nothing.
    helps = (cancelled > 0) & (cancelled < 1.5 * np.abs(error))
    price = np.divide(added, cancelled, out=np.full_like(added, np.inf), where=helps)
    most = min(_MOST_MOVES, price.shape[1] - 1)
    order = np.argpartition(price, most, axis=1)[:, : most + 1]
    order = np.take_along_axis(order, np.argsort(np.take_along_axis(price, order, axis=1), axis=1), axis=1)
    own = np.take_along_axis(np.where(helps, cancelled, 0), order, axis=1)
    taken = (np.cumsum(own, axis=1) - own / 2 <= np.abs(error)) & (own > 0)
    chosen = np.zeros_like(moves)
    np.put_along_axis(chosen, order, np.take_along_axis(moves, order, axis=1) * taken, axis=1)
    return chosen


def _restored(numbers: Rows, parameters: Vectors) -> Vectors:
    """Undo `_numbers`. Shapes: (T, K), (2, K) -> (T, K)."""
    zeros, steps = parameters
    vectors: Vectors = (numbers * steps + zeros) @ _rotation(numbers.shape[1]).T
    return vectors


def _check(vectors: Vectors, largest: float = float(np.finfo(np.float32).max)) -> None:
    if vectors.size and not np.abs(vectors).max() <= largest:
        raise ValueError("a token's vector holds a number that is not finite, or too large for the codec")


@dataclass(frozen=True, slots=True, eq=False)
class CodedVectors:
    """The vectors of a document's windows, one window after the other; `codec` None: they are fp32.

    Shapes: rows (T, …), ends (C,) counted in rows from the document's start. A window may have no row.
    """

    rows: Tensor
    ends: NDArray[np.int64]
    codec: TokenCodec | None = None


CODECS: Mapping[CodecName, Callable[[Vectors], TokenCodec]] = {
    "int8": Int8Codec.fit,
    "int4": Int4Codec.fit,
    "fp16": lambda sample: HalfCodec(sample.shape[1]),
}


def fit(name: CodecName, sample: Vectors) -> TokenCodec:
    """Fit a codec to a sample of vectors. Shapes: (N, K). Raises: ValueError if K does not fit."""
    return CODECS[name](sample)


def restored(name: CodecName, parameters: Vectors, width: int) -> TokenCodec:
    """Make a codec of the parameters that it had when the rows were written. Shapes: (0 or 2, K)."""
    if name == "fp16":
        return HalfCodec(width)
    return Int8Codec(parameters) if name == "int8" else Int4Codec(parameters)


def row_values(name: CodecName, width: int) -> int:
    """Count the numbers of a row, of the type `row_type`."""
    return width // 2 if name == "int4" else width


def row_type(name: CodecName) -> str:
    """The type of a row's numbers, as numpy writes it."""
    return {"int8": "i1", "int4": "u1", "fp16": "<f2"}[name]


class FloatProducts:
    """Rows of any floating type, compared in fp32 on the query's device. Shapes: query (Q, K)."""

    def __init__(self, query: Tensor, room: int) -> None:
        self._query, self._room = query.float(), room
        self._joined: Tensor | None = None

    def compare(self, rows: Sequence[Tensor]) -> NDArray[Any]:
        """Shapes: n times (T, K) -> (Q, T)."""
        compared: NDArray[Any] = (self._query @ self._together(rows).T).cpu().numpy()  # (Q, T)
        return compared

    def _together(self, rows: Sequence[Tensor]) -> Tensor:
        """Shapes: n times (T, K) -> (T, K), in fp32 on the query's device."""
        if len(rows) == 1:
            return rows[0].to(self._query)
        count = sum(map(len, rows))
        if self._joined is None or count > len(self._joined):
            self._joined = self._query.new_empty(max(count, self._room), self._query.shape[1])
        filled = 0
        for each in rows:
            self._joined[filled : filled + len(each)].copy_(each)
            filled += len(each)
        return self._joined[:filled]

    def on_threads(self) -> AbstractContextManager[Any]:
        """Leave them as they are."""
        return nullcontext()

    def similarities(self, compared: NDArray[Any]) -> Vectors:
        """They are the similarities."""
        return compared


# Joins rows, if need be in a buffer. Shapes: n times (T, …), (room, K) -> (T, K).
Join = Callable[[Sequence[Tensor], Tensor], Tensor]


def _join(rows: Sequence[Tensor], into: Tensor) -> Tensor:
    if len(rows) == 1:
        return rows[0]
    return torch.cat(list(rows), out=_first(sum(map(len, rows)), into))


def _first(count: int, buffer: Tensor) -> Tensor:
    if count > len(buffer):
        raise ValueError(f"{count} rows were joined; there is room for {len(buffer)}")
    return buffer[:count]


class _Unpacked:
    """Joins rows of half bytes, by way of a buffer for their bytes. Shapes: (room, K / 2)."""

    def __init__(self, packed: Tensor) -> None:
        self._packed = packed

    def __call__(self, rows: Sequence[Tensor], into: Tensor) -> Tensor:
        """Shapes: n times (T, K / 2), (room, K) -> (T, K)."""
        packed = _join(rows, self._packed)
        joined, half = _first(len(packed), into), packed.shape[1]
        torch.bitwise_and(packed, _HALF_BYTE, out=joined[:, :half])
        torch.bitwise_right_shift(packed, 4, out=joined[:, half:])
        return joined.view(torch.int8)  # they are at most 15


class IntegerProducts:
    """Integer products of a query, rotated and rounded to 8 bits with the codec's steps folded in.

    Shapes: query (Q, K), affine (2, K): the value of the number 0, and the steps.
    """

    def __init__(self, query: Tensor, affine: Vectors, room: int, dtype: torch.dtype, join: Join) -> None:
        zero, steps = affine
        # By torch: numpy's library wakes threads of its own for it, and waits for them.
        with _one_thread():
            rotated = query.float().cpu() @ torch.from_numpy(_rotation(query.shape[1]))
        values: Vectors = rotated.numpy()
        folded = values * steps  # (Q, K)
        largest = np.abs(folded).max(axis=1, keepdims=True)  # (Q, 1)
        # A NaN in the query stays in the scale, and so reaches all its similarities.
        self._scale = largest / 127
        with np.errstate(invalid="ignore", divide="ignore"):
            numbers = np.nan_to_num(np.rint(folded / self._scale))
        self._query = torch.from_numpy(numbers.astype(np.int8))
        self._constant = (values * zero).sum(axis=1, keepdims=True)  # (Q, 1)
        self._joined = torch.empty(room, values.shape[1], dtype=dtype)
        self._join = join
        self._multiply = _int_products if has_integer_products() else _float_products

    def compare(self, rows: Sequence[Tensor]) -> NDArray[Any]:
        """Shapes: n times (T, …) -> (Q, T)."""
        compared: NDArray[Any] = self._multiply(self._query, self._join(rows, self._joined)).numpy()
        return compared

    def on_threads(self) -> AbstractContextManager[Any]:
        """Use one: a product of a document takes less time than waking others for it (0020)."""
        return _one_thread()

    def similarities(self, compared: NDArray[Any]) -> Vectors:
        """Shapes: (Q, N) -> (Q, N)."""
        found: Vectors = compared.astype(np.float32) * self._scale + self._constant
        return found


def _one_thread() -> AbstractContextManager[Any]:
    """Let torch compute on the calling thread alone for the duration of the context."""
    # torch sets a thread's number at its first use, here at the latest. `torch.set_num_threads` would also
    # set that of threads that first use torch meanwhile.
    torch.get_num_threads()
    limited: AbstractContextManager[Any] = _openmp().limit(limits=1)
    return limited


@cache
def _openmp() -> ThreadpoolController:
    return ThreadpoolController().select(user_api="openmp")


def _int_products(query: Tensor, rows: Tensor) -> Tensor:
    """Shapes: (Q, K), (T, K), int8 -> (Q, T), int32."""
    products: Tensor = torch._int_mm(query, rows.T)
    return products


def _float_products(query: Tensor, rows: Tensor) -> Tensor:
    """Compute the same in fp32, exactly up to 1,040 dimensions. Shapes: as `_int_products`, -> fp32."""
    return query.float() @ rows.float().T


@cache
def has_integer_products() -> bool:
    """Whether torch's integer product is there, quick and exact: it is no public function.

    Without the processor's instructions for it, it is a plain loop and slower than fp32.
    """
    able = torch.cpu.get_capabilities()
    if not hasattr(torch, "_int_mm") or not any(able.get(name) for name in _INTEGER_INSTRUCTIONS):
        return False
    # With the largest numbers some instructions overflow.
    query = torch.tensor([[127], [-127], [1]], dtype=torch.int8).repeat(1, 128)
    rows = torch.cat([query, torch.arange(-64, 64, dtype=torch.int8)[None]])
    try:
        found = _int_products(query, rows)
    except RuntimeError:
        return False
    return torch.equal(found, query.int() @ rows.int().T)


_INTEGER_INSTRUCTIONS = ("avx512_vnni", "avx_vnni", "amx_int8", "dot")
