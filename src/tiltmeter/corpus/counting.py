"""Count words in captions, in one pass over their bytes; counts of blocks can be added.

A word is recognised by its 64-bit hash, computed while its bytes are read. An unknown word has the
hash of one of a thousand known words with probability 10^-16.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import numpy as np
import pyarrow as pa

from tiltmeter.corpus.vocabulary import FNV_PRIME, FNV_START, LONGEST, Vocabulary
from tiltmeter.errors import InputError
from tiltmeter.metrics.numpy_kernels import jit
from tiltmeter.types import Ints

SAMPLE = 4  # captions kept as examples for each term and sign
HARD, SOFT, APOSTROPHE = 0, 1, 2  # kinds of separators; a letter is its byte
NO_HASH = np.uint64(0xFFFFFFFFFFFFFFFF)
_START, _PRIME = np.uint64(FNV_START), np.uint64(FNV_PRIME)


def _codes() -> Ints:
    codes = np.full(128, HARD, np.uint8)
    for byte in range(128):
        if chr(byte).isalnum():
            codes[byte] = ord(chr(byte).lower())
        elif chr(byte).isspace() or chr(byte) in "-_":
            codes[byte] = SOFT
    codes[ord("'")] = APOSTROPHE
    return codes


_CODES = _codes()


@dataclass(eq=False)
class CaptionCounts:
    """Counts of captions: row t for those with term t, the last row for all.

    A sign is one kind of group word, such as pronouns for women.
    """

    vocabulary: Vocabulary
    captions: Ints = field(init=False)  # terms + 1
    containing: Ints = field(init=False)  # terms + 1 x signs: captions that also have the sign
    exclusive: Ints = field(init=False)  # the same, without another sign of that axis
    named: Ints = field(init=False)  # terms + 1 x axes: captions with any sign of the axis
    #: (term, sign) -> hash, caption and image of the captions with the smallest hashes: a sample
    #: that no order changes.
    samples: dict[tuple[int, int], list[tuple[int, str, str]]] = field(default_factory=dict)

    def __post_init__(self) -> None:
        terms, signs = len(self.vocabulary.terms), len(self.vocabulary.signs)
        self.captions = np.zeros(terms + 1, np.int64)
        self.containing = np.zeros((terms + 1, signs), np.int64)
        self.exclusive = np.zeros((terms + 1, signs), np.int64)
        self.named = np.zeros((terms + 1, len(self.vocabulary.axes)), np.int64)

    def add(self, other: CaptionCounts) -> CaptionCounts:
        """Add the counts of other captions for the same vocabulary."""
        if other.vocabulary.items != self.vocabulary.items:
            raise InputError("counts of different vocabularies cannot be added")
        self.captions += other.captions
        self.containing += other.containing
        self.exclusive += other.exclusive
        self.named += other.named
        for cell, sample in other.samples.items():
            both = sorted([*self.samples.get(cell, ()), *sample], reverse=True)
            by_hash = {kept[0]: kept for kept in both}  # a caption of several images: the first
            self.samples[cell] = sorted(by_hash.values())[:SAMPLE]
        return self

    def limits(self) -> Ints:
        """Hashes from which a caption cannot enter the sample of a term and sign."""
        limits = np.full(self.containing[:-1].shape, NO_HASH)
        for cell, sample in self.samples.items():
            if len(sample) == SAMPLE:
                limits[cell] = sample[-1][0]
        return limits


def count(
    captions: pa.Array,
    vocabulary: Vocabulary,
    *,
    images: pa.Array | None = None,
    seed: int = 0,
    limits: Ints | None = None,
) -> CaptionCounts:
    """Count one block of captions; `limits` skips samples that a merge would drop.

    `images` has the URL or path of each caption's image, which its samples keep.

    >>> words = Vocabulary.of(["nurse"])
    >>> counts = count(pa.array(["A nurse and her cat", "Two nurses", "He ran"]), words)
    >>> counts.captions.tolist()  # with nurse, all
    [2, 3]
    >>> counts.containing[0, :2].tolist()  # he, she
    [0, 1]
    """
    counts = CaptionCounts(vocabulary)
    shape = counts.containing[:-1].shape
    hashes = np.empty((*shape, SAMPLE), np.uint64)
    hashes[:] = (np.full(shape, NO_HASH) if limits is None else limits)[:, :, None]
    rows = np.full(hashes.shape, -1, np.int32)
    if captions.null_count:
        known = captions.is_valid()
        captions = captions.filter(known)
        images = None if images is None else images.filter(known)
    _, offsets, data = captions.cast(pa.string()).buffers()
    if not len(captions) or data is None:
        return counts
    starts = np.frombuffer(offsets, np.int32)[captions.offset : captions.offset + len(captions) + 1]
    _count(
        np.frombuffer(data, np.uint8), starts, vocabulary.tables, _axis_masks(vocabulary),
        counts.captions, counts.containing, counts.exclusive, counts.named,
        hashes, rows, np.uint64(_salt(seed)),
    )  # fmt: skip
    for term, sign in np.argwhere((rows >= 0).any(axis=2)).tolist():
        counts.samples[term, sign] = sorted(
            (int(value), captions[int(row)].as_py(), _image(images, int(row)))
            for value, row in zip(hashes[term, sign], rows[term, sign], strict=True)
            if row >= 0
        )
    return counts


def _image(images: pa.Array | None, row: int) -> str:
    return "" if images is None else images[row].as_py() or ""


def _salt(seed: int) -> int:
    return (seed * 0x9E3779B97F4A7C15 + 0x632BE59BD9B4E019) & 0xFFFFFFFFFFFFFFFF


def _axis_masks(vocabulary: Vocabulary) -> Ints:
    axes = np.arange(len(vocabulary.axes))[:, None]
    bits = (vocabulary.sign_axes == axes).astype(np.int64) << np.arange(len(vocabulary.signs))
    return np.asarray(bits.sum(axis=1))


@jit
def _read(data: Ints, position: Any, start: Any, stop: Any) -> tuple[int, int]:
    """Kind and width of a non-ASCII character; letters are read byte by byte."""
    byte = data[position]
    if byte == 0xC2:  # symbols of Latin-1; no-break space and soft hyphen join words
        joins = position + 1 < stop and (data[position + 1] == 0xA0 or data[position + 1] == 0xAD)
        return (SOFT if joins else HARD), 2
    if (
        byte == 0xE2 and position + 2 < stop and data[position + 1] < 0xB0
    ):  # punctuation, arrows, symbols
        if data[position + 1] == 0x80 and data[position + 2] <= 0x91:  # spaces and hyphens
            return SOFT, 3
        quote = data[position + 1] == 0x80 and (
            data[position + 2] == 0x98 or data[position + 2] == 0x99
        )
        return (APOSTROPHE if quote else HARD), 3
    if byte == 0xEF or (byte == 0xE3 and position + 1 < stop and data[position + 1] == 0x80):
        return HARD, 3  # full-width forms, byte order marks, CJK punctuation
    if byte >= 0xF0:
        return HARD, 4  # emoji
    if position > start and data[position - 1] == 0xC3 and byte <= 0x9E and byte != 0x97:
        return byte + 0x20, 1  # capitals of Latin-1
    return byte, 1


@jit
def _count(
    data: Ints,
    offsets: Ints,
    tables: Any,
    axis_masks: Ints,
    captions: Ints,
    containing: Ints,
    exclusive: Ints,
    named: Ints,
    hashes: Ints,
    rows: Ints,
    salt: Any,
) -> None:
    known, ids, edge_at, edges, item_at, items = tables
    terms, signs = containing.shape[0] - 1, containing.shape[1]
    adjective_start, person = terms + signs, terms + 2 * signs
    last_row = np.full(terms, -1, np.int64)
    hits = np.empty(terms + 1, np.int64)
    word_of = np.empty(
        LONGEST, np.int64
    )  # the last words, and whether they are joined to the previous one
    joined = np.empty(LONGEST, np.bool_)
    stages = np.empty(LONGEST, np.int64)
    for row in range(len(offsets) - 1):
        start, stop = np.int64(offsets[row]), np.int64(offsets[row + 1])
        at, place, count, mask = start, 0, 0, 0
        pending, hops, stage = -1, 0, 0
        soft, after_apostrophe = False, False
        while at < stop:
            byte = data[at]
            if byte < 0x80:  # the usual case
                code, width = _CODES[byte], 1
            else:
                code, width = _read(data, at, start, stop)
            if code <= APOSTROPHE:
                soft = soft and code != HARD
                after_apostrophe = code == APOSTROPHE
                at += width
                continue
            first, value = at, _START
            while code > APOSTROPHE:
                value = (value ^ np.uint64(code)) * _PRIME
                at += width
                if at >= stop:
                    break
                byte = data[at]
                if byte < 0x80:
                    code, width = _CODES[byte], 1
                else:
                    code, width = _read(data, at, start, stop)
            if after_apostrophe and at - first == 1 and data[first] | 0x20 == 0x73:
                after_apostrophe = False  # a possessive s belongs to the previous word
                continue
            after_apostrophe = False
            word = _word_number(value, known, ids)
            slot = place & (LONGEST - 1)
            word_of[slot], joined[slot] = word, soft
            if not soft:
                pending, stage = -1, 0
            soft = True
            # which terms end with it?
            alone, adjective, stage_before = -1, -1, 0
            is_person, is_between, is_who, is_be = False, False, False, False
            node, back = word, place
            while node >= 0:
                for n in range(item_at[node], item_at[node + 1]):
                    item = items[n]
                    if item < terms:
                        if last_row[item] != row:
                            last_row[item] = row
                            hits[count] = item
                            count += 1
                    elif item < adjective_start:
                        alone = item - terms  # the longest match wins: east asians are not asians
                    elif item < person:
                        adjective = item - adjective_start
                        joins = back > 0 and joined[back & (LONGEST - 1)]
                        stage_before = stages[(back - 1) & (LONGEST - 1)] if joins else 0
                    else:
                        is_person |= item == person
                        is_between |= item == person + 1
                        is_who |= item == person + 2
                        is_be |= item == person + 3
                if back == 0 or place - back == LONGEST - 1 or not joined[back & (LONGEST - 1)]:
                    break
                back -= 1
                before = word_of[back & (LONGEST - 1)]
                next_node = -1
                for edge in range(edge_at[node], edge_at[node + 1]):
                    if edges[edge, 0] == before:
                        next_node = edges[edge, 1]
                node = next_node
            if alone >= 0:
                mask |= 1 << alone
            # a race adjective counts before a person, or after one "who is"
            if adjective >= 0:
                if stage_before == 3:
                    mask |= 1 << adjective
                pending, hops = adjective, 0
            elif is_person:
                if pending >= 0:
                    mask |= 1 << pending
                pending = -1
            elif is_between and hops < 2:
                hops += 1
            else:
                pending = -1
            if is_person:
                stage = 1
            elif (is_who and stage == 1) or (is_be and stage == 2):
                stage += 1
            else:
                stage = 0
            stages[slot] = stage
            place += 1
        if place == 0:
            continue  # no words
        hits[count] = terms  # the row of all captions
        value = _caption_hash(data, start, stop, salt) if mask and count else salt
        for n in range(count + 1):
            term = hits[n]
            captions[term] += 1
            if mask == 0:
                continue
            for axis in range(len(axis_masks)):
                found = mask & axis_masks[axis]
                if found:
                    named[term, axis] += 1
                    _add_signs(found, containing[term], exclusive[term])
            if term < terms:
                for sign in range(signs):
                    if mask >> sign & 1 and value < hashes[term, sign, SAMPLE - 1]:
                        _keep(hashes[term, sign], rows[term, sign], value, row)


@jit
def _word_number(value: Any, known: Ints, ids: Ints) -> int:
    """The number of the word with this hash, -1 if it is unknown."""
    size = np.uint64(len(known) - 1)
    slot = value & size
    while ids[slot] >= 0:
        if known[slot] == value:
            return int(ids[slot])
        slot = (slot + np.uint64(1)) & size
    return -1


@jit
def _caption_hash(data: Ints, start: Any, stop: Any, salt: Any) -> Any:
    """A salted hash of a caption, by which samples are drawn."""
    value = salt
    for letter in range(start, stop):
        value = (value ^ np.uint64(data[letter])) * _PRIME
    value ^= value >> np.uint64(32)  # FNV's low bits are better than its high ones
    value *= np.uint64(0x9E3779B97F4A7C15)
    value ^= value >> np.uint64(29)
    return value


@jit
def _add_signs(found: Any, containing: Ints, exclusive: Ints) -> None:
    """Count the signs of one axis (bits of `found`) in the row of a term."""
    single = found & (found - 1) == 0
    sign = 0
    while found:
        if found & 1:
            containing[sign] += 1
            exclusive[sign] += single
        found >>= 1
        sign += 1


@jit
def _keep(hashes: Ints, rows: Ints, value: Any, row: int) -> None:
    """Insert a caption into the sorted sample, unless it is already there."""
    for slot in range(SAMPLE):
        if hashes[slot] == value and rows[slot] >= 0:
            return
    slot = SAMPLE - 1
    while slot > 0 and hashes[slot - 1] > value:
        hashes[slot], rows[slot] = hashes[slot - 1], rows[slot - 1]
        slot -= 1
    hashes[slot], rows[slot] = value, row
