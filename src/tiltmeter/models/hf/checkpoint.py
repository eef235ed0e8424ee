"""A checkpoint of transformers: its config, processor, tokenizer and weights."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from pickle import UnpicklingError
from typing import Any

from tiltmeter.errors import InputError, TiltmeterError, UnknownNameError
from tiltmeter.io.specs import Spec

OPTIONS = ("revision", "trust_remote_code")


@dataclass(frozen=True, eq=False)
class Checkpoint:
    """Where a checkpoint is, and how its parts are loaded: with the library's own loaders."""

    name: str  # a directory, or a name on the hub
    revision: str | None = None
    trust_remote_code: bool = False

    @classmethod
    def of(cls, spec: Spec) -> Checkpoint:
        spec.check_options(*OPTIONS)
        if not spec.rest:
            raise InputError("hf: needs a checkpoint: write hf:DIR or hf:OWNER/NAME")
        trust = spec.options.get("trust_remote_code", "no")
        if trust not in ("yes", "no"):
            raise UnknownNameError("value of trust_remote_code", trust, ("yes", "no"))
        return cls(spec.rest, spec.options.get("revision"), trust == "yes")

    @property
    def _where(self) -> dict[str, Any]:
        return {
            "pretrained_model_name_or_path": self.name,
            "revision": self.revision or "main",
            "trust_remote_code": self.trust_remote_code,
        }

    @cached_property
    def config(self) -> Any:
        from transformers import AutoConfig

        with self._explained("config"):
            return AutoConfig.from_pretrained(**self._where)

    @property
    def model_type(self) -> str:
        return str(self.config.model_type)

    @property
    def architecture(self) -> str:
        """The class that the checkpoint was saved from."""
        return str((self.config.architectures or [""])[0])

    @cached_property
    def image_processor(self) -> Any:
        """Pillow's, with or without torchvision: the same pixels on every machine."""
        from transformers import AutoImageProcessor

        with self._explained("image processor"):
            return AutoImageProcessor.from_pretrained(  # type: ignore[no-untyped-call]
                **self._where, backend="pil"
            )

    @cached_property
    def processor(self) -> Any:
        """Image processor, tokenizer and chat template in one, as generative models have them."""
        from transformers import AutoProcessor

        with self._explained("processor"):
            processor = AutoProcessor.from_pretrained(**self._where)  # type: ignore[no-untyped-call]
        processor.image_processor = self.image_processor
        return processor

    @cached_property
    def tokenizer(self) -> Any:
        from transformers import AutoTokenizer

        with self._explained("tokenizer"):
            return AutoTokenizer.from_pretrained(**self._where)

    def network(self, kind: type) -> Any:
        """The weights in a class of the library; InputError if one of its weights is missing."""
        import torch

        with self._explained("weights"):
            network, info = kind.from_pretrained(  # type: ignore[attr-defined]
                **self._where, output_loading_info=True, dtype=torch.float32
            )
        if info["missing_keys"]:
            examples = ", ".join(sorted(info["missing_keys"])[:3])
            raise InputError(
                f"hf:{self.name} has no weights for {len(info['missing_keys'])} parts of "
                f"{type(network).__name__} ({examples}): it was saved from "
                f"{self.architecture or 'another'}"
            )
        return network

    def provenance(self, network: Any) -> dict[str, Any]:
        """Where the checkpoint came from, and the class that it is loaded into."""
        return {
            "spec": f"hf:{self.name}",
            "revision": self.revision or getattr(self.config, "_commit_hash", None),
            "class": type(network).__name__,
        }

    @contextmanager
    def _explained(self, part: str) -> Iterator[None]:
        try:
            yield
        except UnpicklingError as error:
            raise InputError(
                f"hf:{self.name}: its {part} cannot be loaded: a pickle of more than "
                "tensors could run code, so it was not opened. Save the model as safetensors"
            ) from error
        except TiltmeterError:
            raise
        except Exception as error:  # a damaged file makes the library raise anything
            reason = str(error).strip().partition("\n")[0].rstrip(".")
            if not Path(self.name).exists():  # a name misspelt looks for it on the hub
                reason = f"there is no folder {self.name!r}, and on the hub: {reason}"
            raise InputError(
                f"hf:{self.name}: its {part} cannot be loaded: {reason}. Expected a directory that "
                "save_pretrained wrote, or a name on the Hugging Face Hub"
            ) from error
