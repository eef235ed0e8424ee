"""BEND-VLM (Gerych et al. 2024): each query is bent in its own way, when it is asked.

First the query loses what the groups' prompts span, and what its own forms for each group ("a male
nurse", "a female nurse") differ in. Then it is moved as little as can be so that it is as near to
the mean of the closest reference images of one group as to that of any other: with p_g these means
and Q spanning p_g - p_0, normalise((I - QQ') e).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np

from tiltmeter.debiasers.debiaser import GIVEN_BY, GroupTexts, LabelMap
from tiltmeter.debiasers.group_prompts import group_words, with_group
from tiltmeter.debiasers.subspace import ROUNDING, basis, prompt_vectors, renewed, without
from tiltmeter.errors import InputError, UnknownNameError
from tiltmeter.metrics.arrays import is_torch, like, namespace, unit
from tiltmeter.types import Array, Floats, Groups, Ints

#: Queries that are bent together: their scores and neighbours are held at once.
BLOCK = 128


class Bend(LabelMap):
    """BEND-VLM (Gerych et al. 2024): bends each query until it is as near to every group.

    Labelled images serve as the reference; a query's forms come from a table, no language model is
    asked. `project` is the first step. The second one compares the nearest `neighbours` images of
    each group, in `rounds`: once as in the paper, 0 to leave it out, or again with those that are
    nearest to the bent query. Images stay as they are.
    """

    needs = ("labels", "prompts")

    def __init__(self, neighbours: int = 100, project: bool = True, rounds: int = 1) -> None:
        self.neighbours = neighbours
        self.project = project
        self.rounds = rounds

    def learn(self, x: Floats, labels: Groups, texts: GroupTexts | None) -> None:
        if texts is None:
            raise InputError(f"this method learns from texts too: {GIVEN_BY['prompts']}")
        for name in texts.naming:
            if name not in labels.names:
                raise UnknownNameError("group named by the prompts", name, labels.names)
        there = [(n, int(c)) for n, c in zip(labels.names, labels.counts, strict=True) if c]
        name, fewest = min(there, key=lambda one: one[1])
        if self.rounds < 0:
            raise InputError(f"rounds of the second step are 0 or more; got {self.rounds}")
        if not 1 <= self.neighbours <= fewest:
            raise InputError(
                f"neighbours = {self.neighbours}, but {name!r} has {fewest} reference images: give "
                f"more of them, or a number from 1 to {fewest} (--option neighbours={fewest})"
            )
        self.words_: list[str] = group_words(texts, [name for name, _ in there])
        self.forms_: dict[str, list[str]] = {
            text: [forms[name] for name, _ in there] for text, forms in texts.forms.items()
        }
        self.basis_: Floats = basis(np.concatenate(prompt_vectors(texts)))
        order = np.argsort(labels.codes, kind="stable")  # group after group
        self.references_: Floats = np.asarray(unit(x), np.float32)[order]
        self.counts_: Ints = np.array([count for _, count in there])

    def map_images(self, vectors: Array) -> Array:
        self.check_fitted()
        return vectors

    def map_texts(
        self, vectors: Array, texts: Sequence[str], encode: Callable[[Sequence[str]], Array]
    ) -> Array:
        self.check_fitted()
        if not self.project and not self.rounds:
            return vectors
        xp = namespace(vectors)
        found = [
            self._bent(vectors[at : at + BLOCK], texts[at : at + BLOCK], encode)
            for at in range(0, len(vectors), BLOCK)
        ]
        return found[0] if len(found) == 1 else xp.concatenate(found)

    def forms(self, text: str) -> list[str]:
        """A query with each group named in it: as the table has it, else by the group's word."""
        return self.forms_.get(text) or [with_group(text, word) for word in self.words_]

    def _bent(
        self, vectors: Array, texts: Sequence[str], encode: Callable[[Sequence[str]], Array]
    ) -> Array:
        before = like(vectors, vectors)
        e = before
        if self.project:
            said = like(vectors, encode([form for text in texts for form in self.forms(text)]))
            said = said.reshape(len(texts), len(self.words_), -1)
            apart = without(said[:, 1:] - said[:, :1], self.basis_)
            e = renewed(orthogonal(without(e, self.basis_), apart), before)
        for _ in range(self.rounds):
            means = self._nearest(e)
            e = renewed(orthogonal(e, means[:, 1:] - means[:, :1]), e)
        return like(vectors, e, str(vectors.dtype).rpartition(".")[2])

    def _nearest(self, queries: Array) -> Array:
        """The mean of each group's nearest reference images, queries x groups x dimensions."""
        found = []
        queries = like(queries, queries, "float32")
        for part in np.split(self.references_, np.cumsum(self.counts_)[:-1]):
            images = like(queries, part, "float32")
            scores = queries @ images.T
            if is_torch(scores):
                near = scores.topk(self.neighbours, dim=1).indices
            else:
                near = np.argpartition(-scores, self.neighbours - 1, axis=1)[:, : self.neighbours]
            found.append(like(queries, images[near].mean(1)))
        return namespace(queries).stack(found, 1)


def orthogonal(vectors: Array, rows: Array) -> Array:
    """Each vector without what its own rows span: n x d, n x rows x d."""
    xp = namespace(vectors)
    turned = xp.swapaxes(rows, 1, 2)
    values, turn = xp.linalg.eigh(rows @ turned)
    there = values > ROUNDING**2  # rows that others already span count for nothing
    inverse = there / xp.where(there, values, xp.ones_like(values))
    along = xp.swapaxes(turn, 1, 2) @ (rows @ vectors[:, :, None])
    return vectors - (turned @ (turn @ (inverse[:, :, None] * along)))[:, :, 0]
