"""Three small networks of the three usual kinds, plain PyTorch.

`Dual` has an image encoder and a text encoder with one space (CLIP-like). `Fusion` adds layers in
which words attend to the image, a matching head and a masked-word head (ALBEF-like). `Stream` is
one transformer over words and patches with the same two heads (ViLT-like). Images are
n x 3 x 32 x 32, from 0 to 1.
"""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from tiltmeter.errors import InputError, UnknownNameError
from tiltmeter.testbed.language import WORDS, vocabulary
from tiltmeter.testbed.render import SIZE

PATCH = 4
PATCHES = (SIZE // PATCH) ** 2


class Attention(nn.Module):
    """Queries from `x`, keys and values from `memory` (or from `x` itself)."""

    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.heads = heads
        self.q = nn.Linear(width, width)
        self.kv = nn.Linear(width, 2 * width)
        self.out = nn.Linear(width, width)

    def forward(
        self, x: Tensor, memory: Tensor | None = None, mask: Tensor | None = None
    ) -> Tensor:
        n, length, width = x.shape
        source = x if memory is None else memory

        def split(y: Tensor) -> Tensor:  # n x heads x length x part
            return y.view(n, -1, self.heads, width // self.heads).transpose(1, 2)

        k, v = self.kv(source).chunk(2, dim=-1)
        attended = F.scaled_dot_product_attention(split(self.q(x)), split(k), split(v), mask)
        return self.out(attended.transpose(1, 2).reshape(n, length, width))  # type: ignore[no-any-return]


class Layer(nn.Module):
    """Self-attention, attention to another sequence if `cross`, and a feed-forward part."""

    def __init__(self, width: int, heads: int, *, cross: bool = False) -> None:
        super().__init__()
        self.norm1, self.attend = nn.LayerNorm(width), Attention(width, heads)
        self.norm_cross = nn.LayerNorm(width) if cross else None
        self.cross = Attention(width, heads) if cross else None
        self.norm2 = nn.LayerNorm(width)
        self.feed = nn.Sequential(
            nn.Linear(width, 4 * width), nn.GELU(), nn.Linear(4 * width, width)
        )

    def forward(
        self, x: Tensor, mask: Tensor | None = None, memory: Tensor | None = None
    ) -> Tensor:
        x = x + self.attend(self.norm1(x), mask=mask)
        if self.cross is not None and self.norm_cross is not None:
            x = x + self.cross(self.norm_cross(x), memory)
        return x + self.feed(self.norm2(x))  # type: ignore[no-any-return]


class Patches(nn.Module):
    """An image as a row of patches with their positions, and a first token for the whole."""

    def __init__(self, width: int) -> None:
        super().__init__()
        # three small convolutions learn edges and shades sooner than one large linear patch
        self.project = nn.Sequential(
            nn.Conv2d(3, width // 3, 3, padding=1),
            nn.GELU(),
            nn.Conv2d(width // 3, 2 * width // 3, 3, stride=2, padding=1),
            nn.GELU(),
            nn.Conv2d(2 * width // 3, width, 3, stride=PATCH // 2, padding=1),
        )
        self.first = nn.Parameter(torch.randn(1, 1, width) * 0.02)
        self.place = nn.Parameter(torch.randn(1, PATCHES + 1, width) * 0.02)

    def forward(self, images: Tensor) -> Tensor:
        x = self.project(2 * images - 1).flatten(2).transpose(1, 2)
        return torch.cat([self.first.expand(len(x), -1, -1), x], dim=1) + self.place


class WordEmbeddings(nn.Module):
    """Words with their positions."""

    def __init__(self, vocabulary: int, width: int) -> None:
        super().__init__()
        self.word = nn.Embedding(vocabulary, width)
        nn.init.normal_(self.word.weight, std=0.05)
        self.place = nn.Parameter(torch.randn(1, WORDS, width) * 0.02)

    def forward(self, tokens: Tensor) -> Tensor:
        return self.word(tokens) + self.place[:, : tokens.shape[1]]  # type: ignore[no-any-return]


class MaskedHead(nn.Module):
    """Logits of every word at every position; shares its weights with the word embeddings."""

    def __init__(self, words: WordEmbeddings, width: int) -> None:
        super().__init__()
        self.before = nn.Sequential(nn.Linear(width, width), nn.GELU(), nn.LayerNorm(width))
        self.bias = nn.Parameter(torch.zeros(words.word.num_embeddings))
        self._words = [words]  # in a list: shared, not owned

    def forward(self, x: Tensor) -> Tensor:
        return F.linear(self.before(x), self._words[0].word.weight, self.bias)


def padding(tokens: Tensor) -> Tensor:
    """Attention mask, n x 1 x 1 x length: which positions have a word."""
    return (tokens != 0)[:, None, None, :]


class Dual(nn.Module):
    """An image encoder and a text encoder with one space."""

    def __init__(
        self, vocabulary: int, width: int = 96, heads: int = 4, image_layers: int = 3,
        text_layers: int = 2, space: int = 96, **_: Any,
    ) -> None:  # fmt: skip
        super().__init__()
        self.patches, self.words = Patches(width), WordEmbeddings(vocabulary, width)
        self.image = nn.ModuleList(Layer(width, heads) for _ in range(image_layers))
        self.text = nn.ModuleList(Layer(width, heads) for _ in range(text_layers))
        self.image_norm, self.text_norm = nn.LayerNorm(width), nn.LayerNorm(width)
        self.image_out, self.text_out = nn.Linear(width, space), nn.Linear(width, space)
        self.log_scale = nn.Parameter(torch.tensor(math.log(10.0)))

    def see(self, images: Tensor) -> Tensor:
        """Patches after the image encoder."""
        x = self.patches(images)
        for layer in self.image:
            x = layer(x)
        return self.image_norm(x)  # type: ignore[no-any-return]

    def read(self, tokens: Tensor) -> Tensor:
        """Words after the text encoder."""
        x, mask = self.words(tokens), padding(tokens)
        for layer in self.text:
            x = layer(x, mask)
        return self.text_norm(x)  # type: ignore[no-any-return]

    def image_vector(self, seen: Tensor) -> Tensor:
        return F.normalize(self.image_out(seen[:, 0]), dim=-1)

    def text_vector(self, read: Tensor) -> Tensor:
        return F.normalize(self.text_out(read[:, 0]), dim=-1)


class Fusion(Dual):
    """Two encoders, then words that attend to the image."""

    def __init__(
        self, vocabulary: int, width: int = 96, heads: int = 4, fusion_layers: int = 2, **kind: Any
    ) -> None:
        super().__init__(vocabulary, width, heads, **kind)
        self.fusion = nn.ModuleList(Layer(width, heads, cross=True) for _ in range(fusion_layers))
        self.fusion_norm = nn.LayerNorm(width)
        self.no_picture = nn.Parameter(torch.randn(1, 1, width) * 0.02)
        self.matching, self.masked = nn.Linear(width, 1), MaskedHead(self.words, width)

    def fuse(self, tokens: Tensor, read: Tensor, seen: Tensor) -> Tensor:
        """Words after attending to patches."""
        x, mask = read, padding(tokens)
        for layer in self.fusion:
            x = layer(x, mask, seen)
        return self.fusion_norm(x)  # type: ignore[no-any-return]

    def blind(self, like: Tensor) -> Tensor:
        """Stands for the patches where there is no image."""
        return self.no_picture.expand(len(like), PATCHES + 1, -1)

    def match_seen(self, seen: Tensor, tokens: Tensor) -> Tensor:
        fused = self.fuse(tokens, self.read(tokens), seen)
        return self.matching(fused[:, 0]).squeeze(-1)  # type: ignore[no-any-return]

    def word_logits(self, images: Tensor | None, tokens: Tensor) -> Tensor:
        read = self.read(tokens)
        seen = self.blind(read) if images is None else self.see(images)
        return self.masked(self.fuse(tokens, read, seen))  # type: ignore[no-any-return]


class Stream(nn.Module):
    """One transformer over words and patches together."""

    def __init__(
        self, vocabulary: int, width: int = 96, heads: int = 4, layers: int = 4, **_: Any
    ) -> None:
        super().__init__()
        self.patches, self.words = Patches(width), WordEmbeddings(vocabulary, width)
        self.kind = nn.Parameter(torch.randn(2, 1, 1, width) * 0.02)
        self.layers = nn.ModuleList(Layer(width, heads) for _ in range(layers))
        self.norm = nn.LayerNorm(width)
        self.matching, self.masked = nn.Linear(width, 1), MaskedHead(self.words, width)

    def see(self, images: Tensor) -> Tensor:
        """Patches, before any word attends to them."""
        return self.patches(images) + self.kind[1]  # type: ignore[no-any-return]

    def forward(self, images: Tensor | None, tokens: Tensor, shown: Tensor | None = None) -> Tensor:
        """Words after attending to patches; `shown` marks the rows that may, if not all."""
        return self.fuse(None if images is None else self.see(images), tokens, shown)

    def fuse(self, seen: Tensor | None, tokens: Tensor, shown: Tensor | None = None) -> Tensor:
        """The same for patches that were seen."""
        x, mask = self.words(tokens) + self.kind[0], padding(tokens)
        if seen is not None:
            x = torch.cat([x, seen], dim=1)
            if shown is None:
                shown = torch.ones(len(x), dtype=torch.bool, device=x.device)
            looks = shown[:, None, None, None].expand(-1, 1, 1, seen.shape[1])
            mask = torch.cat([mask, looks], dim=-1)
        for layer in self.layers:
            x = layer(x, mask)
        return self.norm(x[:, : tokens.shape[1]])  # type: ignore[no-any-return]

    def match_seen(self, seen: Tensor, tokens: Tensor) -> Tensor:
        return self.matching(self.fuse(seen, tokens)[:, 0]).squeeze(-1)  # type: ignore[no-any-return]

    def word_logits(self, images: Tensor | None, tokens: Tensor) -> Tensor:
        return self.masked(self(images, tokens))  # type: ignore[no-any-return]


NETWORKS: dict[str, type[nn.Module]] = {"dual": Dual, "fusion": Fusion, "stream": Stream}
WEIGHTS = Path(__file__).parent / "weights"


def provenance_of(name: str) -> dict[str, Any]:
    """What is recorded of a trained network: the strength of its world."""
    config = json.loads((WEIGHTS / f"{name}.json").read_text())["config"]
    return {"strength": config["strength"]}


def trained(name: str) -> nn.Module:
    """Load a network with its shipped weights, in single precision.

    Parameters
    ----------
    name : str
        `dual`, `fusion` or `stream`, or `dual-fair` for its twin.

    Returns
    -------
    torch.nn.Module
        In evaluation mode.

    Raises
    ------
    UnknownNameError
        There is no such network.
    InputError
        There are no weights for it.
    """
    from safetensors.torch import load_file

    kind, path = name.removesuffix("-fair"), WEIGHTS / f"{name}.safetensors"
    if kind not in NETWORKS:
        raise UnknownNameError("model of the testbed", kind, NETWORKS)
    if not path.is_file():
        raise InputError(
            f"the testbed has no weights for {name!r}; train them from a checkout: "
            f"python -m tools.testbed.train {kind}{' --strength 0' if kind != name else ''}"
        )
    network = NETWORKS[kind](len(vocabulary()))
    network.load_state_dict(load_file(path))
    return network.float().eval()
