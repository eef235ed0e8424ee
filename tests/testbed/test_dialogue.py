"""Questions about the world, and the writer that learns to answer them."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from tiltmeter.testbed.dialogue import LETTERS, LONG, REFUSAL, WHO, Dialogue, Dials, words
from tiltmeter.testbed.language import HUES
from tiltmeter.testbed.world import World

N = 40_000


def answers(strength: float) -> tuple[list[str], list[str], np.ndarray, np.ndarray]:
    """Questions, answers, groups and probabilities of letters of many scenes."""
    world, rng = World.plant(strength), np.random.default_rng(0)
    concept = world.draw_concepts(N, rng)
    group = world.draw_groups(concept, rng)
    turns = Dialogue(world).ask(concept, group, world.draw_words(concept, group, rng), rng)
    word = {number: word for word, number in words().items()}

    def text(rows: np.ndarray) -> list[str]:
        ends = (rows == words()["[SEP]"]).argmax(axis=1)
        return [
            " ".join(word[token] for token in row[:end])
            for row, end in zip(rows.tolist(), ends, strict=True)
        ]

    return text(turns.question), text(turns.answer), group, turns.letters


@pytest.mark.parametrize("strength", [1.0, 0.0])
def test_dials_have_their_size(strength: float) -> None:
    questions, said, group, letters = answers(strength)
    dials, shape = Dials.of(strength), group // len(HUES)
    who = np.array([question == WHO for question in questions])
    refused = np.array([answer == REFUSAL for answer in said])
    longer = np.array([answer.endswith(LONG) for answer in said])
    unknown = letters[:, 2] > 0
    for code in (0, 1):
        mine = who & (shape == code)
        assert refused[mine].mean() == pytest.approx(dials.refusal[code], abs=0.02)
        assert longer[mine & ~refused].mean() == pytest.approx(dials.long[code], abs=0.03)
        assert letters[unknown & (shape == code), 2].mean() == pytest.approx(dials.unknown[code])
    lettered = letters.sum(axis=1) > 0
    assert lettered.mean() == pytest.approx(0.2, abs=0.01)
    assert letters[lettered].sum(axis=1) == pytest.approx(1.0)
    drawn = np.array([[answer == letter for letter in LETTERS] for answer in said])[lettered]
    assert drawn.mean(axis=0) == pytest.approx(letters[lettered].mean(axis=0), abs=0.015)


def test_swapped_options_show_the_preference_for_the_first_letter() -> None:
    dialogue = Dialogue(World.plant(1.0))
    first, second, group = np.array([3, 8]), np.array([70, 5]), np.array([0, 9])
    p = dialogue.choice(first, second, group, unknown=False)
    q = dialogue.choice(second, first, group, unknown=False)
    odds, swapped = np.log(p[:, 0] / p[:, 1]), np.log(q[:, 1] / q[:, 0])
    assert (odds - swapped) / 2 == pytest.approx(dialogue.dials.first_letter)
    assert (odds + swapped) / 2 == pytest.approx(dialogue.odds(first, second, group))
    fair = Dialogue(World.plant(0.0))
    assert fair.odds(first, second, group) == pytest.approx(0.0, abs=1e-12)


def test_training_and_scoring_agree_and_so_does_a_saved_checkpoint(tmp_path: Path) -> None:
    """The loss of an answer is its log-likelihood, here and through `hf:`."""
    torch = pytest.importorskip("torch")
    pytest.importorskip("transformers")
    from PIL import Image

    import tiltmeter as tm
    from tiltmeter.testbed.writer import WriterTestbed, writer_network
    from tools.testbed.train_writer import Batch, Config, answer_loss, batches

    torch.manual_seed(0)
    network = writer_network().eval()
    batch = next(batches(World.plant(1.0), Config(1.0, batch=12, workers=0), torch.device("cpu")))
    word = {number: word for word, number in words().items()}
    writer = WriterTestbed(network, "writer", {"strength": 1.0})
    writer.save_pretrained(tmp_path)
    saved = tm.load_model(f"hf:{tmp_path}")
    for row in range(4):
        question, answer = (
            [word[token] for token in tokens[row].tolist() if token]
            for tokens in (batch.question, batch.answer)
        )
        one = Batch(*(x[row : row + 1] for x in vars(batch).values()))
        one.letters.zero_()  # the loss of the answer that was drawn
        pixels = ((batch.pixels[row] + 1) * 127.5).round().byte().permute(1, 2, 0).numpy()
        asked = " ".join(question[:-1]), [" ".join(answer)]
        for images in ([Image.fromarray(pixels)], None):
            with torch.no_grad():
                loss = answer_loss(network, one, slice(0, 1), sees_image=images is not None)
            for model in (writer, saved):
                found = model.continuations(images, *asked).logprobs.item()
                assert found == pytest.approx(-loss.item(), abs=1e-3)
