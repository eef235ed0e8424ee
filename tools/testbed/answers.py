"""Questions and answers about scenes in batches, and the loss of a writer that answers them.

Where an answer names a concept, or is chosen from options, the label is the probability of every
word, not the one word that was drawn: the same loss on average, with less noise.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor
from torch.utils.data import DataLoader, IterableDataset, get_worker_info

from tiltmeter.testbed.captions import KINDS as CAPTIONS
from tiltmeter.testbed.captions import SHARES, caption_table
from tiltmeter.testbed.dialogue import ANSWER, FIRST_TEMPLATE, KINDS, QUESTION, Dialogue, words
from tiltmeter.testbed.language import HUES, encode, vocabulary
from tiltmeter.testbed.render import Scenes, render
from tiltmeter.testbed.world import WORD_OF_ITS_OWN, World
from tools.testbed.expected import Icons, named_groups
from tools.testbed.train import draw_cells

OPTIONS = 3


class QuestionStream(IterableDataset[tuple[Tensor, Tensor]]):
    """Endless new scenes with questions and answers: rows of integers, and of probabilities."""

    def __init__(self, world: World, batch: int, seed: int) -> None:
        self.world, self.batch, self.seed = world, batch, seed

    def __iter__(self) -> Iterator[tuple[Tensor, Tensor]]:
        torch.set_num_threads(1)
        worker = get_worker_info()
        rng = np.random.default_rng([self.seed, worker.id if worker else 0])
        world, dialogue, n = self.world, Dialogue(self.world), self.batch
        while True:
            concept = world.draw_concepts(n, rng)
            group = world.draw_groups(concept, rng)
            word = world.draw_words(concept, group, rng)
            scenes = world.scenes(n, rng, concept=concept, group=group, cells=draw_cells(n, rng))
            turns = dialogue.ask(concept, group, word, rng)
            said = turns.captions
            hidden = said.masked[:, 1:] == vocabulary()["[MASK]"]  # the concept's words
            named = (turns.kind == KINDS.index("caption")) & (said.kind != CAPTIONS.index("group"))
            place = np.where(named, hidden.argmax(axis=1), 0)
            name = np.where(said.kind == CAPTIONS.index("both"), said.name, -1)
            parts = (*vars(scenes).values(), turns.question, turns.answer, turns.options, place,
                     named, name, said.row)  # fmt: skip
            rows = np.concatenate([x.reshape(n, -1) for x in parts], axis=1)
            yield torch.as_tensor(rows), torch.as_tensor(turns.chances, dtype=torch.float32)


def question_rows(
    world: World, batch: int, seed: int, workers: int
) -> Iterator[tuple[Tensor, Tensor]]:
    """Batches of a stream, drawn by worker processes in a fixed order."""
    return iter(
        DataLoader(
            QuestionStream(world, batch, seed),
            batch_size=None,
            num_workers=workers,
            prefetch_factor=4 if workers else None,
            pin_memory=torch.cuda.is_available(),
        )
    )


@dataclass(frozen=True, eq=False)
class Batch:
    """Pixels as the network takes them, questions, answers, and probabilities of words."""

    pixels: Tensor
    question: Tensor
    answer: Tensor
    place: Tensor  # of the answer's word that has probabilities; -1 where none has
    chances: Tensor  # n x vocabulary


class Labels:
    """Makes batches of the rows of a stream, on the device."""

    def __init__(self, world: World, device: torch.device) -> None:
        def move(x: Any) -> Tensor:
            return torch.as_tensor(x).to(device, torch.float32)

        example = vars(world.scenes(1, np.random.default_rng(0)))
        self.flat = [name for name, x in example.items() if x.ndim == 1]
        self.widths = {name: x.size for name, x in example.items()}
        self.icons = Icons(world.codes, device)
        self.figures = move(world.given_concept.T * world.prior)  # groups x concepts
        self.names = named_groups().to(device)
        is_target = np.isin(np.arange(len(world.concepts)), world.targets)
        self.words = self.names @ move(world.word_given_concept.T)  # names x concepts
        self.targets = move(is_target)
        first = [encode([concept.name])[0][1] for concept in world.concepts]
        self.first = torch.as_tensor(np.array(first), device=device)
        kinds, weights = _prefixes(world, is_target)
        self.kinds, self.weights = torch.as_tensor(kinds, device=device), move(weights)

    def __call__(self, rows: Tensor, chances: Tensor) -> Batch:
        *parts, question, answer, options, last = rows.split(
            [*self.widths.values(), QUESTION, ANSWER, OPTIONS, 4], dim=1
        )
        place, named, name, row = last.unbind(dim=1)
        named = named > 0
        columns = {
            key: x[:, 0] if key in self.flat else x
            for key, x in zip(self.widths, parts, strict=True)
        }
        scenes = Scenes(**columns)
        group, w = scenes.shape * len(HUES) + scenes.hue, WORD_OF_ITS_OWN
        weight = self.figures[group] * self.icons.fit(scenes)
        fits = self.names[name].gather(1, group[:, None])
        of_both = ((1 - w) * fits + w * self.words[name]) * self.targets
        weight = weight * torch.where((name >= 0)[:, None], of_both, self.weights[self.kinds[row]])
        weight = weight * named[:, None]
        weight = weight / weight.sum(dim=1, keepdim=True).clamp(min=1e-30)
        p = torch.zeros(len(rows), len(words()), device=rows.device)
        p = p.index_add(1, self.first, weight).scatter_add(1, options, chances)
        pixels = render(scenes).permute(0, 3, 1, 2).float() / 127.5 - 1
        place = torch.where(p.sum(dim=1) > 0, place, -1)
        return Batch(pixels.contiguous(), question, answer, place, p)


def _prefixes(world: World, is_target: Any) -> tuple[Any, Any]:
    """The words before the concept of each caption, and how often each concept has them.

    Returns the number of the prefix of each row of `caption_table`, and prefixes x
    concepts: the probability of a caption about the concept alone that begins so.
    """
    tokens, masked, begins = caption_table(world.concepts)
    # kinds of captions: of a concept that is no target, those of both become those of a concept
    alone, _, both = SHARES
    share = np.where(is_target, alone, alone + both)
    known: dict[tuple[int, ...], int] = {}
    kinds = np.empty(len(tokens), np.int64)
    entries: list[tuple[int, int, float]] = []
    for concept in range(len(world.concepts)):
        own = range(begins[concept], begins[concept + 1])
        for row in own:
            end = (masked[row] == vocabulary()["[MASK]"]).argmax()
            kinds[row] = known.setdefault(tuple(tokens[row, :end].tolist()), len(known))
            often = (1 - FIRST_TEMPLATE) / len(own) + FIRST_TEMPLATE * (row == own[0])
            entries.append((kinds[row], concept, share[concept] * often))
    weights = np.zeros((len(known), len(world.concepts)))
    for kind, concept, weight in entries:
        weights[kind, concept] += weight
    return kinds, weights


def next_word_loss(network: Any, batch: Batch, blind: float) -> Tensor:
    """Mean loss of the answers, a share of them without the image."""
    seen = int(len(batch.question) * (1 - blind))
    total = torch.zeros((), device=batch.pixels.device)
    for rows, sees in ((slice(0, seen), True), (slice(seen, None), False)):
        if batch.question[rows].shape[0]:
            total = total + answer_loss(network, batch, rows, sees_image=sees)
    return total / len(batch.question)


def answer_loss(network: Any, batch: Batch, rows: slice, *, sees_image: bool) -> Tensor:
    """Sum over some rows. The sequence is [CLS], image, question without padding, answer."""
    question, answer, model = batch.question[rows], batch.answer[rows], network.model
    begin = torch.full_like(question[:, :1], words()["[CLS]"])
    embed = model.language_model.embed_tokens
    # questions have different lengths: the answer follows at once, padding comes last
    text = _joined(question, answer)
    parts = [embed(begin), embed(text)]
    if sees_image:
        features = model.get_image_features(pixel_values=batch.pixels[rows]).pooler_output
        features = features if isinstance(features, Tensor) else torch.stack(list(features))
        parts.insert(1, features.to(parts[0].dtype))
    states = model.language_model(inputs_embeds=torch.cat(parts, dim=1)).last_hidden_state
    states = states[:, -text.shape[1] - 1 : -1]  # each predicts the text's token at its place
    length = (question != 0).sum(dim=1, keepdim=True)
    position = torch.arange(ANSWER, device=text.device) + length
    own = states.gather(1, position[..., None].expand(-1, -1, states.shape[-1]))
    with torch.autocast(text.device.type, enabled=False):
        log_p = F.linear(own.float(), embed.weight.float()).log_softmax(dim=-1)
        place = batch.place[rows, None]
        by_chance = torch.arange(ANSWER, device=text.device) == place
        drawn = log_p.gather(2, answer[..., None])[..., 0]
        hard = (drawn * ((answer != 0) & ~by_chance)).sum()
        at_place = log_p.gather(1, place.clamp(min=0)[..., None].expand(-1, 1, log_p.shape[-1]))
        return -hard - (batch.chances[rows] * at_place[:, 0]).sum()


def _joined(question: Tensor, answer: Tensor) -> Tensor:
    """Question and answer without the padding between them."""
    length = (question != 0).sum(dim=1, keepdim=True)
    at = torch.arange(QUESTION + ANSWER, device=question.device).expand(len(question), -1)
    both = torch.cat([question, answer], dim=1)
    later = (at - length + QUESTION).clamp(max=both.shape[1] - 1)
    return both.gather(1, torch.where(at < length, at, later))
