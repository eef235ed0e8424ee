"""The network of ALBEF and TCL, with the names that its released weights have."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from tiltmeter.models.weights import State

MATCH, NO_MATCH = 1, 0  # the labels that the matching head was trained with
HEAD = "text_encoder.cls.predictions"


class Block(nn.Module):
    """A layer of the vision transformer: norms come first."""

    def __init__(self, width: int, mlp: int) -> None:
        super().__init__()
        self.norm1 = nn.LayerNorm(width, eps=1e-6)
        self.attn = nn.ModuleDict(
            {"qkv": nn.Linear(width, 3 * width), "proj": nn.Linear(width, width)}
        )
        self.norm2 = nn.LayerNorm(width, eps=1e-6)
        self.mlp = nn.ModuleDict({"fc1": nn.Linear(width, mlp), "fc2": nn.Linear(mlp, width)})

    def forward(self, x: Tensor) -> Tensor:
        query, key, value = self.attn["qkv"](self.norm1(x)).chunk(3, dim=-1)
        x = x + self.attn["proj"](attend(query, key, value))
        result: Tensor = x + self.mlp["fc2"](F.gelu(self.mlp["fc1"](self.norm2(x))))
        return result


class VisionTransformer(nn.Module):
    """The vision transformer: one state for the image, then one per patch."""

    def __init__(self, sizes: Sizes) -> None:
        super().__init__()
        width, patch = sizes.image_width, sizes.patch
        self.cls_token = nn.Parameter(torch.zeros(1, 1, width))
        self.pos_embed = nn.Parameter(torch.zeros(1, 1 + sizes.side**2, width))
        self.patch_embed = nn.ModuleDict({"proj": nn.Conv2d(3, width, patch, stride=patch)})
        self.blocks = nn.ModuleList(
            Block(width, sizes.image_mlp) for _ in range(sizes.image_layers)
        )
        self.norm = nn.LayerNorm(width, eps=1e-6)

    def forward(self, pixels: Tensor) -> Tensor:
        patches = self.patch_embed["proj"](pixels).flatten(2).transpose(1, 2)
        x = torch.cat([self.cls_token.expand(len(patches), -1, -1), patches], dim=1)
        x = x + self.pos_embed
        for block in self.blocks:
            x = block(x)
        seen: Tensor = self.norm(x)
        return seen

    def resize(self, side: int) -> None:
        """Resize the position embeddings to another number of patches along a side."""
        whole, places = self.pos_embed.detach()[:, :1], self.pos_embed.detach()[:, 1:]
        old = int(places.shape[1] ** 0.5)
        grid = torch.unflatten(places, 1, (old, old)).permute(0, 3, 1, 2)
        grid = F.interpolate(grid, size=(side, side), mode="bicubic", align_corners=False)
        self.pos_embed = nn.Parameter(torch.cat([whole, grid.flatten(2).transpose(1, 2)], dim=1))


class Residual(nn.Module):
    """A linear map with a residual connection; the norm comes last."""

    def __init__(self, inner: int, width: int) -> None:
        super().__init__()
        self.dense = nn.Linear(inner, width)
        self.LayerNorm = nn.LayerNorm(width, eps=1e-12)

    def forward(self, x: Tensor, before: Tensor) -> Tensor:
        output: Tensor = self.LayerNorm(self.dense(x) + before)
        return output


class Attention(nn.Module):
    """Attention of words to words, or to an image."""

    def __init__(self, width: int, source: int) -> None:
        super().__init__()
        self.self = nn.ModuleDict(
            {
                "query": nn.Linear(width, width),
                "key": nn.Linear(source, width),
                "value": nn.Linear(source, width),
            }
        )
        self.output = Residual(width, width)

    def forward(self, x: Tensor, source: Tensor, real: Tensor | None = None) -> Tensor:
        look = self.self
        attended = attend(look["query"](x), look["key"](source), look["value"](source), real)
        result: Tensor = self.output(attended, x)
        return result


class Layer(nn.Module):
    """A layer of BERT; some attend to the image between words and feed-forward."""

    def __init__(self, sizes: Sizes, fuses: bool) -> None:
        super().__init__()
        width = sizes.text_width
        self.attention = Attention(width, width)
        if fuses:
            self.crossattention = Attention(width, sizes.image_width)
        self.intermediate = nn.ModuleDict({"dense": nn.Linear(width, sizes.text_mlp)})
        self.output = Residual(sizes.text_mlp, width)

    def forward(self, x: Tensor, real: Tensor, image: Tensor | None = None) -> Tensor:
        x = self.attention(x, x, real)
        if image is not None:
            x = self.crossattention(x, image)
        result: Tensor = self.output(F.gelu(self.intermediate["dense"](x)), x)
        return result


class Bert(nn.Module):
    """The text encoder: its first layers read, the others attend to the image."""

    def __init__(self, sizes: Sizes) -> None:
        super().__init__()
        width = sizes.text_width
        self.fusion = sizes.fusion
        self.embeddings = nn.ModuleDict(
            {
                "word_embeddings": nn.Embedding(sizes.vocabulary, width),
                "position_embeddings": nn.Embedding(sizes.places, width),
                "token_type_embeddings": nn.Embedding(sizes.types, width),
                "LayerNorm": nn.LayerNorm(width, eps=1e-12),
            }
        )
        layers = (Layer(sizes, at >= sizes.fusion) for at in range(sizes.text_layers))
        self.encoder = nn.ModuleDict({"layer": nn.ModuleList(layers)})

    def read(self, ids: Tensor, real: Tensor) -> Tensor:
        """States of the words before the image is attended to."""
        parts, places = self.embeddings, torch.arange(ids.shape[1], device=ids.device)
        x = parts["word_embeddings"](ids) + parts["position_embeddings"](places)
        x = parts["LayerNorm"](x + parts["token_type_embeddings"](torch.zeros_like(ids)))
        for layer in self._layers[: self.fusion]:
            x = layer(x, real)
        states: Tensor = x
        return states

    def fuse(self, x: Tensor, real: Tensor, image: Tensor) -> Tensor:
        """States of the words after attending to the image."""
        for layer in self._layers[self.fusion :]:
            x = layer(x, real, image)
        return x

    @property
    def _layers(self) -> Any:
        return self.encoder["layer"]


class WordHead(nn.Module):
    """Predicts words from states."""

    def __init__(self, sizes: Sizes) -> None:
        super().__init__()
        width = sizes.text_width
        self.transform = nn.ModuleDict(
            {"dense": nn.Linear(width, width), "LayerNorm": nn.LayerNorm(width, eps=1e-12)}
        )
        self.decoder = nn.Linear(width, sizes.vocabulary)
        self.bias = self.decoder.bias

    def forward(self, x: Tensor) -> Tensor:
        x = self.transform["LayerNorm"](F.gelu(self.transform["dense"](x)))
        logits: Tensor = self.decoder(x)
        return logits


class AlbefNetwork(nn.Module):
    """All parts, under the names that the released files give them."""

    def __init__(self, sizes: Sizes) -> None:
        super().__init__()
        self.patch = sizes.patch
        self.visual_encoder = VisionTransformer(sizes)
        self.text_encoder = nn.ModuleDict({"bert": Bert(sizes)})
        if sizes.words:
            self.text_encoder["cls"] = nn.ModuleDict({"predictions": WordHead(sizes)})
        self.vision_proj = nn.Linear(sizes.image_width, sizes.joint)
        self.text_proj = nn.Linear(sizes.text_width, sizes.joint)
        self.itm_head = nn.Linear(sizes.text_width, 2)
        self.temp = nn.Parameter(torch.ones(()))

    @property
    def bert(self) -> Any:
        return self.text_encoder["bert"]

    def image_vector(self, pixels: Tensor) -> Tensor:
        return F.normalize(self.vision_proj(self.visual_encoder(pixels)[:, 0]), dim=-1)

    def text_vector(self, ids: Tensor, real: Tensor) -> Tensor:
        return F.normalize(self.text_proj(self.bert.read(ids, real)[:, 0]), dim=-1)

    def both(self, seen: Tensor | None, ids: Tensor, real: Tensor) -> Tensor:
        """States of the words of each text after attending to what `visual_encoder` saw.

        Without an image they attend to an empty set of image tokens, a sum of no terms.
        """
        words = self.bert.read(ids, real)
        if seen is None:
            seen = words.new_zeros(len(ids), 0, self.visual_encoder.pos_embed.shape[-1])
        states: Tensor = self.bert.fuse(words, real, seen)
        return states

    def match_seen(self, seen: Tensor, ids: Tensor, real: Tensor) -> Tensor:
        logits: Tensor = self.itm_head(self.both(seen, ids, real)[:, 0])
        return logits[:, MATCH] - logits[:, NO_MATCH]

    def word_logits(self, pixels: Tensor | None, ids: Tensor, real: Tensor) -> Tensor:
        head: Any = self.text_encoder["cls"]
        seen = None if pixels is None else self.visual_encoder(pixels)
        logits: Tensor = head["predictions"](self.both(seen, ids, real))
        return logits


def attend(query: Tensor, key: Tensor, value: Tensor, real: Tensor | None = None) -> Tensor:
    """Attention with heads of size 64, as in every released model; files do not say it."""
    if not key.shape[1]:
        return torch.zeros_like(query)  # of nothing: kernels differ in what they return for it
    heads = max(query.shape[-1] // 64, 1)
    q, k, v = (torch.unflatten(x, -1, (heads, -1)).transpose(1, 2) for x in (query, key, value))
    return F.scaled_dot_product_attention(q, k, v, attn_mask=real).transpose(1, 2).flatten(2)


@dataclass(frozen=True)
class Sizes:
    """Everything that decides the shape of a network."""

    patch: int
    side: int  # patches along a side of the image
    image_width: int
    image_mlp: int
    image_layers: int
    text_width: int
    text_mlp: int
    text_layers: int
    fusion: int  # the first layer that attends to the image
    vocabulary: int
    places: int
    types: int
    joint: int
    words: bool

    @classmethod
    def of(cls, state: State) -> Sizes:
        """The sizes of the network that weights belong to."""
        image, text = "visual_encoder", "text_encoder.bert"
        width, _, patch, _ = state[f"{image}.patch_embed.proj.weight"].shape
        vocabulary, text_width = state[f"{text}.embeddings.word_embeddings.weight"].shape
        looking = _numbers(state, rf"{text}.encoder.layer.(\d+).crossattention")
        return cls(
            patch=patch,
            side=round((state[f"{image}.pos_embed"].shape[1] - 1) ** 0.5),
            image_width=width,
            image_mlp=len(state[f"{image}.blocks.0.mlp.fc1.weight"]),
            image_layers=1 + max(_numbers(state, rf"{image}.blocks.(\d+)")),
            text_width=text_width,
            text_mlp=len(state[f"{text}.encoder.layer.0.intermediate.dense.weight"]),
            text_layers=1 + max(_numbers(state, rf"{text}.encoder.layer.(\d+)")),
            fusion=min(looking, default=0),
            vocabulary=vocabulary,
            places=len(state[f"{text}.embeddings.position_embeddings.weight"]),
            types=len(state[f"{text}.embeddings.token_type_embeddings.weight"]),
            joint=len(state["vision_proj.weight"]),
            words=any(name.startswith(HEAD) for name in state),
        )


def _numbers(state: State, pattern: str) -> set[int]:
    return {int(match[1]) for name in state if (match := re.match(pattern, name))}
