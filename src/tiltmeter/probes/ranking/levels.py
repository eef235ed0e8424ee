"""The rows for a list of prompts: which prompts each averages, and what it is compared with."""

from __future__ import annotations

import zlib
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np
import pyarrow as pa

from tiltmeter.results.schema import chosen
from tiltmeter.types import Floats, Ints, Prompt


@dataclass(frozen=True, eq=False)
class RowUnit:
    """The prompts that one row averages, with the word and template of each."""

    prompts: Ints
    words: Ints
    templates: Ints
    concept: str | None = None
    category: str | None = None
    template: str | None = None

    @cached_property
    def even(self) -> Floats:
        """Weights that make every word count the same, however many templates it has."""
        _, inverse, counts = np.unique(self.words, return_inverse=True, return_counts=True)
        return np.asarray(1 / counts[inverse])

    @cached_property
    def one_word(self) -> bool:
        """Whether this is one word in different templates."""
        different = len(np.unique(self.templates)) == len(self.templates)
        return different and bool((self.words == self.words[0]).all())


class Level(list[RowUnit]):
    """Rows of one kind: what does not depend on an estimate is computed once for all of them."""

    @cached_property
    def first(self) -> Ints:
        """The first prompt of each unit."""
        return np.array([unit.prompts[0] for unit in self])

    @cached_property
    def single(self) -> Ints:
        """Whether each unit is one prompt."""
        return np.array([len(unit.prompts) == 1 for unit in self])

    @cached_property
    def prompts(self) -> Ints:
        """Prompts of all units, one unit after the other."""
        return np.concatenate([unit.prompts for unit in self])

    @cached_property
    def last(self) -> int:
        """The last prompt of all units."""
        return int(self.prompts.max())

    @cached_property
    def batches(self) -> tuple[list[tuple[Ints, Ints]], list[int]]:
        """Numbers and prompts of one-word units with equally many templates; numbers of the others.

        Prompts are units x templates, in the order of templates.
        """
        batches: dict[int, list[int]] = {}
        others = []
        for number, unit in enumerate(self):
            if unit.one_word:
                batches.setdefault(len(unit.prompts), []).append(number)
            else:
                others.append(number)
        grids = [
            np.stack(
                [self[number].prompts[np.argsort(self[number].templates)] for number in numbers]
            )
            for numbers in batches.values()
        ]
        numbers_of = [np.array(numbers) for numbers in batches.values()]
        return list(zip(numbers_of, grids, strict=True)), others

    def undefined(self, values: Floats) -> Ints:
        """Number of undefined values of each unit, units x columns, of prompts x columns."""
        starts = np.cumsum([0, *(len(unit.prompts) for unit in self[:-1])])
        return np.add.reduceat(np.isnan(values[self.prompts]), starts, axis=0, dtype=np.int64)

    def names(self, columns: int) -> dict[str, pa.Array]:
        """Concept, category and template of each unit, for rows of so many columns each."""
        if columns not in self._names:
            at = np.repeat(np.arange(len(self)), columns)
            self._names[columns] = {
                name: chosen([getattr(unit, name) for unit in self], at)
                for name in ("concept", "category", "template")
            }
        return self._names[columns]

    @cached_property
    def _names(self) -> dict[int, dict[str, pa.Array]]:
        return {}


#: Part of speech and templates: a word is compared with neutral words of the same kind.
Kind = tuple[str, tuple[str, ...]]


def concepts(prompts: Sequence[Prompt]) -> Level:
    """Each word, in each of its categories, with all its prompts."""
    members: dict[tuple[str, str, str], list[int]] = {}
    for row, prompt in enumerate(prompts):
        if prompt.role == "word":
            members.setdefault((prompt.concept, prompt.category, prompt.pos), []).append(row)
    return Level(
        _unit(prompts, prompt_rows, word, concept, category or None)
        for word, ((concept, category, _), prompt_rows) in enumerate(members.items())
    )


