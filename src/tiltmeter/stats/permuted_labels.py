"""Counts of groups down a ranking, for many permutations of the labels at once.

A label is a number, and the same bit of the labels of 64 permutations is one 64-bit word. Logic on
such words says which permutations give an item a label, and adds that to counts which are stored as
bits as well (carry-save adders): some 100 operations count an item for 128 permutations and 16
labels. Attributes that are coarser than another, as race and gender are than race x gender, are
not counted themselves: their counts are sums.
"""

from __future__ import annotations

from collections.abc import Container, Mapping
from dataclasses import dataclass, replace

import numpy as np

from tiltmeter.metrics.numpy_kernels import in_rows, jit
from tiltmeter.metrics.ranking import log_shares
from tiltmeter.stats.whole_ranking import cuts
from tiltmeter.types import Floats, Ints

WORDS = 2  # 64-bit words processed together
DRAWS = 64 * WORDS
ITEMS = 16  # added together
PAGE = 16  # labels told apart by four bits
#: All bits where the bit p of a label is 0: bits x labels of a page.
FLIP = np.array([[0 if label >> p & 1 else 2**64 - 1 for label in range(PAGE)]
                 for p in range(4)], np.uint64)  # fmt: skip
_COUNT_BITS = 40  # of a count: more items than memory can hold
_U = np.uint64  # a signed index is checked each time, whether it counts from the end


