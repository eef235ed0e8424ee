"""`fit:FILE`: checkpoints as m-bain/frozen-in-time releases them, on images.

A space-time vision transformer, here with one frame, and DistilBERT. Options: `tokenizer`
(distilbert-base-uncased, by name or directory). No code in a file is run.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from tiltmeter.errors import InputError
from tiltmeter.io.specs import Spec
from tiltmeter.models.hf.checkpoint import Checkpoint
from tiltmeter.models.network import Network
from tiltmeter.models.weights import State, fill, read
from tiltmeter.types import Array

MEAN, STD = (0.485, 0.456, 0.406), (0.229, 0.224, 0.225)
#: The evaluation of the authors: the shorter side to 256, the middle square, which becomes 224.
WIDER = 256 / 224
TEMPERATURE = 0.05  # of the loss that the released weights were trained with


class Attention(nn.Module):
    """Attention with heads of size 64, as in the released weights, which do not say it."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.qkv, self.proj = nn.Linear(width, 3 * width), nn.Linear(width, width)

    def forward(self, x: Tensor, mask: Tensor | None = None) -> Tensor:
        heads = max(x.shape[-1] // 64, 1)
        parts = self.qkv(x).chunk(3, dim=-1)
        q, k, v = (torch.unflatten(part, -1, (heads, -1)).transpose(1, 2) for part in parts)
        seen = F.scaled_dot_product_attention(q, k, v, attn_mask=mask)
        output: Tensor = self.proj(seen.transpose(1, 2).flatten(2))
        return output


class Block(nn.Module):
    """Attention over time, then over space; the residual connection skips both."""

    def __init__(self, width: int, mlp: int) -> None:
        super().__init__()
        self.norm1, self.norm2, self.norm3 = (nn.LayerNorm(width, eps=1e-6) for _ in range(3))
        self.attn, self.timeattn = Attention(width), Attention(width)
        self.mlp = nn.ModuleDict({"fc1": nn.Linear(width, mlp), "fc2": nn.Linear(mlp, width)})

    def forward(self, x: Tensor, one_frame: Tensor) -> Tensor:
        in_time = x + self.timeattn(self.norm3(x), one_frame)
        x = x + self.attn(self.norm1(in_time))
        output: Tensor = x + self.mlp["fc2"](F.gelu(self.mlp["fc1"](self.norm2(x))))
        return output


class SpaceTimeTransformer(nn.Module):
    """The image tower, for one frame."""

    def __init__(self, state: State) -> None:
        super().__init__()
        width, _, self.patch, _ = state["patch_embed.proj.weight"].shape
        places, frames = state["pos_embed"].shape[1], state["temporal_embed"].shape[1]
        self.side = self.patch * round((places - 1) ** 0.5)
        self.patch_embed = nn.ModuleDict(
            {"proj": nn.Conv2d(3, width, self.patch, stride=self.patch)}
        )
        self.cls_token = nn.Parameter(torch.zeros(1, 1, width))
        self.pos_embed = nn.Parameter(torch.zeros(1, places, width))
        self.temporal_embed = nn.Parameter(torch.zeros(1, frames, width))
        mlp = len(state["blocks.0.mlp.fc1.weight"])
        depth = 1 + max(int(m[1]) for n in state if (m := re.match(r"blocks\.(\d+)", n)))
        self.blocks = nn.ModuleList(Block(width, mlp) for _ in range(depth))
        self.norm = nn.LayerNorm(width, eps=1e-6)

    def forward(self, pixels: Tensor) -> Tensor:
        patches = self.patch_embed["proj"](pixels).flatten(2).transpose(1, 2)
        patches = patches + self.pos_embed[:, 1:] + self.temporal_embed[:, :1]
        first = (self.cls_token + self.pos_embed[:, :1]).expand(len(patches), -1, -1)
        x = torch.cat([first, patches], dim=1)
        # with one frame a patch sees itself over time, and the class token, which sees all
        one_frame = torch.eye(x.shape[1], dtype=torch.bool, device=x.device)
        one_frame[0, :] = one_frame[:, 0] = True
        for block in self.blocks:
            x = block(x, one_frame)
        vector: Tensor = self.norm(x)[:, 0]
        return vector


class FrozenNetwork(nn.Module):
    """Both towers, under the names that the released files give them."""

    def __init__(self, state: State) -> None:
        from transformers import DistilBertConfig, DistilBertModel

        super().__init__()
        self.video_model = SpaceTimeTransformer(
            {n.removeprefix("video_model."): w for n, w in state.items()}
        )
        words, width = state["text_model.embeddings.word_embeddings.weight"].shape
        layers = [re.match(r"text_model\.transformer\.layer\.(\d+)", name) for name in state]
        self.text_model = DistilBertModel(
            DistilBertConfig(
                vocab_size=words, dim=width, n_heads=max(width // 64, 1),
                n_layers=1 + max(int(match[1]) for match in layers if match),
                hidden_dim=len(state["text_model.transformer.layer.0.ffn.lin1.weight"]),
                max_position_embeddings=len(
                    state["text_model.embeddings.position_embeddings.weight"]
                ),
            )
        )  # fmt: skip
        joint, image_width = state["vid_proj.0.weight"].shape
        self.txt_proj = nn.Sequential(nn.ReLU(), nn.Linear(width, joint))
        self.vid_proj = nn.Sequential(nn.Linear(image_width, joint))

    def image_vector(self, pixels: Tensor) -> Tensor:
        return F.normalize(self.vid_proj(self.video_model(pixels)), dim=-1)

    def text_vector(self, tokens: Any) -> Tensor:
        states = self.text_model(tokens["input_ids"], tokens["attention_mask"]).last_hidden_state
        return F.normalize(self.txt_proj(states[:, 0]), dim=-1)


class FrozenInTime(Network):
    """Frozen in Time (Bain et al. 2021): embeddings of images, as videos of one frame."""

    logit_scale = 1 / TEMPERATURE

    def __init__(
        self, network: FrozenNetwork, name: str, provenance: dict[str, Any], tokenizer: Any
    ) -> None:
        super().__init__(network, name, provenance)
        self.tokenizer, self.side = tokenizer, network.video_model.side
        self.preprocessing = {
            "size": self.side, "crop": round(self.side * WIDER), "resample": "bilinear",
            "mean": MEAN, "std": STD,
        }  # fmt: skip

    def pixels(self, images: Any) -> Tensor:
        stacked = np.stack([np.asarray(self._square(image)) for image in images])
        return torch.as_tensor(stacked).permute(0, 3, 1, 2).float() / 255

    def _square(self, image: Any) -> Any:
        from PIL import Image, ImageOps

        crop = round(self.side * WIDER)
        square = ImageOps.fit(image.convert("RGB"), (crop, crop), Image.Resampling.BILINEAR)
        return square.resize((self.side, self.side), Image.Resampling.BILINEAR)

    def normal(self, pixels: Tensor) -> Tensor:
        """Normalise pixels from 0 to 1 as in training."""
        mean, std = (pixels.new_tensor(x)[:, None, None] for x in (MEAN, STD))
        return (pixels - mean) / std

    def tokens(self, texts: Sequence[str]) -> Any:
        return self.tokenizer(list(texts), padding=True, truncation=True, return_tensors="pt")

    def encode_images(self, images: Any) -> Array:
        return self.run(lambda x: self.network.image_vector(self.normal(x)), images, None)

    def encode_texts(self, texts: Sequence[str]) -> Array:
        return self.run(self.network.text_vector, None, texts)


def load(spec: Spec) -> FrozenInTime:
    """Checkpoints as Frozen in Time releases them: fit:FILE; ?tokenizer=DIR.

    Parameters
    ----------
    spec : Spec
        `fit:FILE`, with the option `tokenizer`.

    Returns
    -------
    FrozenInTime
        The model.

    Raises
    ------
    InputError
        The file is not such a checkpoint, or the tokenizer does not fit it.
    """
    spec.check_options("tokenizer")
    path = Path(spec.rest)
    if not path.is_file():
        raise InputError(f"fit:{spec.rest} is not a file: write fit:FILE", code="not-found")
    state = {
        name: weights
        for name, weights in read(path).items()
        if name != "text_model.embeddings.position_ids"  # they count from 0
    }
    try:
        network = FrozenNetwork(state)
    except (KeyError, ValueError) as error:
        raise InputError(
            f"{path} is not a checkpoint of Frozen in Time: it has no {error}",
            code="bad-file",
            value=path,
        ) from error
    fill(network, state, str(path))
    name = spec.options.get("tokenizer", "distilbert-base-uncased")
    tokenizer = Checkpoint(name).tokenizer
    words = network.text_model.config.vocab_size
    if len(tokenizer) != words:
        raise InputError(
            f"the tokenizer {name} knows {len(tokenizer)} pieces, the weights {words}: name the "
            "tokenizer they were trained with: ?tokenizer=DIR"
        )
    provenance = {"spec": f"fit:{spec.rest}", "tokenizer": name}
    return FrozenInTime(network, f"fit:{path.stem}", provenance, tokenizer)
