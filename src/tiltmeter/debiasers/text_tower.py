"""A text tower with learned tokens among its words, and the parts of a model that can be tuned.

Tokens are inserted after the embedding layer, at one of these places:

- `after_sos`: after the start token. They have positions like words, and the words move up.
- `before_sos`: before the start token, as the authors' code does. They have no position, and words
  keep theirs.
- `appended`: after the last word, before the end token.
- `append_after_eos`: after the end token. Towers that read a text at its end token (CLIP) read it
  at the last learned token instead: the end token does not see what follows it.
- `add`: none is inserted. They are added to the first words, one to each.

Inserted tokens count towards the tower's maximum length, so less of a long text is read.
"""

from __future__ import annotations

import copy
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from tiltmeter.errors import InputError, UnknownNameError
from tiltmeter.models.python import FromPython
from tiltmeter.types import Ints, TakesInputEmbeddings

PLACES = ("after_sos", "before_sos", "appended", "append_after_eos", "add")
#: What tokens start from, besides any word that the model knows.
STARTS = ("token0", "zeros", "random")
#: What can be tuned; `text:3` is the last three layers of that tower; joined by +.
PARTS = ("tokens", "projection", "text_projection", "image_projection", "text", "image")
#: Names of the parts in the networks: CLIP and SigLIP of transformers, and the testbed.
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
    """Token ids of texts, with room for the learned tokens."""

    ids: Tensor  # n x length; in place of a learned token, the text's first id
    mask: Tensor | None  # n x length: 1 for text, 0 for padding; None: padding counts as text
    #: n x length: which learned token is there, -1 for none; the number after the last learned
    #: token is the end token, where learned tokens follow it
    slot: Tensor

    def __len__(self) -> int:
        return len(self.ids)

    def to(self, device: torch.device | str) -> TokenBatch:
        mask = None if self.mask is None else self.mask.to(device)
        return TokenBatch(self.ids.to(device), mask, self.slot.to(device))

    def rows(self, rows: Tensor, length: int) -> TokenBatch:
        """Return some of the texts, the longest of which has `length`."""
        mask = None if self.mask is None else self.mask[rows, :length]
        return TokenBatch(self.ids[rows, :length], mask, self.slot[rows, :length])

    def lengths(self) -> Ints:
        """Return the length of each text."""
        if self.mask is None:
            return torch.full((len(self),), self.ids.shape[1]).numpy()
        return self.mask.sum(dim=1).cpu().numpy()


def concatenate(parts: Sequence[TokenBatch]) -> TokenBatch:
    """Concatenate batches, padded to the longest."""
    longest = max(part.ids.shape[1] for part in parts)

    def padded(x: Tensor, value: int) -> Tensor:
        return F.pad(x, (0, longest - x.shape[1]), value=value)

    masks = [part.mask for part in parts]
    return TokenBatch(
        torch.cat([padded(part.ids, 0) for part in parts]),
        None if masks[0] is None else torch.cat([padded(m, 0) for m in masks if m is not None]),
        torch.cat([padded(part.slot, -1) for part in parts]),
    )


def insert_slots(
    ids: Tensor, mask: Tensor | None, start: Tensor, count: int, *, after_end: bool = False
) -> TokenBatch:
    """Insert `count` places into each text at its `start`.

    With `after_end`, `start` is the place of the end token, which becomes the first slot, numbered
    `count`: the id of the end token then stands at the last learned token, where CLIP reads a text.
    """
    at = torch.arange(ids.shape[1] + count)
    after = at - start[:, None]
    inside = (after >= 0) & (after < count)
    source = torch.where(after < 0, at, at - count).masked_fill(inside, 0).clamp(min=0)
    wide = None if mask is None else mask.gather(1, source)
    slot = torch.where(inside, after, -1)
    if after_end and count:
        behind = (after >= 0) & (after <= count)
        slot = torch.where(behind, torch.where(after == 0, count, after - 1), -1)
    return TokenBatch(ids.gather(1, source), wide, slot)


