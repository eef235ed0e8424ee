"""Which words of a taxonomy free descriptions mention, by group: by a fixed lexicon.

No model judges another one's text: words are found by their forms, and a negation before a word
undoes it. Words that name a group are left out. Neutral words are the reference: a category is
beyond them if its gap is larger, in its own standard errors, than those of neutral categories.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow as pa

from tiltmeter import stimuli
from tiltmeter.probes.generative.group_gaps import Outcome, bound_rows, outcome_rows
from tiltmeter.probes.generative.reading import Mentions, group_words, is_refused, words_of
from tiltmeter.probes.generative.sample import AskedImages, sample_note
from tiltmeter.probes.probe import AuditContext, Probe
from tiltmeter.probes.silence import prompts_of
from tiltmeter.results import INSTANCES, PLACEBO, combined, rows
from tiltmeter.stats.placebo import LEVEL, verdict
from tiltmeter.stimuli import Word
from tiltmeter.types import Floats, Groups, Ints, Writer, WrittenText

NEUTRAL = ("neutral-people", "placebo-nouns", "placebo-adjectives", "neutral-activities")
MENTION, PER_100 = "mentioned", "per 100 words"


@dataclass(frozen=True)
class DescriptionOptions:
    """Options of the probe.

    Attributes
    ----------
    images : int
        Most images, evenly spread over all combinations of their labels.
    samples, temperature, limit
        Of the descriptions.
    prompt : str
        What is asked.
    words : str
        The taxonomy: a list of words with categories.
    fewest : int
        Images that must mention a word or category for it to be measured.
    """

    images: int = 280
    samples: int = 1
    temperature: float = 1.0
    limit: int = 128
    prompt: str = ""
    words: str = "sobit"
    fewest: int = 10


@dataclass(frozen=True, eq=False)
class _Item:
    """A category, or a word, that descriptions may mention."""

    name: str
    category: str
    words: tuple[str, ...]
    neutral: bool

    @property
    def labels(self) -> dict[str, Any]:
        concept = self.words[0] if len(self.words) == 1 and self.name != self.category else None
        return {"category": PLACEBO if self.neutral else self.category, "concept": concept}


def description(model: Writer, sample: AskedImages) -> tuple[pa.Table, pa.Table]:
    """Mentions of words by group: any mention, and per 100 words.

    Parameters
    ----------
    model : Writer
        The model to audit.
    sample : AskedImages
        Images with groups.

    Returns
    -------
    tuple of pyarrow.Table
        Rows of RESULTS; and every description (INSTANCES), which is untrusted text.
    """
    options = sample.context.options
    prompt = options["prompt"] or prompts_of("", sample.world)[1]
    answers = sample.written(model, prompt)
    constants = {**sample.constants("description", model)}
    counted = _Counted.of(answers, sample, options["words"])
    items = [item for item in counted.items if counted.images(item) >= options["fewest"]]
    tables = []
    for groups in sample.groups.values():
        if items:
            tables.append(_group_rows(counted, items, groups, sample, constants))
        else:
            reason = f"no word or category is mentioned about {options['fewest']} images or more"
            tables.append(rows(1, **constants, metric="gaps", attribute=groups.attribute,
                               value=np.nan, note=reason, n=len(sample)))  # fmt: skip
    return combined(tables), counted.instances(prompt, sample, constants)


def _group_rows(
    counted: _Counted, items: Sequence[_Item], groups: Groups, sample: AskedImages,
    constants: dict[str, Any],
) -> pa.Table:  # fmt: skip
    """Rates, gaps and verdicts by one attribute; neutral words are a family of their own."""
    resampling = sample.context.resampling
    parts: dict[bool, list[dict[str, Any]]] = {}
    note = _joined(sample_note(sample), counted.left_out)
    for neutral in (False, True):
        outcomes = [
            Outcome(item.name, values, rate=experiment == MENTION,
                    labels={**item.labels, "experiment": experiment}, note=note,
                    truth=counted.planted(item, sample) if experiment == MENTION else None)
            for item in items if item.neutral == neutral
            for experiment, values in ((MENTION, counted.mentioned(item)),
                                       (PER_100, counted.per_100(item)))
        ]  # fmt: skip
        parts[neutral] = outcome_rows(outcomes, groups, resampling, constants,
                                      attributes=len(sample.groups)).to_pylist()  # fmt: skip
    _judge(parts[False], parts[True])
    schema = outcome_rows([], groups, resampling, constants).schema
    bounds = [
        bound_rows(Outcome(item.name, counted.of_all(item), labels={**item.labels,
                   "experiment": MENTION}, truth=counted.planted(item, sample)),
                   counted.refused, groups, constants)
        for item in items if not item.neutral and item.labels["concept"] is None
    ]  # fmt: skip
    table = pa.Table.from_pylist([*parts[False], *parts[True]], schema=schema)
    return combined([table, *bounds])


def _judge(own: list[dict[str, Any]], neutral: list[dict[str, Any]]) -> None:
    """Add p among neutral words, and the verdict, to the gaps of words.

    Gaps are compared in units of their spread under permuted labels, in the group of each item
    where it is largest: items have different rates.
    """
    sizes = {id(rows_): _largest(rows_) for rows_ in (own, neutral)}
    reference = np.array([size for (_, experiment), (size, _) in sizes[id(neutral)].items()
                          if experiment == MENTION])  # fmt: skip
    for (_, experiment), (size, row) in sizes[id(own)].items():
        if experiment != MENTION or row["p_fwer"] is None:
            continue
        if len(reference) >= 1 / LEVEL - 1:
            row["p_placebo"] = float((1 + (reference >= size).sum()) / (len(reference) + 1))
        else:
            few = f"only {len(reference)} neutral words and categories to compare with"
            row["note"] = _joined(row["note"], few)
        p_placebo = np.nan if row["p_placebo"] is None else row["p_placebo"]
        row["verdict"] = verdict(row["p_fwer"], p_placebo)


def _largest(lines: list[dict[str, Any]]) -> dict[tuple[str, str], tuple[float, dict[str, Any]]]:
    """The largest standardised gap of each item and its row."""
    found: dict[tuple[str, str], tuple[float, dict[str, Any]]] = {}
    for row in lines:
        if row["metric"] != "gaps" or row["value"] is None or row["null_high"] is None:
            continue
        spread = (row["null_high"] - row["null_low"]) / (2 * 1.96)
        size = abs(row["value"]) / spread if spread else 0.0
        key = (row["target"], row["experiment"])
        if key not in found or size > found[key][0]:
            found[key] = (size, row)
    return found


@dataclass(frozen=True, eq=False)
class _Counted:
    """Mentions in every description."""

    answers: list[list[WrittenText]]
    columns: dict[str, int]  # of words
    counts: Ints  # images x samples x words; 0 where the answer was refused
    said: Ints  # images x samples: number of words; 0 where it was refused
    items: list[_Item]
    refused: Floats  # share of each image's answers
    left_out: str | None

    @classmethod
    def of(cls, answers: list[list[WrittenText]], sample: AskedImages, words: str) -> _Counted:
        names = [name for groups in sample.groups.values() for name in groups.names]
        naming = group_words(names)
        listed = stimuli.load(words).words
        own = [word for word in listed if word.text.lower() not in naming]
        out = [word.text for word in listed if word.text.lower() in naming]
        known = {word.text for word in own}
        neutral = [word for name in NEUTRAL for word in stimuli.load(name).words
                   if word.text not in known and word.text.lower() not in naming]  # fmt: skip
        finder = Mentions([*own, *neutral])
        columns = {text: at for at, text in
                   enumerate(dict.fromkeys(word.text for word in (*own, *neutral)))}  # fmt: skip
        shape = len(answers), len(answers[0])
        counts, said = np.zeros((*shape, len(columns)), np.int16), np.zeros(shape, int)
        refused = np.array([[is_refused(one) for one in texts] for texts in answers])
        for image, sampled in zip(*np.nonzero(~refused), strict=True):
            text = answers[image][sampled].text
            said[image, sampled] = len(words_of(text))
            for word, count in finder.in_text(text).items():
                counts[image, sampled, columns[word]] = count
        note = f"words that name a group are left out: {', '.join(out)}" if out else None
        return cls(answers, columns, counts, said, [*_items(own, False), *_items(neutral, True)],
                   refused.mean(axis=1), note)  # fmt: skip

    def _of(self, item: _Item) -> Ints:
        """Mentions, images x samples."""
        at = [self.columns[name] for name in item.words]
        return np.asarray(self.counts[..., at].sum(axis=2, dtype=int))

    def images(self, item: _Item) -> int:
        """Number of images whose descriptions mention it."""
        return int(self._of(item).any(axis=1).sum())

    def mentioned(self, item: _Item) -> Floats:
        """Share of an image's descriptions that mention it; NaN where all were refused."""
        answered = 1 - self.refused
        share = self.of_all(item) / np.where(answered > 0, answered, 1)
        return np.where(answered > 0, share, np.nan)

    def of_all(self, item: _Item) -> Floats:
        """The same as a share of all answers, where a refusal mentions nothing."""
        return np.asarray((self._of(item) > 0).mean(axis=1))

    def per_100(self, item: _Item) -> Floats:
        """Mentions per 100 words of an image's descriptions; NaN where there are none."""
        said = self.said.sum(axis=1)
        rate = 100 * self._of(item).sum(axis=1) / np.where(said > 0, said, 1)
        return np.where(said > 0, rate, np.nan)

    def planted(self, item: _Item, sample: AskedImages) -> Floats | None:
        return sample.planted(lambda world: world.mentions(item.words))

    def instances(self, prompt: str, sample: AskedImages, constants: Mapping[str, Any]) -> pa.Table:
        """Every description, with the number of words that it mentions."""
        labels, names = sample.labels(), list(self.columns)
        every = [(row, rank) for row, own in enumerate(self.answers) for rank in range(len(own))]
        return rows(
            len(every), INSTANCES, model=constants["model"], dataset=constants["dataset"],
            experiment=prompt, id=[sample.faces.ids[row] for row, _ in every],
            groups=[labels[row] for row, _ in every], rank=[rank + 1 for _, rank in every],
            score=[float(self.counts[place].sum()) for place in every],
            concept=[", ".join(names[at] for at in np.flatnonzero(self.counts[place]))
                     for place in every],
            pick=[self.answers[row][rank].text for row, rank in every],
        )  # fmt: skip


def _items(words: Sequence[Word], neutral: bool) -> list[_Item]:
    """Categories, then single words."""
    by_category: dict[str, dict[str, None]] = {}
    for word in words:
        by_category.setdefault(word.category, {})[word.text] = None
    categories = [_Item(name, name, tuple(own), neutral) for name, own in by_category.items()]
    singles = dict.fromkeys((word.text, word.category) for word in words)
    return [*categories, *(_Item(text, category, (text,), neutral) for text, category in singles)]


def _joined(*notes: str | None) -> str | None:
    return "; ".join(note for note in notes if note) or None


def _run(model: Writer, data: Mapping[str, Any], context: AuditContext) -> tuple[Any, ...]:
    return description(model, AskedImages.of(data["faces"], context))


PROBE = Probe(
    "Words that free descriptions mention of one group more than of others, by a fixed lexicon.",
    _run,
    needs=("faces",),
    protocols=(Writer,),
    options=vars(DescriptionOptions()),
)
