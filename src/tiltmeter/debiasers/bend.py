"""BEND-VLM (Gerych et al. 2024): each query is corrected in its own way, at query time.

First the query is projected off what the groups' prompts span, and what its own forms for each
group ("a male nurse", "a female nurse") differ in. Then it is moved as little as possible so that
it is as near to the mean of the closest reference images of one group as to that of any other: with
p_g these means and Q spanning p_g - p_0, normalise((I - QQ') e).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np

from tiltmeter.debiasers.debiaser import GIVEN_BY, GroupTexts, LabelMap, check_at_least, like_input
from tiltmeter.debiasers.group_prompts import group_words, with_group
from tiltmeter.debiasers.subspace import (
    ROUNDING,
    basis,
    normalise_rest,
    project_out,
    prompt_vectors,
)
from tiltmeter.errors import InputError, UnknownNameError
from tiltmeter.metrics.arrays import is_torch, like, namespace, unit
from tiltmeter.types import Array, Floats, Groups, Ints

#: Queries that are corrected together: their scores and neighbours are in memory at once.
BLOCK = 128


@dataclass(eq=False)
class Bend(LabelMap):
    """BEND-VLM (Gerych et al. 2024): moves each query until it is as near to every group.

    Labelled images are the reference set. A query's forms for each group come from a table; no
    language model is used. Images are unchanged, and `transform` leaves its input unchanged: texts
    are mapped by `map_texts`, which sees the query.

    Parameters
    ----------
    neighbours
        Nearest reference images of each group that the second step compares.
    project
        Whether to do the first step, the projection.
    rounds
        How often the second step is done: once in the paper, 0 to leave it out. Each round uses the
        images that are nearest to the query as it is then.

    Attributes
    ----------
    words_ : list of str
        The word for each group.
    forms_ : dict
        For each query of the table, its form for each group.
    basis_ : array of shape (rank, n_dimensions)
        What the groups' prompts span.
    references_ : array of shape (n_images, n_dimensions)
        Reference images, group after group.
    counts_ : array of shape (n_groups,)
        Number of reference images of each group.
    """

    needs = ("labels", "prompts")

    neighbours: int = 100
    project: bool = True
    rounds: int = 1

    def _fit(self, x: Floats, labels: Groups, texts: GroupTexts | None) -> None:
        if texts is None:
            raise InputError(f"this method learns from texts too: {GIVEN_BY['prompts']}")
        for name in texts.group_prompts:
            if name not in labels.names:
                raise UnknownNameError("group named by the prompts", name, labels.names)
        present = [(n, int(c)) for n, c in zip(labels.names, labels.counts, strict=True) if c]
        name, fewest = min(present, key=lambda group: group[1])
        check_at_least(0, rounds=self.rounds)
        if not 1 <= self.neighbours <= fewest:
            raise InputError(
                f"neighbours = {self.neighbours}, but {name!r} has {fewest} reference images: fit "
                f"on more, or use a number from 1 to {fewest} (--option neighbours={fewest})"
            )
        self.words_: list[str] = group_words(texts, [name for name, _ in present])
        self.forms_: dict[str, list[str]] = {
            text: [forms[name] for name, _ in present] for text, forms in texts.forms.items()
        }
        self.basis_: Floats = basis(np.concatenate(prompt_vectors(texts)))
        order = np.argsort(labels.codes, kind="stable")  # group after group
        self.references_: Floats = np.asarray(unit(x), np.float32)[order]
        self.counts_: Ints = np.array([count for _, count in present])

    def _transform(self, X: Array) -> Array:
        return X

    def map_texts(
        self, X: Array, texts: Sequence[str], encode: Callable[[Sequence[str]], Array]
    ) -> Array:
        self.check_fitted()
        if not self.project and not self.rounds:
            return X
        blocks = [
            self._bend(X[at : at + BLOCK], texts[at : at + BLOCK], encode)
            for at in range(0, len(X), BLOCK)
        ]
        return blocks[0] if len(blocks) == 1 else namespace(X).concatenate(blocks)

    def forms(self, text: str) -> list[str]:
        """Return a query with each group named in it: from the table, else by the group's word."""
        return self.forms_.get(text) or [with_group(text, word) for word in self.words_]

    def _bend(
        self, X: Array, texts: Sequence[str], encode: Callable[[Sequence[str]], Array]
    ) -> Array:
        before = like(X, X)
        e = before
        if self.project:
            forms = like(X, encode([form for text in texts for form in self.forms(text)]))
            forms = forms.reshape(len(texts), len(self.words_), -1)
            differences = project_out(forms[:, 1:] - forms[:, :1], self.basis_)
            rest = project_out_each(project_out(e, self.basis_), differences)
            e = normalise_rest(rest, before)
        for _ in range(self.rounds):
            means = self._neighbour_means(e)
            e = normalise_rest(project_out_each(e, means[:, 1:] - means[:, :1]), e)
        return like_input(X, e)[0]

    def _neighbour_means(self, queries: Array) -> Array:
        """The mean of each group's nearest reference images, queries x groups x dimensions."""
        means = []
        queries = like(queries, queries, "float32")
        for part in np.split(self.references_, np.cumsum(self.counts_)[:-1]):
            images = like(queries, part, "float32")
            scores = queries @ images.T
            if is_torch(scores):
                nearest = scores.topk(self.neighbours, dim=1).indices
            else:
                order = np.argpartition(-scores, self.neighbours - 1, axis=1)
                nearest = order[:, : self.neighbours]
            means.append(like(queries, images[nearest].mean(1)))
        return namespace(queries).stack(means, 1)


def project_out_each(X: Array, rows: Array) -> Array:
    """Return each vector without what its own rows span: n x d, n x rows x d."""
    xp = namespace(X)
    columns = xp.swapaxes(rows, 1, 2)
    values, turn = xp.linalg.eigh(rows @ columns)
    nonzero = values > ROUNDING**2  # rows that others already span count for nothing
    inverse = nonzero / xp.where(nonzero, values, xp.ones_like(values))
    along = xp.swapaxes(turn, 1, 2) @ (rows @ X[:, :, None])
    return X - (columns @ (turn @ (inverse[:, :, None] * along)))[:, :, 0]