def _unit(
    prompts: Sequence[Prompt], prompt_rows: list[int], word: int, concept: str, category: str | None
) -> RowUnit:
    templates = [prompts[row].template for row in prompt_rows]
    template = templates[0] or None if len(prompt_rows) == 1 else None
    # the same template has the same code everywhere
    codes = np.array([zlib.crc32(template.encode()) for template in templates])
    return RowUnit(
        np.array(prompt_rows), np.full(len(prompt_rows), word), codes, concept, category, template
    )


def _kind(unit: RowUnit, prompts: Sequence[Prompt]) -> Kind:
    return prompts[unit.prompts[0]].pos, tuple(
        sorted(prompts[row].template for row in unit.prompts)
    )


def _units_of_kinds(level: Level, prompts: Sequence[Prompt]) -> dict[Kind, Ints]:
    numbers: dict[Kind, list[int]] = {}
    for number, unit in enumerate(level):
        numbers.setdefault(_kind(unit, prompts), []).append(number)
    return {kind: np.array(some) for kind, some in numbers.items()}


def placebos_of(kind: Kind, prompts: Sequence[Prompt]) -> Level:
    """Neutral words of one part of speech that are in all of the templates."""
    pos, templates = kind
    rows_of: dict[str, list[int]] = {}
    for row, prompt in enumerate(prompts):
        if prompt.role == "placebo" and prompt.pos == pos and prompt.template in templates:
            rows_of.setdefault(prompt.concept, []).append(row)
    complete = [
        (concept, prompt_rows)
        for concept, prompt_rows in rows_of.items()
        if len(prompt_rows) == len(templates)
    ]
    return Level(
        _unit(prompts, prompt_rows, word, concept, "placebo")
        for word, (concept, prompt_rows) in enumerate(complete)
    )


def _joined(units: Sequence[RowUnit], category: str | None) -> RowUnit:
    return RowUnit(
        np.concatenate([unit.prompts for unit in units]),
        np.concatenate([unit.words for unit in units]),
        np.concatenate([unit.templates for unit in units]),
        category=category,
    )


@dataclass(frozen=True, eq=False)
class AggregationLevels:
    """The rows for a list of prompts: levels over words, and the neutral words to compare with."""

    levels: list[Level]
    kinds: dict[Kind, Level]  # neutral words
    units_of: list[dict[Kind, Ints]]  # of each level; empty for totals
    shown: list[Kind]  # neutral words that get rows of their own
    #: Prompts of words that share their templates, words x templates.
    grids: dict[Kind, Ints]

    @property
    def words(self) -> Level:
        """The level whose units are words."""
        return [level for level in self.levels if level[0].concept][-1]

    @classmethod
    def of(cls, prompts: Sequence[Prompt]) -> AggregationLevels:
        words = concepts(prompts)
        # single prompts get rows only where a concept has several
        single = [
            RowUnit(unit.prompts[[i]], unit.words[[i]], unit.templates[[i]], unit.concept,
                 unit.category, prompts[unit.prompts[i]].template)
            for unit in words if len(unit.prompts) > 1
            for i in range(len(unit.prompts))
        ]  # fmt: skip
        categories = sorted({unit.category for unit in words if unit.category})
        by_category = [
            _joined([unit for unit in words if unit.category == category], category)
            for category in categories
        ]
        everything = [_joined(words, None)] if len(words) > 1 else []
        all_levels = [single, words, by_category if len(categories) > 1 else [], everything]
        levels = [Level(level) for level in all_levels if level]
        kinds = [_units_of_kinds(level, prompts) if level[0].concept else {} for level in levels]
        placebos = {kind: placebos_of(kind, prompts) for unit_kinds in kinds for kind in unit_kinds}
        by_kind: dict[Kind, list[RowUnit]] = {}
        for unit in words:
            by_kind.setdefault(_kind(unit, prompts), []).append(unit)
        grids = {
            kind: np.stack([unit.prompts[np.argsort(unit.templates)] for unit in units])
            for kind, units in by_kind.items()
            if len(kind[1]) > 1
        }
        return cls(levels, placebos, kinds, list(by_kind), grids)
