"""`hf:NAME_OR_DIR`: checkpoints of the transformers library; the kind is read from their config.

Option: `revision`. Code that a checkpoint brings along is never run unless `trust_remote_code=yes`
is given.
"""

from __future__ import annotations

from typing import Any

from tiltmeter.io.specs import Spec
from tiltmeter.models.hf.checkpoint import Checkpoint
from tiltmeter.registry import Registry

#: What serves a checkpoint, by the `model_type` in its config.
KINDS = Registry(
    "kind of checkpoint",
    {
        "clip": "tiltmeter.models.hf.dual:Dual",
        "metaclip_2": "tiltmeter.models.hf.dual:Dual",
        "altclip": "tiltmeter.models.hf.dual:Dual",
        "chinese_clip": "tiltmeter.models.hf.dual:Dual",
        "align": "tiltmeter.models.hf.dual:Align",
        "siglip": "tiltmeter.models.hf.dual:Siglip",
        "siglip2": "tiltmeter.models.hf.dual:Naflex",
        "blip": "tiltmeter.models.hf.blip:Blip",
        "blip-2": "tiltmeter.models.hf.blip:Blip2",
        "vilt": "tiltmeter.models.hf.vilt:load",
        "flava": "tiltmeter.models.hf.flava:load",
        "bridgetower": "tiltmeter.models.hf.bridgetower:load",
        "visual_bert": "tiltmeter.models.hf.region_models:load",
        "lxmert": "tiltmeter.models.hf.region_models:load",
        "bert": "tiltmeter.models.hf.text:load",
        "roberta": "tiltmeter.models.hf.text:load",
    },
)


def load(spec: Spec) -> Any:
    """Checkpoints of transformers, by name or directory: CLIP, SigLIP, BLIP, ViLT, FLAVA, ..."""
    checkpoint = Checkpoint.of(spec)
    return KINDS[checkpoint.model_type](checkpoint)
