"""Error rates of lift on real faces: `python -m benchmarks.lift_on_faces MODEL --images SPEC`.

Whether neutral words are comparable with the words they judge is told by random visible splits of
the images, where 5% of words should have p_word < .05; false findings by permuted labels; both
without looking at real labels. The last tables use them.
"""

from __future__ import annotations

import argparse
import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

import numpy as np
from scipy.stats import beta

import tiltmeter as tm
from tiltmeter import stimuli
from tiltmeter.metrics.arrays import unit
from tiltmeter.metrics.group_lift import lift_of_group_scores, lift_standard_error
from tiltmeter.metrics.summary import Moments
from tiltmeter.probes.embeddings import image_embeddings
from tiltmeter.stats.lift_verdict import RULE, WordVerdicts, enough_images, word_verdicts
from tiltmeter.stats.random_visible_splits import random_visible_splits
from tiltmeter.stimuli.words import Word
from tiltmeter.types import Faces, Floats, Groups, Ints

TEMPLATES = {"noun": "a photo of a {}", "adjective": "a photo of a {} person"}


@dataclass(frozen=True, eq=False)
class Scores:
    """Scores of words and of neutral words, words x images."""

    words: list[str]
    of_words: Floats
    of_neutral: Floats
    categories: list[str | None]  # of neutral words

    def judged(self, codes: Ints, names: Sequence[str], drop: str = "") -> WordVerdicts:
        """Verdicts by groups of images; without the neutral words of one category."""
        kept = np.array([category != drop for category in self.categories])
        neutral = self.of_neutral[kept]
        middle = neutral.mean(axis=0)
        moments = [Moments.of(x - middle, Groups(codes, tuple(names), "group"))
                   for x in (self.of_words, neutral)]  # fmt: skip
        enough = enough_images(np.asarray(moments[0].count))
        words, reference = (
            Moments(one.count[enough], one.mean[:, enough], one.m2[:, enough]) for one in moments
        )
        return word_verdicts(
            lift_of_group_scores(words.mean, reference.mean),
            lift_standard_error(words),
            lift_of_group_scores(reference.mean, reference.mean),
            np.asarray(words.count).astype(int),
            replace(RULE, neutral_words=1) if drop else RULE,  # fewer are left on purpose
        )


def references() -> dict[str, tuple[str, list[Word]]]:
    """Lists that words may be judged by: part of speech and words of each."""
    people = list(stimuli.load("neutral-people").words)
    objects = list(stimuli.load("placebo-nouns").words)
    phrases = [replace(word, text=stimuli.fill("person with a {}", word.text)) for word in objects]
    return {
        "object nouns": ("noun", objects),
        "person with a ...": ("noun", phrases),
        "person nouns and phrases": ("noun", people + phrases[::2]),
        "person nouns": ("noun", people),
        "neutral adjectives": ("adjective", list(stimuli.load("placebo-adjectives").words)),
    }


def interval(hits: int, n: int) -> str:
    """Exact binomial interval of a share."""
    low = beta.ppf(0.025, hits, n - hits + 1) if hits else 0.0
    high = beta.ppf(0.975, hits + 1, n - hits) if hits < n else 1.0
    return f"{hits / n:.3f} [{low:.3f}, {high:.3f}]"


def shares(found: Iterator[WordVerdicts]) -> str:
    """Mean share of words with p_word < .05, and audits with a flag."""
    below, flagged = [], []
    for one in found:
        below.append(float((one.p_word < 0.05).mean()))
        flagged.append(bool(one.flagged.any()))
    error = np.std(below, ddof=1) / math.sqrt(len(below))
    return f"{np.mean(below):.3f} ± {1.96 * error:.3f} | {interval(sum(flagged), len(flagged))}"


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0] if __doc__ else None)
    parser.add_argument("model")
    parser.add_argument("--images", required=True)
    parser.add_argument("--words", default="sobit")
    parser.add_argument("--splits", type=int, default=200)
    parser.add_argument("--permuted", type=int, default=60)
    parser.add_argument("--seed", type=int, default=0)
    options = parser.parse_args()
    model, faces = tm.load_model(options.model), tm.load_data(options.images)
    images = np.asarray(unit(image_embeddings(model, faces), "images"), float)

    def score(words: Sequence[Word], pos: str) -> Floats:
        prompts = stimuli.prompts(words, templates=TEMPLATES[pos])
        texts = np.asarray(unit(model.encode_texts([p.text for p in prompts]), "texts"), float)
        return np.asarray(model.logit_scale * texts @ images.T)

    own = list(stimuli.load(options.words).words)
    scores = {}
    for name, (pos, neutral) in references().items():
        words = list({word.text: word for word in own if word.pos == pos}.values())
        scores[name] = Scores([word.text for word in words], score(words, pos),
                              score(neutral, pos), [word.category for word in neutral])  # fmt: skip
    report(faces, scores, images, options)


