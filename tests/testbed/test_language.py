"""The closed vocabulary and the captions made of it."""

from __future__ import annotations

import subprocess
import sys

import numpy as np
import pytest

from tiltmeter.errors import UnknownNameError
from tiltmeter.stimuli import fill
from tiltmeter.testbed.captions import CaptionWriter
from tiltmeter.testbed.language import WORDS, concepts, encode, vocabulary, word_list
from tiltmeter.testbed.world import World


def test_the_file_holds_what_is_spoken() -> None:
    assert list(vocabulary()) == word_list()


def test_every_caption_of_every_concept_is_known_and_fits() -> None:
    texts = [fill(t, concept.name) for concept in concepts() for t in concept.templates]
    assert encode(texts).shape[1] <= WORDS


def test_an_unknown_word_is_named() -> None:
    with pytest.raises(UnknownNameError, match="'nurze'; did you mean 'nurse'"):
        encode(["a photo of a nurse", "a photo of a nurze"])


def test_captions_say_their_concept_and_masks_hide_it() -> None:
    world, rng = World.plant(), np.random.default_rng(0)
    concept = world.draw_concepts(3000, rng)
    said = CaptionWriter(world).say(concept, world.draw_groups(concept, rng), rng)
    words = list(vocabulary())
    for row in range(300):
        text = " ".join(words[at] for at in said.tokens[row] if at)
        hidden = " ".join(words[at] for at in said.masked[row] if at)
        name = world.concepts[concept[row]].name.lower()
        assert "[MASK]" in hidden
        if said.kind[row] != 1:
            assert f" {name} " in text
            assert hidden.count("[MASK]") == len(name.split())
    assert set(said.kind) == {0, 1, 2}
    assert np.isin(concept[said.kind == 2], world.targets).all()


def test_the_world_needs_no_torch() -> None:
    code = (
        "import sys, tiltmeter.testbed.oracle, tiltmeter.testbed.captions;"
        "sys.exit('torch' in sys.modules)"
    )
    assert subprocess.run([sys.executable, "-c", code]).returncode == 0
