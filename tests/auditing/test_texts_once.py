"""Probes of one audit share the embeddings of their texts; nothing is remembered after it."""

from __future__ import annotations

from collections import Counter

import numpy as np
import pytest

import tiltmeter as tm
from tiltmeter.probes.embeddings import text_embeddings, texts_embedded_once
from tiltmeter.types import Prompt

WORDS = [Prompt(text, text, "{}") for text in ("a photo of a nurse", "a photo of a judge")]


def counted(monkeypatch: pytest.MonkeyPatch) -> tuple[object, Counter[str]]:
    model, seen = tm.load_model("testbed:dual"), Counter[str]()
    encode = model.encode_texts

    def count(texts: list[str]) -> object:
        seen.update(texts)
        return encode(texts)

    monkeypatch.setattr(model, "encode_texts", count)
    return model, seen


def test_an_audit_embeds_each_text_once(monkeypatch: pytest.MonkeyPatch) -> None:
    model, seen = counted(monkeypatch)
    run = tm.audit(model, "testbed:?images=1050", probes=["ranking", "lift"], permutations=0)
    texts = {text for text in seen if "nurse" in text}
    assert texts
    assert {seen[text] for text in texts} == {1}
    assert {row["probe"] for row in run.table.to_pylist()} == {"ranking", "lift"}


def test_nothing_is_remembered_between_audits(monkeypatch: pytest.MonkeyPatch) -> None:
    model, seen = counted(monkeypatch)
    with texts_embedded_once():
        first = text_embeddings(model, WORDS)  # type: ignore[arg-type]
        again = text_embeddings(model, WORDS[::-1])  # type: ignore[arg-type]
    assert np.array_equal(first, again[::-1])
    assert max(seen.values()) == 1
    text_embeddings(model, WORDS)  # type: ignore[arg-type]
    text_embeddings(model, WORDS)  # type: ignore[arg-type]
    assert set(seen.values()) == {3}


def test_models_do_not_share_texts() -> None:
    with texts_embedded_once():
        found = [text_embeddings(tm.load_model(f"testbed:{name}"), WORDS)
                 for name in ("dual", "dual?twin=fair")]  # fmt: skip
    assert not np.allclose(*found)
