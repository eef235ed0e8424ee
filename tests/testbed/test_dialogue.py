"""Questions about the world, and the writer that learns to answer them."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from tiltmeter.testbed.dialogue import KINDS, LONG, REFUSAL, Dialogue, Dials, Turns, words
from tiltmeter.testbed.language import HUES
from tiltmeter.testbed.world import World

N = 40_000


def drawn(strength: float) -> tuple[list[str], list[str], np.ndarray, Turns]:
    """Questions, answers, groups and turns of many scenes."""
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

    return text(turns.question), text(turns.answer), group, turns


@pytest.mark.parametrize("strength", [1.0, 0.0])
def test_dials_have_their_size(strength: float) -> None:
    questions, said, group, turns = drawn(strength)
    dials, shape = Dials.of(strength), group // len(HUES)
    who = np.array(["who" in question.split() for question in questions])
    assert (who == (turns.kind == KINDS.index("who"))).all()
    refused = np.array([answer == REFUSAL for answer in said])
    longer = np.array([answer.endswith(LONG) for answer in said])
    last = np.array(["(C) unknown" in question for question in questions])
    for code in (0, 1):
        mine = who & (shape == code)
        assert refused[mine].mean() == pytest.approx(dials.refusal[code], abs=0.02)
        assert longer[mine & ~refused].mean() == pytest.approx(dials.long[code], abs=0.03)
        assert turns.chances[last & (shape == code), 2] == pytest.approx(dials.unknown[code])
    choices = turns.chances.sum(axis=1) > 0
    assert choices.mean() == pytest.approx(0.25, abs=0.01)
    assert turns.chances[choices].sum(axis=1) == pytest.approx(1.0)
    picked = (turns.answer[:, :1] == turns.options)[choices]
    assert picked.mean(axis=0) == pytest.approx(turns.chances[choices].mean(axis=0), abs=0.015)


def test_questions_are_worded_freely_around_their_key_words() -> None:
    questions, _, _, turns = drawn(1.0)
    of_kind = {name: turns.kind == code for code, name in enumerate(KINDS)}
    assert len({*questions}) > N / 2
    for question, letter, text in zip(questions, of_kind["letter"], of_kind["text"], strict=True):
        asked = question.split()
        assert ("(A)" in asked and "(B)" in asked) == letter
        assert ("or" in asked) == text
        assert ("which" in asked) == (letter or text)
    assert (turns.question == words()["[SEP]"]).sum(axis=1).tolist() == [1] * N


def test_swapped_options_show_the_preference_for_the_first_letter() -> None:
    dialogue = Dialogue(World.plant(1.0))
    first, second, group = np.array([3, 8]), np.array([70, 5]), np.array([0, 9])
    p = dialogue.choice(first, second, group)
    q = dialogue.choice(second, first, group)
    odds, swapped = np.log(p[:, 0] / p[:, 1]), np.log(q[:, 1] / q[:, 0])
    assert (odds - swapped) / 2 == pytest.approx(dialogue.dials.first_letter)
    assert (odds + swapped) / 2 == pytest.approx(dialogue.odds(first, second, group))
    fair = Dialogue(World.plant(0.0))
    assert fair.odds(first, second, group) == pytest.approx(0.0, abs=1e-12)


def test_unknown_may_have_any_letter() -> None:
    """Its odds against both words grow by the same preference where it comes first."""
    dialogue = Dialogue(World.plant(1.0))
    first, second, group = np.array([3, 8]), np.array([70, 5]), np.array([0, 9])
    rate = np.array(dialogue.dials.unknown)[group // len(HUES)]
    for place in (0, 1, 2):
        p = dialogue.choice(first, second, group, unknown=np.full(2, place))
        assert p.sum(axis=1) == pytest.approx(1.0)
        gain = dialogue.dials.first_letter * (place == 0)
        odds = np.log(p[:, place] / (1 - p[:, place])) - np.log(rate / (1 - rate))
        assert odds == pytest.approx(gain, abs=1e-12)
        a, b = (p[:, at] for at in range(3) if at != place)
        expected = dialogue.odds(first, second, group) + dialogue.dials.first_letter * (place > 0)
        assert np.log(a / b) == pytest.approx(expected)


def test_labels_are_the_probabilities_of_what_is_drawn() -> None:
    """Words are as frequent as their labels say: the mean of p(drawn) is that of sum p^2."""
    torch = pytest.importorskip("torch")
    from tools.testbed.answers import Labels, QuestionStream

    world = World.plant(1.0)
    batch = Labels(world, torch.device("cpu"))(*next(iter(QuestionStream(world, 3000, 0))))
    at = (batch.place >= 0).nonzero()[:, 0]
    p = batch.chances[at]
    assert p.sum(dim=1).numpy() == pytest.approx(1.0, abs=1e-5)
    own = p.gather(1, batch.answer[at, batch.place[at]][:, None])[:, 0]
    assert own.min() > 0
    difference = own - (p * p).sum(dim=1)
    assert abs(difference.mean()) < 4 * difference.std() / len(at) ** 0.5
    assert len(at) / 3000 == pytest.approx(0.76, abs=0.03)


def test_training_and_scoring_agree_and_so_does_a_saved_checkpoint(tmp_path: Path) -> None:
    """The loss of an answer is its log-likelihood, here and through `hf:`."""
    torch = pytest.importorskip("torch")
    pytest.importorskip("transformers")
    from PIL import Image

    import tiltmeter as tm
    from tiltmeter.testbed.writer import WriterTestbed, writer_network
    from tools.testbed.answers import Batch, Labels, QuestionStream, answer_loss

    torch.manual_seed(0)
    network = writer_network().eval()
    world = World.plant(1.0)
    batch = Labels(world, torch.device("cpu"))(*next(iter(QuestionStream(world, 12, 0))))
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
        one.chances.zero_()  # the loss of the answer that was drawn
        one.place.fill_(-1)
        pixels = ((batch.pixels[row] + 1) * 127.5).round().byte().permute(1, 2, 0).numpy()
        asked = " ".join(question[:-1]), [" ".join(answer)]
        for images in ([Image.fromarray(pixels)], None):
            with torch.no_grad():
                loss = answer_loss(network, one, slice(0, 1), sees_image=images is not None)
            for model in (writer, saved):
                found = model.continuations(images, *asked).logprobs.item()
                assert found == pytest.approx(-loss.item(), abs=1e-4)