class TextTower:
    """The text tower of a model, with room for learned tokens.

    Parameters
    ----------
    model
        A model with a `network`.
    place
        Where the tokens are put: see PLACES.
    count
        Number of tokens.
    """

    pad = 0  # the id of padding

    def __init__(self, model: Any, place: str, count: int) -> None:
        if place not in PLACES:
            raise UnknownNameError("place for learned tokens", place, PLACES)
        self.model, self.network = model, vars(model).get("network")
        self.place, self.count = place, count

    @property
    def device(self) -> torch.device:
        return self.embedding.weight.device

    @property
    def embedding(self) -> nn.Embedding:
        raise NotImplementedError

    @property
    def max_length(self) -> int:
        """Maximum length of a text, learned tokens included."""
        raise NotImplementedError

    def token_ids(self, texts: Sequence[str]) -> tuple[Tensor, Tensor | None]:
        """Return token ids of texts, and the mask; None: padding counts as text."""
        raise NotImplementedError

    def has_start(self, ids: Tensor) -> Tensor:
        """Return whether each text begins with a start token: 1 or 0."""
        return torch.ones(len(ids), dtype=torch.int64)

    @property
    def end(self) -> int:
        """The id of the end token."""
        raise NotImplementedError

    def vectors(self, batch: TokenBatch, tokens: Tensor) -> Tensor:
        """Return unit vectors of texts, with gradients to tokens and weights."""
        raise NotImplementedError

    def tokenize(self, texts: Sequence[str]) -> TokenBatch:
        """Return texts with room for the tokens; too long ones lose their last words."""
        ids, mask = self.token_ids(texts)
        limit = self.max_length - (0 if self.place == "add" else self.count)
        if ids.shape[1] > limit:
            ids, mask = ids[:, :limit].clone(), None if mask is None else mask[:, :limit]
            over = ids[:, -1] != self.pad if mask is None else mask[:, -1] > 0
            ids[over, -1] = self.end
        if self.place in ("appended", "append_after_eos"):
            start = self.lengths_before_end(ids, mask)
        else:
            start = self.has_start(ids) * (self.place != "before_sos")
        if self.place == "add":
            after = torch.arange(ids.shape[1]) - start[:, None]
            inside = (after >= 0) & (after < self.count)
            return TokenBatch(ids, mask, torch.where(inside, after, -1))
        after_end = self.place == "append_after_eos"
        return insert_slots(ids, mask, start, self.count, after_end=after_end)

    def insert(self, words: Tensor, slot: Tensor, tokens: Tensor) -> Tensor:
        """Return embedded words with the learned tokens in their slots."""
        if not self.count:
            return words
        if self.place == "append_after_eos":
            tokens = torch.cat([tokens, self.embedding.weight[self.end][None].to(tokens.dtype)])
        learned = tokens[slot.clamp(min=0)].to(words.dtype)
        learned = words + learned if self.place == "add" else learned
        return torch.where(slot[..., None] >= 0, learned, words)

    def start(self, how: str, generator: torch.Generator) -> Tensor:
        """Return initial tokens: token 0 of the vocabulary, zeros, random ones, or a word."""
        table = self.embedding.weight.detach()
        if how == "zeros":
            return torch.zeros(self.count, table.shape[1])
        if how == "random":  # as spread as the vocabulary
            noise = torch.randn(self.count, table.shape[1], generator=generator)
            return noise * table.std().cpu()
        ids = [0] if how == "token0" else self.word_ids(how)
        rows = [ids[at % len(ids)] for at in range(self.count)]
        return table[rows].cpu().clone()

    def lengths_before_end(self, ids: Tensor, mask: Tensor | None) -> Tensor:
        """Return the length of each text before its end token or its padding."""
        over = (ids == self.end) | (ids == self.pad if mask is None else mask == 0)
        return torch.where(over.any(dim=1), over.int().argmax(dim=1), ids.shape[1])

    def word_ids(self, word: str) -> list[int]:
        """Return the ids of a word's pieces."""
        ids, mask = self.token_ids([word])
        first, last = int(self.has_start(ids)), int(self.lengths_before_end(ids, mask))
        pieces: list[int] = ids[0, first:last].tolist()
        if not pieces:
            raise InputError(f"tokens cannot start from {word!r}: it has no word pieces")
        return pieces


