"""`slip:FILE`: checkpoints as facebookresearch/SLIP releases them (SLIP, and its CLIP baselines).

A vision transformer of timm with a projection, and CLIP's text tower. The library open_clip has the
text tower and its tokenizer. The head of the self-supervised loss is left out. No code in a file is
run.
"""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from tiltmeter.errors import InputError
from tiltmeter.io.specs import Spec
from tiltmeter.models.open_clip import OpenClip, import_library
from tiltmeter.models.weights import State, fill, read

#: Heads of the released vision transformers (S, B, L) by width; the weights do not say it.
HEADS = {384: 12, 768: 12, 1024: 16}
#: The projection head of the self-supervised loss.
ASIDE = re.compile(r"image_mlp\.")
#: As the authors evaluate: torchvision's Resize(224), which is bilinear, and ImageNet's means.
PREPROCESSING = {
    "mean": (0.485, 0.456, 0.406), "std": (0.229, 0.224, 0.225),
    "interpolation": "bilinear", "resize_mode": "shortest",
}  # fmt: skip


class SlipNetwork(nn.Module):
    """Both towers, with sizes read from the weights."""

    def __init__(self, library: Any, state: State) -> None:
        from timm.models.vision_transformer import VisionTransformer

        super().__init__()
        width, _, patch, _ = state["visual.patch_embed.proj.weight"].shape
        self.side = patch * round((state["visual.pos_embed"].shape[1] - 1) ** 0.5)
        self.visual = VisionTransformer(
            img_size=self.side, patch_size=patch, embed_dim=width, num_classes=0,
            depth=_depth(state, r"visual\.blocks\.(\d+)"), num_heads=HEADS.get(width, width // 64),
        )  # fmt: skip
        words, text_width = state["text.token_embedding.weight"].shape
        joint = state["image_projection"].shape[1]
        self.text = library.transformer.TextTransformer(
            context_length=len(state["text.positional_embedding"]), vocab_size=words,
            width=text_width, heads=max(text_width // 64, 1), output_dim=joint,
            layers=_depth(state, r"text\.transformer\.resblocks\.(\d+)"),
            act_layer=library.transformer.QuickGELU,
        )  # fmt: skip
        self.image_projection = nn.Parameter(torch.zeros(width, joint))
        self.logit_scale = nn.Parameter(torch.zeros(()))

    def encode_image(self, pixels: Tensor, normalize: bool) -> Tensor:
        return F.normalize(self.visual(pixels) @ self.image_projection, dim=-1)

    def encode_text(self, ids: Tensor, normalize: bool) -> Tensor:
        return F.normalize(self.text(ids), dim=-1)


def _depth(state: State, pattern: str) -> int:
    return 1 + max(int(match[1]) for name in state if (match := re.match(pattern, name)))


def load(spec: Spec) -> OpenClip:
    """Checkpoints as SLIP releases them: slip:FILE.

    Parameters
    ----------
    spec : Spec
        `slip:FILE`.

    Returns
    -------
    OpenClip
        The model.

    Raises
    ------
    InputError
        The file is not such a checkpoint, or the library open_clip is not installed.
    """
    spec.check_options()
    path = Path(spec.rest)
    if not path.is_file():
        raise InputError(f"slip:{spec.rest} is not a file: write slip:FILE", code="not-found")
    library = import_library()
    state = {
        name if re.match(r"visual\.|image_projection|logit_scale", name) else f"text.{name}": w
        for name, w in read(path).items()
        if not ASIDE.match(name)
    }
    try:
        network = SlipNetwork(library, state)
    except (KeyError, ValueError) as error:
        raise InputError(
            f"{path} is not a checkpoint of SLIP: it has no {error}. Expected image_projection, "
            "and the names of timm's vision transformer under visual.",
            code="bad-file",
            value=path,
        ) from error
    fill(network, state, str(path))
    tokenizer = library.get_tokenizer("ViT-B-16")
    preprocessing = {"size": (network.side, network.side), **PREPROCESSING}
    return OpenClip(
        network, f"slip:{path.stem}", {"spec": f"slip:{spec.rest}"}, tokenizer, preprocessing
    )
