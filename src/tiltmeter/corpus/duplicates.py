"""Captions that are there several times: exact copies, and near copies by MinHash.

Web corpora have many copies, which are not independent captions: intervals and p-values of their
counts are too small. What was seen is kept as 64-bit hashes: 16 bytes per distinct caption for
exact copies, 256 for near ones.

Near copies share most of their pairs of neighbouring words. A caption has 128 minimal hashes of its
pairs (Broder 1997) in 16 bands of 8; it is a near copy if one of its bands was seen. Of two
captions that share a part J of their pairs this finds 1 - (1 - J^8)^16: 6% at J = .5, 63% at .7,
95% at .8. Captions without two words are compared as they are.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import pyarrow as pa

from tiltmeter.corpus.reading import Block
from tiltmeter.errors import UnknownNameError
from tiltmeter.metrics.numpy_kernels import jit
from tiltmeter.types import Ints

KINDS = EXACT, NEAR = ("exact", "near")
BANDS, ROWS = 16, 8
_PRIME, _START = np.uint64(0x100000001B3), np.uint64(0xCBF29CE484222325)
_MIX, _NONE = np.uint64(0x9E3779B97F4A7C15), np.uint64(0)
#: A different mixing of a hash for each row of each band.
_SALTS = np.random.default_rng(2024).integers(1, 2**63, BANDS * ROWS).astype(np.uint64) | np.uint64(
    1
)


class Duplicates:
    """Leaves out captions that it has seen; the first one stays.

    Parameters
    ----------
    kind : {"exact", "near"}
        What counts as a copy.
    share : tuple of int
        `(number, of)`: of exact copies, take only captions whose hash belongs to this share of all;
        so several processes that read the same captions keep each of them once.

    Examples
    --------
    >>> captions = pa.array(["a nurse and her cat", "A nurse, and her cat", "a nurse and her cat"])
    >>> Duplicates("exact").leave_out(Block(captions)).captions.to_pylist()
    ['a nurse and her cat', 'A nurse, and her cat']
    >>> seen = Duplicates("near")
    >>> seen.leave_out(Block(captions)).captions.to_pylist(), seen.count
    (['a nurse and her cat'], 2)
    """

    def __init__(self, kind: str, share: tuple[int, int] = (0, 1)) -> None:
        if kind not in KINDS:
            raise UnknownNameError("kind of duplicates", kind, KINDS)
        self.kind = kind
        self.share = share
        self.count = 0  # captions that were left out
        self._slots = np.zeros(1 << 16, np.uint64)  # 0 is empty
        self._used = 0

    def leave_out(self, block: Block) -> Block:
        """The captions of a block that are no copies."""
        captions = block.captions
        _, offsets, data = captions.buffers()
        if not len(captions) or data is None:
            return block
        starts = np.frombuffer(offsets, np.int32)
        starts = starts[captions.offset : captions.offset + len(captions) + 1]
        width = BANDS if self.kind == NEAR else 1
        keys = np.empty((len(captions), width), np.uint64)
        _keys(np.frombuffer(data, np.uint8), starts, keys, _SALTS)
        number, of = self.share
        if of > 1:
            own = np.flatnonzero(keys[:, 0] // np.uint64(1 << 20) % np.uint64(of) == number)
            keys = keys[own]
        while 2 * (self._used + keys.size) > len(self._slots):
            self._slots = _grown(self._slots)
        new = np.empty(len(keys), np.bool_)
        self._used += _mark_new(keys, self._slots, new)
        self.count += int(len(new) - new.sum())
        if of > 1:
            mine, new = new, np.zeros(len(captions), np.bool_)
            new[own] = mine
        if new.all():
            return block
        kept = pa.array(new)
        return Block(*(None if part is None else part.filter(kept) for part in block))


@jit
def _mixed(value: Any, salt: Any) -> Any:
    value = (value ^ (value >> np.uint64(31))) * salt
    value = (value ^ (value >> np.uint64(29))) * _MIX
    return value ^ (value >> np.uint64(32))


@jit
def _keys(data: Ints, offsets: Ints, keys: Ints, salts: Ints) -> None:
    """The hash of each caption; or of each of its bands, where there are several."""
    smallest = np.empty(len(salts), np.uint64)
    for row in range(len(offsets) - 1):
        start, stop = offsets[row], offsets[row + 1]
        whole, word, before = _START, _START, _NONE
        smallest[:] = ~_NONE
        pairs, inside = 0, False
        for at in range(start, stop + 1):
            byte = np.uint64(data[at]) if at < stop else np.uint64(32)
            if at < stop:
                whole = (whole ^ byte) * _PRIME
            if 65 <= byte <= 90:
                byte += np.uint64(32)
            letter = byte >= 128 or 97 <= byte <= 122 or 48 <= byte <= 57
            if letter:
                word = (word ^ byte) * _PRIME
                inside = True
            elif inside:
                if before and keys.shape[1] > 1:
                    pair = _mixed(before, _PRIME) ^ word
                    for n in range(len(salts)):
                        smallest[n] = min(smallest[n], _mixed(pair, salts[n]))
                    pairs += 1
                before, word, inside = word, _START, False
        for band in range(keys.shape[1]):
            value = whole if not pairs else np.uint64(band + 1)
            if pairs:
                for n in range(band * ROWS, (band + 1) * ROWS):
                    value = (value ^ smallest[n]) * _PRIME
            value = _mixed(value, _MIX)
            keys[row, band] = value if value else np.uint64(1)


@jit
def _mark_new(keys: Ints, slots: Ints, new: Ints) -> int:
    """Which captions have no key that was seen; their keys are added. Returns how many."""
    mask, added = np.uint64(len(slots) - 1), 0
    for row in range(len(keys)):
        new[row] = True
        for key in keys[row]:
            slot = key & mask
            while slots[slot] and slots[slot] != key:
                slot = (slot + np.uint64(1)) & mask
            if slots[slot]:
                new[row] = False
        if new[row]:
            for key in keys[row]:
                slot = key & mask
                while slots[slot] and slots[slot] != key:
                    slot = (slot + np.uint64(1)) & mask
                added += not slots[slot]
                slots[slot] = key
    return added


@jit
def _grown(slots: Ints) -> Ints:
    """The same hashes in a table of twice the size."""
    larger = np.zeros(2 * len(slots), np.uint64)
    mask = np.uint64(len(larger) - 1)
    for key in slots:
        if key:
            slot = key & mask
            while larger[slot]:
                slot = (slot + np.uint64(1)) & mask
            larger[slot] = key
    return larger
