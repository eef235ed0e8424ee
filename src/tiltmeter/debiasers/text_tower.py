"""A text tower with learned tokens among its words, and the parts of a model that can be tuned.

Tokens enter behind the embedding layer, at one of three places. `after_sos` puts them behind the
mark that begins a text: they have positions like words, and the words move up. `before_sos` puts
them before that mark, as the authors' code does: they have no position, and words keep theirs.
`appended` puts them behind the last word, before the mark that ends the text. All of them count
among the places that a tower has, so that so much less of a long text is read.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from tiltmeter.errors import InputError, UnknownNameError
from tiltmeter.types import Ints

PLACES = ("after_sos", "before_sos", "appended")
#: How tokens start, beside any word that the model knows.
STARTS = ("token0", "zeros", "random")
#: What can be tuned; `text:3` is the last three layers of that tower; several are joined by +.
PARTS = ("tokens", "projection", "text_projection", "image_projection", "text", "image")
#: The names that parts have in the networks: of transformers' CLIP and SigLIP, and of the testbed.
ENDS = {
    "text": ("text_projection", "text_model.final_layer_norm", "text_model.head",
             "text_norm", "text_out"),
    "image": ("visual_projection", "vision_model.post_layernorm", "vision_model.head",
              "image_norm", "image_out"),
}  # fmt: skip
LAYERS = {
    "text": ("text_model.encoder.layers", "text"),
    "image": ("vision_model.encoder.layers", "image"),
}
STEMS = {"text": ("text_model.embeddings", "words"), "image": ("vision_model", "patches")}


@dataclass(frozen=True, eq=False)
class TokenBatch:
    """Texts as numbers, with room for the learned tokens."""

    ids: Tensor  # n x length; where a learned token stands, the text's first number
    mask: Tensor | None  # n x length: 1 where something stands; None: padding counts as text
    slot: Tensor  # n x length: which learned token stands there, -1 for none

    def __len__(self) -> int:
        return len(self.ids)

    def to(self, device: torch.device | str) -> TokenBatch:
        mask = None if self.mask is None else self.mask.to(device)
        return TokenBatch(self.ids.to(device), mask, self.slot.to(device))

    def rows(self, rows: Tensor, length: int) -> TokenBatch:
        """Some of the texts, of which the longest has `length`."""
        mask = None if self.mask is None else self.mask[rows, :length]
        return TokenBatch(self.ids[rows, :length], mask, self.slot[rows, :length])

    def lengths(self) -> Ints:
        """How many places each text takes."""
        if self.mask is None:
            return torch.full((len(self),), self.ids.shape[1]).numpy()
        return self.mask.sum(dim=1).cpu().numpy()


def joined(parts: Sequence[TokenBatch]) -> TokenBatch:
    """Several as one, padded to the longest with what the mask leaves out."""
    longest = max(part.ids.shape[1] for part in parts)

    def wide(x: Tensor, value: int) -> Tensor:
        return F.pad(x, (0, longest - x.shape[1]), value=value)

    masks = [part.mask for part in parts]
    return TokenBatch(
        torch.cat([wide(part.ids, 0) for part in parts]),
        None if masks[0] is None else torch.cat([wide(m, 0) for m in masks if m is not None]),
        torch.cat([wide(part.slot, -1) for part in parts]),
    )


def make_room(ids: Tensor, mask: Tensor | None, start: Tensor, count: int) -> TokenBatch:
    """Leaves `count` places in each text, from its `start` on."""
    at = torch.arange(ids.shape[1] + count)
    behind = at - start[:, None]
    inside = (behind >= 0) & (behind < count)
    source = torch.where(behind < 0, at, at - count).masked_fill(inside, 0).clamp(min=0)
    wide = None if mask is None else mask.gather(1, source)
    return TokenBatch(ids.gather(1, source), wide, torch.where(inside, behind, -1))


def with_tokens(words: Tensor, slot: Tensor, tokens: Tensor) -> Tensor:
    """Embedded words, with learned tokens where these stand."""
    there = tokens[slot.clamp(min=0)].to(words.dtype)
    return torch.where(slot[..., None] >= 0, there, words)


class TextTower:
    """The text tower of a model, with room for `count` tokens."""

    pad = 0  # the number that texts are filled up with

    def __init__(self, model: Any, place: str, count: int) -> None:
        if place not in PLACES:
            raise UnknownNameError("place for learned tokens", place, PLACES)
        self.model, self.network = model, model.network
        self.place, self.count = place, count

    @property
    def embedding(self) -> nn.Embedding:
        raise NotImplementedError

    @property
    def longest(self) -> int:
        """How many places a text has, learned tokens among them."""
        raise NotImplementedError

    def numbers(self, texts: Sequence[str]) -> tuple[Tensor, Tensor | None]:
        """Texts as numbers, and where something stands; None: padding counts as text."""
        raise NotImplementedError

    def begins(self, ids: Tensor) -> Tensor:
        """Whether a mark stands before the first word of each text: 1 or 0."""
        return torch.ones(len(ids), dtype=torch.int64)

    @property
    def end(self) -> int:
        """The number of the mark that ends a text."""
        raise NotImplementedError

    def vectors(self, laid: TokenBatch, tokens: Tensor) -> Tensor:
        """Unit vectors of texts, with gradients to tokens and weights."""
        raise NotImplementedError

    def lay(self, texts: Sequence[str]) -> TokenBatch:
        """Texts with room for the tokens; what is too long then loses its last words."""
        ids, mask = self.numbers(texts)
        limit = self.longest - self.count
        if ids.shape[1] > limit:
            ids, mask = ids[:, :limit].clone(), None if mask is None else mask[:, :limit]
            over = ids[:, -1] != self.pad if mask is None else mask[:, -1] > 0
            ids[over, -1] = self.end
        if self.place == "appended":
            start = self.ends(ids, mask)
        else:
            start = self.begins(ids) * (self.place == "after_sos")
        return make_room(ids, mask, start, self.count)

    def start(self, how: str, generator: torch.Generator) -> Tensor:
        """Tokens before they learn: token 0 of the vocabulary, zeros, random ones, or a word."""
        table = self.embedding.weight.detach()
        if how == "zeros":
            return torch.zeros(self.count, table.shape[1])
        if how == "random":  # as spread as the vocabulary
            drawn = torch.randn(self.count, table.shape[1], generator=generator)
            return drawn * table.std().cpu()
        numbers = [0] if how == "token0" else self.word(how)
        rows = [numbers[at % len(numbers)] for at in range(self.count)]
        return table[rows].cpu().clone()

    def ends(self, ids: Tensor, mask: Tensor | None) -> Tensor:
        """How many places stand before the mark that ends each text, or before its padding."""
        over = (ids == self.end) | (ids == self.pad if mask is None else mask == 0)
        return torch.where(over.any(dim=1), over.int().argmax(dim=1), ids.shape[1])

    def word(self, word: str) -> list[int]:
        """The numbers of a word's pieces."""
        ids, mask = self.numbers([word])
        found: list[int] = ids[0, int(self.begins(ids)) : int(self.ends(ids, mask))].tolist()
        if not found:
            raise InputError(f"tokens cannot start from {word!r}: it has no pieces")
        return found


