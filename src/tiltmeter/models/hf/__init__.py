"""`hf:NAME_OR_DIR`: checkpoints of the transformers library; the kind is read from their config.

Option: `revision`. Code in a checkpoint is never run without `trust_remote_code=yes`.
"""

from __future__ import annotations

from typing import Any

from tiltmeter.io.specs import Spec
from tiltmeter.models.hf.checkpoint import Checkpoint
from tiltmeter.registry import Registry

#: Generative checkpoints with a causal text decoder. llava_next, llava_onevision, qwen2_5_vl and
#: qwen3_vl take the path of their predecessors and were not tested by themselves.
GENERATIVE = (
    "llava",
    "llava_next",
    "llava_onevision",
    "qwen2_vl",
    "qwen2_5_vl",
    "qwen3_vl",
    "internvl",
    "paligemma",
    "idefics3",
    "smolvlm",
    "gemma3",
    "mllama",
)
#: The class for a checkpoint, by the `model_type` in its config.
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
        "blip-2": "tiltmeter.models.hf.blip:load_blip2",
        "vilt": "tiltmeter.models.hf.vilt:load",
        "flava": "tiltmeter.models.hf.flava:load",
        "bridgetower": "tiltmeter.models.hf.bridgetower:load",
        "visual_bert": "tiltmeter.models.hf.region_models:load",
        "lxmert": "tiltmeter.models.hf.region_models:load",
        **dict.fromkeys(GENERATIVE, "tiltmeter.models.hf.generative:Generative"),
        "bert": "tiltmeter.models.hf.text:load",
        "roberta": "tiltmeter.models.hf.text:load",
    },
)


def load(spec: Spec) -> Any:
    """Checkpoints of transformers, by name or directory: CLIP, SigLIP, ViLT, LLaVA, Qwen2-VL, ...

    Parameters
    ----------
    spec : Spec
        `hf:NAME_OR_DIR`, with the options `revision` and `trust_remote_code`.

    Returns
    -------
    Network
        The model of the checkpoint's kind (`KINDS`).

    Raises
    ------
    InputError
        The checkpoint cannot be loaded, or has no head that can be measured.
    UnknownNameError
        Its kind is not supported.
    """
    checkpoint = Checkpoint.of(spec)
    return KINDS[checkpoint.model_type](checkpoint)