class TokenizerTower(TextTower):
    """A tower whose model has a `tokenizer` of transformers and a `max_length`."""

    def __init__(self, model: Any, place: str, count: int) -> None:
        super().__init__(model, place, count)
        self.pad = getattr(model.tokenizer, "pad_token_id", None) or 0

    def mark(self, *names: str) -> int:
        """Return the id of a special token; BERT's have other names. -1: there is none."""
        ids = (getattr(self.model.tokenizer, f"{name}_token_id", None) for name in names)
        return next((int(found) for found in ids if found is not None), -1)

    @property
    def max_length(self) -> int:
        return int(self.model.max_length)

    @property
    def end(self) -> int:
        return self.mark("eos", "sep")

    def has_start(self, ids: Tensor) -> Tensor:
        return (ids[:, 0] == self.mark("bos", "cls")).long()  # SigLIP has none


class TransformersTower(TokenizerTower):
    """CLIP and similar models of transformers: the library's own forward pass, with a hook."""

    def __init__(self, model: Any, place: str, count: int) -> None:
        super().__init__(model, place, count)
        embeddings = getattr(self.network.text_model, "embeddings", None)
        if place == "before_sos" and not hasattr(embeddings, "token_embedding"):
            raise InputError(
                f"{model.name} reads a text at its first token, so none can be put before it: "
                "place = before_sos is for CLIP; use after_sos"
            )

    @property
    def embedding(self) -> nn.Embedding:
        return self.network.text_model.get_input_embeddings()  # type: ignore[no-any-return]

    def token_ids(self, texts: Sequence[str]) -> tuple[Tensor, Tensor | None]:
        encoded = self.model.tokens(texts)
        return encoded["input_ids"], encoded.get("attention_mask")

    def vectors(self, batch: TokenBatch, tokens: Tensor) -> Tensor:
        inputs: dict[str, Any] = {"input_ids": batch.ids}
        if batch.mask is not None:
            inputs["attention_mask"] = batch.mask
        layer: nn.Module = self.embedding
        if self.place == "before_sos" and self.count:
            layer = self.network.text_model.embeddings  # after the positions
            at = torch.arange(batch.ids.shape[1], device=batch.ids.device)
            inputs["position_ids"] = (at - self.count).clamp(min=0)[None]

        def insert(module: nn.Module, args: Any, output: Tensor) -> Tensor:
            return self.insert(output, batch.slot, tokens)

        hook = layer.register_forward_hook(insert)
        try:
            output = self.network.get_text_features(**inputs)
        finally:
            hook.remove()
        vectors = output if isinstance(output, Tensor) else output.pooler_output
        return F.normalize(vectors.float(), dim=-1)


class TestbedTower(TextTower):
    """The text tower of the testbed's networks, whose vector is that of the start token."""

    __test__ = False

    @property
    def embedding(self) -> nn.Embedding:
        return self.network.words.word  # type: ignore[no-any-return]

    @property
    def max_length(self) -> int:
        return int(self.network.words.place.shape[1])

    @property
    def end(self) -> int:
        return int(self.model.tokens(["a"])[0, -1])

    def token_ids(self, texts: Sequence[str]) -> tuple[Tensor, Tensor | None]:
        ids = self.model.tokens(texts)
        return ids, (ids != 0).long()

    def vectors(self, batch: TokenBatch, tokens: Tensor) -> Tensor:
        words, before = self.network.words, self.place == "before_sos"
        at = torch.arange(batch.ids.shape[1], device=batch.ids.device)
        places = words.place[0, (at - self.count).clamp(min=0) if before else at]
        x = words.word(batch.ids)
        if before:
            x = self.insert(x + places, batch.slot, tokens)
        else:
            x = self.insert(x, batch.slot, tokens) + places
        mask = batch.ids != 0
        for layer in self.network.text:
            x = layer(x, mask[:, None, None, :])
        first = self.count if before else 0
        return self.network.text_vector(self.network.text_norm(x)[:, first:].float())  # type: ignore[no-any-return]


class EmbeddingsTower(TokenizerTower):
    """A model of the user's own that takes input embeddings: see `TakesInputEmbeddings`."""

    def __init__(self, model: Any, place: str, count: int) -> None:
        super().__init__(model, place, count)
        if place == "before_sos":
            raise InputError(
                "place = before_sos puts tokens before the start token without a position, and "
                "positions are added by the model's own encode_embeddings: use after_sos"
            )

    @property
    def embedding(self) -> nn.Embedding:
        return self.model.word_embeddings()  # type: ignore[no-any-return]

    def token_ids(self, texts: Sequence[str]) -> tuple[Tensor, Tensor | None]:
        encoded = self.model.tokenizer(
            list(texts), padding=True, truncation=True, max_length=self.max_length,
            return_tensors="pt",
        )  # fmt: skip
        return encoded["input_ids"], encoded["attention_mask"]

    def vectors(self, batch: TokenBatch, tokens: Tensor) -> Tensor:
        words = self.insert(self.embedding(batch.ids), batch.slot, tokens)
        return F.normalize(self.model.encode_embeddings(words, batch.mask).float(), dim=-1)