def report(faces: Faces, scores: dict[str, Scores], images: Floats,
           options: argparse.Namespace) -> None:  # fmt: skip
    """All tables."""
    rng = np.random.default_rng(options.seed)
    attributes = {name: faces.attribute(name) for name in ("gender", "race", "race*gender")}
    cells = faces.attribute("*".join(faces.groups)).codes
    print(f"{len(images)} images\n\nrandom visible splits | p_word < .05 | audits with a flag")
    for groups in (2, 7):
        for name, one in scores.items():
            made = random_visible_splits(images, cells, groups, options.splits, rng)
            names = [str(code) for code in range(groups)]
            print(f"{groups}-way | {name} | {shares(one.judged(codes, names) for codes in made)}")
    print("\npermuted labels | p_word < .05 | audits with a flag")
    for attribute, by in attributes.items():
        for name in ("person nouns", "neutral adjectives"):
            drawn = (scores[name].judged(rng.permutation(by.codes), by.names)
                     for _ in range(options.permuted))  # fmt: skip
            print(f"{attribute} | {name} | {shares(drawn)}")
    print("\nwithout one category of neutral words: words associated by gender")
    for name in ("person nouns", "neutral adjectives"):
        by = attributes["gender"]
        dropped = sorted({category or "" for category in scores[name].categories})
        kept = {drop: int(scores[name].judged(by.codes, by.names, drop).flagged.sum())
                for drop in dropped}  # fmt: skip
        whole = int(scores[name].judged(by.codes, by.names).flagged.sum())
        print(f"{name}: {whole} with all; {kept}")
    for attribute, by in attributes.items():
        for name in ("person nouns", "neutral adjectives"):
            print(f"\n{attribute}, {name}: {largest(scores[name], by)}")
    few_images(scores["neutral adjectives"], attributes["gender"], rng)


def largest(one: Scores, by: Groups) -> str:
    """Counts, and the ten words whose lift stands out most."""
    found = one.judged(by.codes, by.names)
    order = np.argsort(-np.abs(np.nan_to_num(found.lift)), kind="stable")[:10]
    words = ", ".join(
        f"{one.words[at]} {math.exp(found.lift[at]):.2f}x {by.names[found.group[at]]} "
        f"({found.verdict[at]})"
        for at in order
    )
    counts = {
        verdict: found.verdict.count(verdict) for verdict in sorted({*map(str, found.verdict)})
    }
    return f"{counts}; p_word < .05: {int((found.p_word < 0.05).sum())}; {words}"


def few_images(one: Scores, by: Groups, rng: np.random.Generator, repeats: int = 40) -> None:
    """Words found, and how much their lift is exaggerated, with few images of each group."""
    whole = one.judged(by.codes, by.names)
    print("\nimages per group | words associated | their size, times that of all images (median)")
    for images in (10, 20, 50, 200):
        if images < RULE.group_images:
            print(f"{images} | no verdict: fewer than {RULE.group_images} | -")
            continue
        found, times = [], []
        for _ in range(repeats):
            rows = np.concatenate([rng.choice(np.flatnonzero(by.codes == code), images, False)
                                   for code in range(len(by.names))])  # fmt: skip
            part = Scores(one.words, one.of_words[:, rows], one.of_neutral[:, rows], one.categories)
            judged = part.judged(by.codes[rows], by.names)
            found.append(int(judged.flagged.sum()))
            times += [
                abs(judged.lift[at] / whole.lift[at]) for at in np.flatnonzero(judged.flagged)
            ]
        exaggerated = f"{np.median(times):.2f}x" if times else "-"
        print(f"{images} | {np.mean(found):.1f} | {exaggerated}")


if __name__ == "__main__":
    main()
