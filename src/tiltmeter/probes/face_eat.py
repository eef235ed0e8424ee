"""WEAT between words and groups of faces (Berg et al. 2022, Appendix A and Figure 4).

Are favourable adjectives closer to the faces of one group than to those of the others, compared
with unfavourable ones? There are two readings of the same question. In the paper's appendix the
targets are texts and the attributes images; in the authors' code (`eval_weat`) the targets are
images and the attributes texts. Their effects are divided by different standard deviations, over
words or over images, and are not compared.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import pyarrow as pa

from tiltmeter import stimuli
from tiltmeter.errors import InputError, UnknownNameError
from tiltmeter.metrics.arrays import to_numpy, unit
from tiltmeter.metrics.convention import Convention
from tiltmeter.probes.eat import Stimuli, constants, effect_rows, weat_effect
from tiltmeter.probes.probe import AuditContext, Probe, unknown_word_cannot_run
from tiltmeter.results import INSTANCES, combined
from tiltmeter.stats.resampling import Resampling
from tiltmeter.types import Faces, TextEncoder

#: What the targets are.
READINGS = ("texts", "images")
WORDS = "berg-weat"


def face_eat(
    model: TextEncoder,
    faces: Faces,
    *,
    attributes: Sequence[str],
    words: stimuli.Stimuli | None = None,
    reading: str = "texts",
    ddof: str = "caliskan",
    convention: Convention | None = None,
    resampling: Resampling | None = None,
) -> tuple[pa.Table, pa.Table]:
    """WEAT of pairs of adjectives and groups of faces, in each template and over all of them.

    Parameters
    ----------
    model : TextEncoder
        The model to audit.
    faces : Faces
        Images with embeddings.
    attributes : sequence of str
        Attributes; of two groups the first is compared with the second, of more each with the rest.
    words : Stimuli, optional
        A list of pairs, the favourable word first, with templates. Defaults to `berg-weat`.
    reading : {"texts", "images"}
        What the targets are: texts (the paper's appendix) or images (its code).
    ddof : str
        Denominator of the effect size, a key of `DDOF`.
    convention : Convention, optional
        Recorded only.
    resampling : Resampling, optional
        Numbers of permutations and bootstrap resamples, and the seed.

    Returns
    -------
    tuple of pyarrow.Table
        Rows of RESULTS, and no INSTANCES. A positive effect: favourable words are closer to the
        group.

    Raises
    ------
    UnknownNameError
        If `reading` or `ddof` is unknown.
    InputError
        If the list has no pairs or no templates.
    CannotRunError
        If the model does not know a word.
    """
    if reading not in READINGS:
        raise UnknownNameError("reading of face_eat (what the targets are)", reading, READINGS)
    words = words or stimuli.load(WORDS)
    templates = [template for texts in words.templates.values() for template in texts]
    if not words.pairs or not templates:
        raise InputError(f"{words.name} has no pairs or no templates: expected a list as {WORDS}")
    resampling = resampling or Resampling()
    rng = np.random.default_rng(resampling.seed)
    head = constants(model, "face_eat", faces.name, ddof, convention, resampling.seed)
    sides = [
        _texts(model, words, [pair[side] for pair in words.pairs], templates) for side in (0, 1)
    ]
    images = np.asarray(unit(to_numpy(faces.vectors), "images"), np.float64)
    effects, found = [], []
    for attribute in attributes:
        groups = faces.attribute(attribute)
        present = np.flatnonzero(groups.counts)
        for code in present[:1] if len(present) == 2 else present:
            others = f"not {groups.names[code]}" if len(present) > 2 else groups.names[present[1]]
            inside = groups.codes == code
            group, rest = (
                Stimuli(name, "image", (name,) * int(rows.sum()), images[rows][:, None])
                for name, rows in ((groups.names[code], inside), (others, ~inside))
            )
            for at in (None, *range(len(templates))):
                good, bad = (
                    Stimuli(name, "text", side.labels,
                            side.vectors if at is None else side.vectors[:, at : at + 1])
                    for name, side in zip(("favourable", "unfavourable"), sides, strict=True)
                )  # fmt: skip
                x, y, a, b = (good, bad, group, rest)
                if reading == "images":
                    x, y, a, b = group, rest, good, bad
                effects.append(weat_effect(x, y, a, b, ddof, resampling, rng, side="two"))
                template = None if at is None else templates[at]
                found.append((attribute, group, rest, template, len(x) + len(y) + len(a) + len(b)))
    kind = "text-image" if reading == "texts" else "image-text"
    table = effect_rows(
        effects,
        head,
        side="two",
        metric="weat",
        experiment=f"WEAT {kind}, {ddof}",
        attribute=[attribute for attribute, *_ in found],
        group=[f"{group.name} against {rest.name}" for _, group, rest, *_ in found],
        target="favourable against unfavourable",
        template=[template for *_, template, _ in found],
        category=words.name,
        n=[n for *_, n in found],
        n_group=[len(group) for _, group, *_ in found],
    )
    return table, combined([], INSTANCES)


def _texts(
    model: TextEncoder, words: stimuli.Stimuli, chosen: Sequence[str], templates: Sequence[str]
) -> Stimuli:
    """Words in templates: words x templates x dimensions."""
    prompts = stimuli.prompts(
        list(chosen), templates=templates, articles=stimuli.articles_of(words)
    )
    with unknown_word_cannot_run():
        vectors = np.asarray(unit(to_numpy(model.encode_texts([p.text for p in prompts])), "texts"))
    shape = (len(chosen), len(templates), -1)
    return Stimuli("", "text", tuple(chosen), np.asarray(vectors, np.float64).reshape(shape))


def _run(
    model: TextEncoder, data: Mapping[str, Any], context: AuditContext
) -> tuple[pa.Table, pa.Table]:
    faces = context.with_embeddings(data["faces"])
    return face_eat(
        model,
        faces,
        attributes=context.attributes_of(faces),
        words=stimuli.load(context.options["words"]),
        reading=context.options["reading"],
        convention=context.convention,
        resampling=context.resampling,
    )


PROBE = Probe(
    "Association tests of favourable words with groups of faces: WEAT, in two readings.",
    _run,
    needs=("faces",),
    options={"words": WORDS, "reading": "texts"},
    enabled_by=(),
)
