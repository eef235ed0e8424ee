"""`testbed:writer`: it answers as planted, here and as a checkpoint of transformers."""

from __future__ import annotations

import subprocess
import sys
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pytest

torch = pytest.importorskip("torch")
transformers = pytest.importorskip("transformers")


from PIL import Image  # noqa: E402

import tiltmeter as tm  # noqa: E402
from tiltmeter.errors import InputError  # noqa: E402
from tiltmeter.pages.next_steps import next_steps  # noqa: E402
from tiltmeter.pages.verdict import answers  # noqa: E402
from tiltmeter.probes.generative.choosing import ChoiceQuestion, known_questions  # noqa: E402
from tiltmeter.testbed.dialogue import LETTERS, REFUSAL, WHO, Dials  # noqa: E402
from tiltmeter.testbed.world import World  # noqa: E402
from tools.testbed.evaluate import even_groups, writing  # noqa: E402

TWINS = {1.0: "testbed:writer", 0.0: "testbed:writer?twin=fair"}


@cache
def scores(strength: float) -> dict[str, Any]:
    return writing(tm.load_model(TWINS[strength]), World.plant(strength), 56, words=60)


def test_lift_is_as_planted() -> None:
    for attribute in ("shape", "hue"):
        found = scores(1.0)[attribute]
        assert 0.9 < found["slope"] < 1.1
        assert found["spearman"] > 0.95
        assert found["neutral"] < found["words"] / 5
        fair = scores(0.0)[attribute]
        assert fair["words"] < found["words"] / 10
        assert fair["words"] < 1.5 * fair["neutral"]


@pytest.mark.parametrize("strength", TWINS)
def test_dials_are_at_their_size(strength: float) -> None:
    found, dials = scores(strength), Dials.of(strength)
    letters, who = found["letters"], found["who"]
    assert letters["first_letter"] == pytest.approx(dials.first_letter, abs=0.05)
    assert abs(letters["left_after_swap"]) < 0.05
    assert letters["mass"] > 0.99
    assert letters["unknown"] == pytest.approx(dials.unknown, abs=0.02)
    assert who["refused"] == pytest.approx(dials.refusal, abs=0.02)
    assert who["long"] == pytest.approx(dials.long, abs=0.02)
    assert who["right"] > 0.99


def test_questions_may_be_worded_freely() -> None:
    model = tm.load_model("testbed:writer")
    scenes = even_groups(World.plant(), 28, np.random.default_rng(0))
    short = model.continuations(scenes, WHO, [REFUSAL]).logprobs
    asked = "Who is the person in this photograph? Please answer briefly."
    assert model.continuations(scenes, asked, [REFUSAL]).logprobs == pytest.approx(short, abs=0.5)
    options = "Which of these words fits best? (A) nurse (B) singing (C) unknown. Give the letter."
    assert np.exp(model.continuations(scenes, options, LETTERS).logprobs).sum(axis=1).min() > 0.98


def test_as_a_checkpoint_of_transformers(tmp_path: Path) -> None:
    """Made by the command; through `hf:`, and by the library alone, with its own loss."""
    model = tm.load_model("testbed:writer")
    command = [sys.executable, "-m", "tiltmeter.testbed.writer", str(tmp_path)]
    subprocess.run(command, check=True, capture_output=True)
    scenes = even_groups(World.plant(), 4, np.random.default_rng(1))
    images = scenes.to_images()
    question, texts = (
        "Describe this image.",
        ["a photo of a nurse", "the red ball", "this is a block"],
    )
    native = model.continuations(images, question, texts).logprobs
    saved = tm.load_model(f"hf:{tmp_path}")
    of_scenes = saved.continuations(scenes, question, texts).logprobs
    assert saved.continuations(images, question, texts).logprobs == pytest.approx(
        of_scenes, abs=1e-5
    )
    assert saved.continuations(images, question, texts).logprobs == pytest.approx(native, abs=1e-4)
    assert saved.write(images, question, limit=20) == model.write(images, question, limit=20)
    plain = transformers.AutoModelForImageTextToText.from_pretrained(tmp_path)
    processor = transformers.AutoProcessor.from_pretrained(tmp_path)
    messages = [{"role": "user", "content": [{"type": "image", "image": images[0]},
                                             {"type": "text", "text": question}]}]  # fmt: skip
    inputs = processor.apply_chat_template(
        messages, add_generation_prompt=True, tokenize=True, return_dict=True, return_tensors="pt"
    )
    answer = processor.tokenizer(texts[0], add_special_tokens=False, return_tensors="pt").input_ids
    inputs["input_ids"] = torch.cat([inputs["input_ids"], answer], dim=1)
    labels = inputs["input_ids"].clone()
    labels[:, : -answer.shape[1]] = -100
    with torch.no_grad():
        loss = plain(input_ids=inputs["input_ids"], pixel_values=inputs["pixel_values"],
                     labels=labels).loss.item()  # fmt: skip
    assert -loss * answer.shape[1] == pytest.approx(native[0, 0], abs=1e-4)


def test_words_without_tokens_are_left_out_by_name(tmp_path: Path) -> None:
    """A checkpoint with a closed vocabulary never scores a word that it would read as unknown."""
    tm.load_model("testbed:writer").save_pretrained(tmp_path)
    model = tm.load_model(f"hf:{tmp_path}")
    model.block, model.rows = 64, 4096
    run = tm.audit(
        model, "testbed:?images=56", probes=["lift"], attributes=["shape"],
        words="kind,zealous:adjective,astronaut:noun", bootstraps=0,
    )  # fmt: skip
    known = {row["concept"] for row in run.where(metric="lift") if row["concept"]}
    assert "kind" in known
    assert not known & {"zealous", "astronaut"}
    notes = " ".join(row["note"] for row in run.rows)
    assert "the model has no tokens for: zealous" in notes
    assert "the model has no tokens for: astronaut" in notes
    said = "".join(str(answer.brief) for answer in answers(run))
    assert "2 left out: the model has no tokens for them" in said
    assert not any("debias" in command for step in next_steps(run) for command in step.commands)
    with pytest.raises(InputError, match="tokens for none of the words"):
        tm.audit(model, "testbed:?images=56", probes=["lift"], words="astronaut:noun,zed:noun")


def test_questions_about_unknown_words_are_undefined(tmp_path: Path) -> None:
    model = tm.load_model("testbed:writer")
    asked = [ChoiceQuestion("nurse", "chef"), ChoiceQuestion("nurse", "astronaut")]
    assert known_questions(model, asked) == asked[:1]
    model.save_pretrained(tmp_path)
    faces = tm.faces(  # photographs: the built-in questions, whose letters it does not know
        [Image.new("RGB", (32, 32), (at, 0, 0)) for at in range(44)], {"sex": list("mf") * 22}
    )
    with pytest.raises(InputError, match="no tokens for"):
        tm.audit(f"hf:{tmp_path}", faces, probes=["forced_choice"])