class TransformersTower(TextTower):
    """CLIP and what is built like it in transformers: the library's own pass, with a hook."""

    def __init__(self, model: Any, place: str, count: int) -> None:
        super().__init__(model, place, count)
        self.pad = getattr(model.tokenizer, "pad_token_id", None) or 0

    @property
    def embedding(self) -> nn.Embedding:
        return self.network.text_model.embeddings.token_embedding  # type: ignore[no-any-return]

    @property
    def longest(self) -> int:
        return int(self.model.longest)

    @property
    def end(self) -> int:
        return int(self.model.tokenizer.eos_token_id)

    def numbers(self, texts: Sequence[str]) -> tuple[Tensor, Tensor | None]:
        made = self.model.tokens(texts)
        return made["input_ids"], made.get("attention_mask")

    def begins(self, ids: Tensor) -> Tensor:
        first = self.model.tokenizer.bos_token_id  # SigLIP's texts begin with their first word
        return (ids[:, 0] == (-1 if first is None else first)).long()

    def vectors(self, laid: TokenBatch, tokens: Tensor) -> Tensor:
        given: dict[str, Any] = {"input_ids": laid.ids}
        if laid.mask is not None:
            given["attention_mask"] = laid.mask
        site: nn.Module = self.embedding
        if self.place == "before_sos" and self.count:
            site = self.network.text_model.embeddings  # behind the positions
            at = torch.arange(laid.ids.shape[1], device=laid.ids.device)
            given["position_ids"] = (at - self.count).clamp(min=0)[None]

        def put(module: nn.Module, was: Any, found: Tensor) -> Tensor:
            return with_tokens(found, laid.slot, tokens) if self.count else found

        hook = site.register_forward_hook(put)
        try:
            found = self.network.get_text_features(**given)
        finally:
            hook.remove()
        vector = found if isinstance(found, Tensor) else found.pooler_output
        return F.normalize(vector.float(), dim=-1)