@dataclass(frozen=True, eq=False)
class PermutedLabels:
    """Permuted labels of images as bits, and the attributes whose groups follow from them.

    Parameters
    ----------
    bits : array of uint64 of shape (blocks of draws, images, bits x words)
        The bits of the labels.
    draws, labels : int
        Number of permutations, and of different labels.
    group_of : dict
        The group of each label, by attribute.
    """

    bits: Ints
    draws: int
    labels: int
    group_of: dict[str, Ints]

    @classmethod
    def pack(cls, codes: Ints, labels: int, group_of: dict[str, Ints]) -> PermutedLabels:
        """Pack permuted labels, draws x images.

        >>> codes = np.array([[0, 1, 2], [2, 0, 1]], np.uint8)
        >>> packed = PermutedLabels.pack(codes, 3, {"shape": np.arange(3)})
        >>> packed.top_counts(np.array([[2, 0]]), (2,))["shape"][0].tolist()  # 2 x 1 x 3
        [[[1, 0, 1]], [[0, 1, 1]]]
        """
        planes = max(4, (labels - 1).bit_length())
        blocks = -(-len(codes) // DRAWS)
        bits = np.zeros((blocks, codes.shape[1], planes, WORDS), np.uint64)

        def work(part: slice) -> None:
            for block in range(part.start, part.stop):
                _pack(codes[block * DRAWS : (block + 1) * DRAWS], bits[block])

        in_rows(work, blocks, step=1)
        return cls(bits.reshape(*bits.shape[:2], -1), len(codes), labels, group_of)

    def of_attributes(self, names: Container[str]) -> PermutedLabels:
        """The same labels for some of the attributes."""
        return replace(self, group_of={n: of for n, of in self.group_of.items() if n in names})

    def top_counts(self, top: Ints, ks: tuple[int, ...]) -> dict[str, list[Ints]]:
        """Counts of groups in the first k of each row of `top`: by attribute, one array per k.

        Arrays are draws x queries x groups. `ks` must be ascending.
        """
        if not self.group_of:
            return {}
        offsets, flat = self._flat()
        out = np.empty((len(ks), len(top), len(self.bits) * DRAWS, offsets[-1]), np.uint32)
        ends = np.array(ks)

        def work(part: slice) -> None:
            for block, bits in enumerate(self.bits):
                at = slice(block * DRAWS, (block + 1) * DRAWS)
                _top_counts(top[part], bits, self.labels, ends, flat, out[:, part, at])

        in_rows(work, len(top))
        return {
            name: [counts[:, : self.draws, first:end].swapaxes(0, 1) for counts in out]
            for name, first, end in zip(self.group_of, offsets, offsets[1:], strict=False)
        }

    def ndkl(self, order: Ints, shares: Mapping[str, Floats], draws: int) -> dict[str, Floats]:
        """NDKL of whole rankings by stretches of ranks, of the first `draws`: draws x queries."""
        if not self.group_of:
            return {}
        offsets, flat = self._flat()
        draws = min(draws, self.draws)
        blocks = -(-draws // DRAWS)
        items = order.shape[1]
        log_target = np.concatenate([log_shares(shares[name]) for name in self.group_of])
        tables = (offsets, log_target, cuts(items), *ndkl_sums(items))
        out = np.empty((len(self.group_of), len(order), blocks * DRAWS))

        def work(part: slice) -> None:
            for block in range(blocks):
                at = slice(block * DRAWS, (block + 1) * DRAWS)
                _ndkl(order[part], self.bits[block], self.labels, flat, *tables, out[:, part, at])

        in_rows(work, len(order))
        return {name: out[a, :, :draws].T for a, name in enumerate(self.group_of)}

    def _flat(self) -> tuple[Ints, Ints]:
        """First group of each attribute in a list of all groups; groups of labels in that list."""
        sizes = [int(of.max()) + 1 for of in self.group_of.values()]
        offsets = np.cumsum([0, *sizes])
        return offsets, np.stack(list(self.group_of.values())) + offsets[:-1, None]


def pack_attributes(labels: Ints, group_of: Mapping[str, Ints]) -> list[PermutedLabels]:
    """Pack labels so that every attribute is counted once, or follows from another.

    `labels` are cells of the finest partition, draws x images; `group_of` is the group of each
    cell, by attribute.
    """
    finest: dict[str, list[str]] = {}
    for name in sorted(group_of, key=lambda name: -int(group_of[name].max())):
        of = group_of[name]
        for base in finest:
            pairs = {(int(b), int(g)) for b, g in zip(group_of[base], of, strict=True)}
            if len(pairs) == len(np.unique(group_of[base])):
                finest[base].append(name)
                break
        else:
            finest[name] = [name]
    cells = len(next(iter(group_of.values())))
    pages = sum(-(-(int(group_of[base].max()) + 1) // PAGE) for base in finest)
    if -(-cells // PAGE) <= pages:
        return [PermutedLabels.pack(labels, cells, dict(group_of))]
    packed = []
    for base, names in finest.items():
        of_base = group_of[base]
        size = int(of_base.max()) + 1
        maps = {}
        for name in names:
            maps[name] = np.zeros(size, np.int64)
            maps[name][of_base] = group_of[name]
        codes = of_base.astype(np.min_scalar_type(size))
        packed.append(PermutedLabels.pack(codes[labels], size, maps))
    return packed


def ndkl_sums(items: int) -> tuple[Floats, Floats, Floats]:
    """x ln x for counts x, and sums of the discounts d_i and of d_i / i up to each rank."""
    x = np.arange(items + 1.0)
    discount = 1 / np.log2(x[1:] + 1)
    d_sum, d_sum_each = (np.append(0.0, np.cumsum(d)) for d in (discount, discount / x[1:]))
    return x * np.log(np.maximum(x, 1.0)), d_sum, d_sum_each


@jit
def _pack(codes: Ints, bits: Ints) -> None:
    for start in range(0, codes.shape[1], 1024):  # these stay in the cache
        for d in range(codes.shape[0]):
            word, at = d // 64, _U(d % 64)
            for i in range(start, min(start + 1024, codes.shape[1])):
                for p in range(bits.shape[1]):
                    bits[i, p, word] |= (_U(codes[d, i]) >> _U(p) & _U(1)) << at


@jit
def _top_counts(top: Ints, bits: Ints, labels: int, ks: Ints, flat: Ints, out: Ints) -> None:
    x, near, counts = _buffers(bits, labels)
    for q in range(top.shape[0]):
        counts[:] = 0
        start = 0
        for at in range(len(ks)):
            _count(top, q, start, ks[at], bits, labels, near, x, counts)
            start = ks[at]
            out[at, q] = 0
            for a in range(flat.shape[0]):
                for label in range(labels):
                    for d in range(DRAWS):
                        out[at, q, d, flat[a, label]] += counts[label, d]


@jit
def _ndkl(
    order: Ints,
    bits: Ints,
    labels: int,
    flat: Ints,
    offsets: Ints,
    log_target: Floats,
    ends: Ints,
    xlogx: Floats,
    d_sum: Floats,
    d_sum_each: Floats,
    out: Floats,
) -> None:
    attributes = flat.shape[0]
    x, near, counts = _buffers(bits, labels)
    groups, gain = np.zeros((len(log_target), DRAWS), np.uint32), np.empty(DRAWS)
    for q in range(order.shape[0]):
        counts[:] = 0
        f, total = np.zeros((attributes, DRAWS)), np.zeros((attributes, DRAWS))
        before = 0
        for end in ends:
            _count(order, q, before, end, bits, labels, near, x, counts)
            each = d_sum_each[end] - d_sum_each[before]
            later = d_sum[end] - d_sum[before] - before * each
            for a in range(attributes):
                for g in range(offsets[a], offsets[a + 1]):
                    groups[g] = 0
                for label in range(labels):
                    row, more = groups[flat[a, label]], counts[label]
                    for d in range(DRAWS):
                        row[d] += more[d]
                gain[:] = 0.0
                for g in range(offsets[a], offsets[a + 1]):
                    row, log_q = groups[g], log_target[g]
                    for d in range(DRAWS):
                        gain[d] += xlogx[row[d]] - row[d] * log_q
                for d in range(DRAWS):  # F = i KL goes straight from one end to the next
                    now = max(gain[d] - xlogx[end], 0.0)
                    total[a, d] += f[a, d] * each + (now - f[a, d]) / (end - before) * later
                    f[a, d] = now
            before = end
        for a in range(attributes):
            for d in range(DRAWS):
                out[a, q, d] = total[a, d] / d_sum[order.shape[1]]


@jit
def _buffers(bits: Ints, labels: int) -> tuple[Ints, Ints, Ints]:
    """Rows of bits: those of items, then the bits of counts; labels nearby; and the counts."""
    pages = (labels + PAGE - 1) // PAGE
    x = np.zeros((ITEMS + _COUNT_BITS, pages * WORDS * PAGE), np.uint64)
    near = np.zeros((ITEMS, bits.shape[1]), np.uint64)
    return x, near, np.zeros((labels, DRAWS), np.uint32)


@jit
def _count(
    order: Ints,
    q: int,
    start: int,
    end: int,
    bits: Ints,
    labels: int,
    near: Ints,
    x: Ints,
    counts: Ints,
) -> None:
    """Add the items of some ranks to the counts, labels x draws."""
    planes = 1
    while (1 << planes) <= end - start:
        planes += 1
    x[ITEMS : ITEMS + max(planes, 4)] = 0
    for first in range(start, end, ITEMS):
        rows = min(ITEMS, end - first)
        _read(order, q, first, rows, bits, near, x)
        x[rows:ITEMS] = 0
        _add(x, planes)
    halves = x.view(np.uint32)  # 32 draws each
    for label in range(labels):
        page, at = label // PAGE, label % PAGE
        for half in range(2 * WORDS):
            column = 2 * ((page * WORDS + half // 2) * PAGE + at) + half % 2
            row = counts[label, 32 * half : 32 * half + 32]
            for p in range(planes):
                word = halves[ITEMS + p, column]
                for d in range(32):
                    row[d] += (word >> np.uint32(d) & np.uint32(1)) << np.uint32(p)


@jit
def _read(order: Ints, q: int, first: int, rows: int, bits: Ints, near: Ints, x: Ints) -> None:
    """One row per item: in which draws it has which label."""
    for i in range(rows):  # first all of them: reads of distant memory overlap
        item = _U(order[q, _U(first + i)])
        for p in range(bits.shape[1]):
            near[_U(i), _U(p)] = bits[item, _U(p)]
    for i in range(rows):
        row = _U(i)
        for page in range(x.shape[1] // (WORDS * PAGE)):
            for w in range(WORDS):
                word, upper = _U(w), ~_U(0)
                for p in range(4, bits.shape[1] // WORDS):
                    flip = _U(page >> (p - 4) & 1) - _U(1)
                    upper &= near[row, _U(WORDS * p) + word] ^ flip
                a, b = near[row, word], near[row, _U(WORDS) + word]
                c, e = near[row, _U(2 * WORDS) + word], near[row, _U(3 * WORDS) + word]
                at = _U((WORDS * page + w) * PAGE)
                for label in range(PAGE):
                    j = _U(label)
                    low = (a ^ FLIP[0, j]) & (b ^ FLIP[1, j])
                    x[row, at + j] = upper & low & (c ^ FLIP[2, j]) & (e ^ FLIP[3, j])


@jit
def _add(x: Ints, planes: int) -> None:
    """Add rows of 16 items to counts whose bits are the rows after them."""
    step = 1
    for bit in range(4):  # pairs of ones make twos, pairs of twos make fours ...
        for i in range(0, ITEMS, 2 * step):
            _full_add(x[ITEMS + bit], x[i], x[i + step])
        step *= 2
    carry = x[0]  # the sixteens
    for bit in range(4, planes):
        total = x[ITEMS + bit]
        for j in range(len(carry)):
            both = total[j] & carry[j]
            total[j] ^= carry[j]
            carry[j] = both


@jit
def _full_add(total: Ints, a: Ints, b: Ints) -> None:
    """Add two bits to a third; `a` becomes the carry."""
    for j in range(len(total)):
        odd = a[j] ^ b[j]
        carry = (a[j] & b[j]) | (odd & total[j])
        total[j] ^= odd
        a[j] = carry
