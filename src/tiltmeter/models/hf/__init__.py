"""`hf:NAME_OR_DIR`: checkpoints of the transformers library; the kind is read from their config.

Options: `revision`; `device` (cpu). Code that a checkpoint brings along is never run unless
`trust_remote_code=yes` is given.
"""

from __future__ import annotations

from typing import Any

from tiltmeter.models.hf.checkpoint import Checkpoint
from tiltmeter.registry import Registry
from tiltmeter.specs import Spec

#: What serves a checkpoint, by the `model_type` in its config.
KINDS = Registry(
    "kind of checkpoint",
    {
        "clip": "tiltmeter.models.hf.dual:Dual",
    },
)


def load(spec: Spec) -> Any:
    """Checkpoints of transformers, by name or directory: CLIP, SigLIP, BLIP, ViLT, FLAVA, ..."""
    checkpoint = Checkpoint.of(spec)
    model = KINDS[checkpoint.model_type](checkpoint)
    return model.to(spec.options.get("device", "cpu"))