class TestbedTower(TextTower):
    """The text tower of the testbed's networks, whose vector is read off at the first mark."""

    __test__ = False

    @property
    def embedding(self) -> nn.Embedding:
        return self.network.words.word  # type: ignore[no-any-return]

    @property
    def longest(self) -> int:
        return int(self.network.words.place.shape[1])

    @property
    def end(self) -> int:
        return int(self.model.tokens(["a"])[0, -1])

    def numbers(self, texts: Sequence[str]) -> tuple[Tensor, Tensor | None]:
        ids = self.model.tokens(texts)
        return ids, (ids != 0).long()

    def vectors(self, laid: TokenBatch, tokens: Tensor) -> Tensor:
        words, before = self.network.words, self.place == "before_sos"
        at = torch.arange(laid.ids.shape[1], device=laid.ids.device)
        places = words.place[0, (at - self.count).clamp(min=0) if before else at]
        x = words.word(laid.ids)
        if not self.count:
            x = x + places
        elif before:
            x = with_tokens(x + places, laid.slot, tokens)
        else:
            x = with_tokens(x, laid.slot, tokens) + places
        mask = (laid.slot >= 0) | (laid.ids != 0)
        for layer in self.network.text:
            x = layer(x, mask[:, None, None, :])
        first = self.count if before else 0
        return self.network.text_vector(self.network.text_norm(x)[:, first:].float())  # type: ignore[no-any-return]


def tower_of(model: Any, place: str, count: int) -> TextTower:
    """The text tower of a model, if it is one that tokens can be put into."""
    network = vars(model).get("network")  # its own: what wraps a model changes more than that
    if hasattr(getattr(network, "words", None), "place") and hasattr(network, "text_out"):
        return TestbedTower(model, place, count)
    embeddings = getattr(getattr(network, "text_model", None), "embeddings", None)
    if hasattr(embeddings, "token_embedding") and hasattr(network, "get_text_features"):
        return TransformersTower(model, place, count)
    raise InputError(
        f"{getattr(model, 'name', type(model).__name__)} has no text tower that learned tokens can "
        "be put into: expected CLIP or one built like it (MetaCLIP 2, SigLIP) of hf:, or "
        "testbed:dual or testbed:fusion"
    )


def tuned_parts(network: nn.Module, tune: str) -> dict[str, nn.Parameter]:
    """The weights that `tune` names, beside the tokens; 'text:3+projection' is a fair example."""
    wanted: list[str] = []
    for part in tune.split("+"):
        name, colon, count = part.partition(":")
        if name not in PARTS or (colon and (name not in LAYERS or not count.isdigit())):
            raise UnknownNameError("part to tune", part, (*PARTS, "text:3", "image:3"))
        if name in LAYERS:
            layers = _layers(network, name)
            if colon and not 0 < int(count) <= len(layers):
                raise InputError(
                    f"{part}: the {name} tower has {len(layers)} layers; give 1 to {len(layers)}"
                )
            wanted += layers[-int(count) :] if colon else [*layers, *STEMS[name], *ENDS[name]]
        if name.endswith("projection"):
            side = name.partition("_")[0]
            wanted += [one for key in ENDS if side in ("projection", key) for one in ENDS[key]]
    return {
        name: weight
        for name, weight in network.named_parameters()
        if any(name == one or name.startswith(f"{one}.") for one in wanted)
    }


def in_image_tower(names: Sequence[str]) -> bool:
    """Whether weights of these names change the vectors of images."""
    roots = (*ENDS["image"], *LAYERS["image"], *STEMS["image"])
    return any(name == root or name.startswith(f"{root}.") for name in names for root in roots)


def _layers(network: nn.Module, tower: str) -> list[str]:
    for path in LAYERS[tower]:
        try:
            found = network.get_submodule(path)
        except AttributeError:
            continue
        if isinstance(found, nn.ModuleList):
            return [f"{path}.{at}" for at in range(len(found))]
    raise InputError(f"{type(network).__name__} has no layers of a {tower} tower that are known")
