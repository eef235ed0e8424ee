"""minilit with input embeddings, so that `tiltmeter debias prompt-array` can tune it.

    tiltmeter debias prompt-array "python:examples/minilit_text_tower.py:load?home=DIR" ...

DIR contains minilit.py and heads.safetensors: a dual encoder whose text tower is MiniLM, a BERT.
Any text tower of transformers gets the two methods of
`tiltmeter.types.TakesInputEmbeddings` in this way.
"""

from __future__ import annotations

import importlib.util
from pathlib import Path
from typing import Any


def load(home: str) -> Any:
    """The model of the directory `home`, with the methods that learned tokens need."""
    spec = importlib.util.spec_from_file_location("minilit", Path(home) / "minilit.py")
    assert spec is not None
    assert spec.loader is not None
    minilit = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(minilit)

    class TunableMiniLiT(minilit.MiniLiT):  # type: ignore[misc,name-defined]
        max_length = 128

        def word_embeddings(self) -> Any:
            return self.text.get_input_embeddings()

        def encode_embeddings(self, embeddings: Any, mask: Any) -> Any:
            hidden = self.text(inputs_embeds=embeddings, attention_mask=mask).last_hidden_state
            shown = mask[..., None].to(hidden.dtype)
            return self._head((hidden * shown).sum(1) / shown.sum(1), "text")

    return TunableMiniLiT(Path(home) / "heads.safetensors")
