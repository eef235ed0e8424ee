"""Which tokens have to be read to score texts on one cached prompt, and where their scores are."""

from __future__ import annotations

from dataclasses import dataclass
from math import ceil
from typing import Any

import torch
from torch import Tensor

_Context = tuple[tuple[int, ...], list[int]]  # tokens to read; numbers of the texts they score


@dataclass(frozen=True, eq=False)
class Share:
    """Texts of several tokens that are scored in one pass."""

    read: Tensor  # contexts x steps; what follows a context's end comes later, and is never used
    texts: Tensor  # numbers of the texts
    places: tuple[Tensor, Tensor, Tensor]  # context, step and number of every token but the first
    owners: Tensor  # for each place: the position of its text in `texts`

    def logprobs(self, logits: Tensor) -> Tensor:
        """Log-likelihoods of all tokens but the first, images x texts."""
        contexts, steps = self.read.shape
        p = logits.float().log_softmax(dim=-1).reshape(-1, contexts, steps, logits.shape[-1])
        total = torch.zeros(len(p), len(self.texts), device=p.device)
        return total.index_add(1, self.owners, p[:, *self.places])


class ContinuedTexts:
    """Texts that may follow a prompt.

    Everything is moved to the device once: a copy for every pass would wait for the one before.
    """

    def __init__(self, ids: list[list[int]], device: torch.device) -> None:
        self._ids, self._device = ids, device
        self._contexts = by_context(ids)
        self._shares: dict[int, list[Share]] = {}
        self.first = torch.tensor([pieces[0] for pieces in ids], device=device)

    def shares(self, most: int) -> list[Share]:
        """At most so many contexts each, as equal as can be: equal ones share a cache."""
        if most not in self._shares:
            number = max(1, ceil(len(self._contexts) / most))
            size = max(1, ceil(len(self._contexts) / number))
            parts = range(0, len(self._contexts), size)
            self._shares[most] = [self._share(self._contexts[at : at + size]) for at in parts]
        return self._shares[most]

    def _share(self, contexts: list[_Context]) -> Share:
        steps = max(len(read) for read, _ in contexts)
        texts = [(row, at) for row, (_, own) in enumerate(contexts) for at in own]
        places = [(row, step, token, owner) for owner, (row, at) in enumerate(texts)
                  for step, token in enumerate(self._ids[at][1:])]  # fmt: skip
        *place, owners = self._tensor(places).unbind(dim=1)
        return Share(
            self._tensor([[*read, *[0] * (steps - len(read))] for read, _ in contexts]),
            self._tensor([at for _, at in texts]),
            (place[0], place[1], place[2]),
            owners,
        )

    def _tensor(self, numbers: Any) -> Tensor:
        return torch.tensor(numbers, device=self._device)


def by_context(ids: list[list[int]]) -> list[_Context]:
    """What has to be read to score texts of several tokens, and which texts each of it scores.

    Texts often differ in their last word only: what they have in common is read once.

    >>> by_context([[7, 8, 1], [7, 8, 2], [5], [7, 3]])
    [((7, 8), [0, 1, 3])]
    """
    contexts: dict[tuple[int, ...], list[int]] = {}
    within: dict[tuple[int, ...], tuple[int, ...]] = {}  # a beginning: the context that has it
    for at in sorted(range(len(ids)), key=lambda at: -len(ids[at])):
        read = tuple(ids[at][:-1])
        if not read:
            continue
        if read not in within:
            contexts[read] = []
            for end in range(1, len(read) + 1):
                within.setdefault(read[:end], read)
        contexts[within[read]].append(at)
    return list(contexts.items())