def frozen_copy(model: Any) -> Any:
    """Return a copy of a model whose weights do not learn; the model itself is left alone."""
    copied = copy.copy(model)
    if isinstance(model, FromPython):
        copied = FromPython(copy.deepcopy(model.model), model.name, model.provenance)
        parts = [copied.model, *getattr(copied.model, "__dict__", {}).values()]
    else:
        copied.network = copy.deepcopy(model.network)
        parts = [copied.network]
    for part in parts:
        if isinstance(part, nn.Module):
            part.requires_grad_(False)
    return copied


def tower_of(model: Any, place: str, count: int) -> TextTower:
    """Return the text tower of a model, with room for tokens.

    Parameters
    ----------
    model, place, count
        See `TextTower`.

    Raises
    ------
    InputError
        If tokens cannot be inserted into the model's text tower.
    """
    network = vars(model).get("network")  # its own: a wrapper changes more than that
    if hasattr(getattr(network, "words", None), "place") and hasattr(network, "text_out"):
        return TestbedTower(model, place, count)
    text_model = getattr(network, "text_model", None)
    if hasattr(text_model, "get_input_embeddings") and hasattr(network, "get_text_features"):
        return TransformersTower(model, place, count)
    if isinstance(model, TakesInputEmbeddings):
        return EmbeddingsTower(model, place, count)
    raise InputError(
        f"{getattr(model, 'name', type(model).__name__)} has no text tower that learned tokens "
        "can be inserted into: expected CLIP or a similar model of hf: (MetaCLIP 2, SigLIP, ALIGN, "
        "Chinese-CLIP, AltCLIP), testbed:dual or testbed:fusion, or a model of python: with "
        "word_embeddings and encode_embeddings (tiltmeter.types.TakesInputEmbeddings)"
    )


def tuned_parts(network: nn.Module | None, tune: str) -> dict[str, nn.Parameter]:
    """Return the weights that `tune` names, besides the tokens.

    Parameters
    ----------
    network
        The network of a model; None: its layers are unknown, and only tokens can be tuned.
    tune
        Names of PARTS, such as 'text:3+projection'.
    """
    if tune == "tokens":
        return {}
    if network is None:
        raise InputError(
            f"tune = {tune}: the layers of this model are unknown, so only tokens can be tuned"
        )
    wanted: list[str] = []
    for part in tune.split("+"):
        name, colon, count = part.partition(":")
        if name not in PARTS or (colon and (name not in LAYERS or not count.isdigit())):
            raise UnknownNameError("part to tune", part, (*PARTS, "text:3", "image:3"))
        if name in LAYERS:
            layers = _layers(network, name)
            if colon and not 0 < int(count) <= len(layers):
                raise InputError(
                    f"{part}: the {name} tower has {len(layers)} layers; use 1 to {len(layers)}"
                )
            wanted += layers[-int(count) :] if colon else [*layers, *STEMS[name], *ENDS[name]]
        if name.endswith("projection"):
            side = name.partition("_")[0]
            wanted += [end for key in ENDS if side in ("projection", key) for end in ENDS[key]]
    return {
        name: weight
        for name, weight in network.named_parameters()
        if any(name == part or name.startswith(f"{part}.") for part in wanted)
    }


def in_image_tower(names: Sequence[str]) -> bool:
    """Return whether weights of these names change image embeddings."""
    roots = (*ENDS["image"], *LAYERS["image"], *STEMS["image"])
    return any(name == root or name.startswith(f"{root}.") for name in names for root in roots)


def _layers(network: nn.Module, tower: str) -> list[str]:
    for path in LAYERS[tower]:
        try:
            layers = network.get_submodule(path)
        except AttributeError:
            continue
        if isinstance(layers, nn.ModuleList):
            return [f"{path}.{at}" for at in range(len(layers))]
    raise InputError(f"{type(network).__name__} has no known layers of a {tower} tower")
