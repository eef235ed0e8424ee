"""a or an goes by sound."""

import pytest

from tiltmeter.errors import InputError
from tiltmeter.stimuli import article, fill

A = """
nurse unique university european one-legged uniform useful ukulele union unit universal unicorn
unilateral unidirectional unimodal unanimous usual user utopian utility ubiquitous eulogy ewe
one once one-off oneness house heroic hotel history horrible happy yellow year ukrainian uranium
ugandan urologist uvula usable TV CEO UFO UN US U-turn T-shirt PhD BBC NASA NATO 100 1 10 7 110
1,850 180 europe-wide unitary uniformed unified unisex UK
Mr Mrs Ms St uyghur éuphoric
"""

AN = """
honest hour heir heirloom honor honour hourly heiress honorary uninsured umbrella unimportant
unimaginative uninteresting uninformed unidentified uninvited uninspired unintelligent unimpressed
unideal unironic unissued unilluminated undocumented ugly urban urge urn usher utter ultimate
onerous oncologist apple idle egg old MRI X-ray x-ray FBI HR LGBTQ MP mri fbi
SOS NBA F-16 8 11 18 80 8,000 18,000 11,000 1850 éclair yttrium e-mail under-prepared
MSc MRIs über un-American nth élite
"""


@pytest.mark.parametrize("word", A.split())
def test_a(word: str) -> None:
    assert article(word) == "a"


@pytest.mark.parametrize("word", AN.split())
def test_an(word: str) -> None:
    assert article(word) == "an"


@pytest.mark.parametrize(
    ("phrase", "expected"),
    [
        ("TV presenter", "a"),
        ("FBI agent", "an"),
        ("abortion seeking", "an"),
        ("one-eyed cat", "a"),
        ('"honest" broker', "an"),
        ("HONEST", "an"),
        ("USEFUL", "a"),
        ("", "a"),
        ("...", "a"),
    ],
)
def test_phrases_go_by_their_first_word(phrase: str, expected: str) -> None:
    assert article(phrase) == expected


@pytest.mark.parametrize(
    ("template", "word", "text"),
    [
        ("a photo of a {} person", "honest", "a photo of an honest person"),
        ("a photo of an {} person", "kind", "a photo of a kind person"),
        ("a photo of a/an {}", "umpire", "a photo of an umpire"),
        ("A {} person", "honest", "An honest person"),
        ("An {} person", "unique", "A unique person"),
        ("A/an {} person", "old", "An old person"),
        ("A/An {} person", "rich", "A rich person"),
        ("A/AN {}", "old", "AN old"),
        ("This person is {}", "honest", "This person is honest"),
        ("the {} of a day", "hour", "the hour of a day"),
        ("a very {} person", "honest", "a very honest person"),
        ("banana {}", "orange", "banana orange"),
        ("the {}", "x{}y\\1", "the x{}y\\1"),
        ("a {} and a {}", "owl", "an owl and an owl"),
    ],
)
def test_fill(template: str, word: str, text: str) -> None:
    assert fill(template, word) == text


def test_fill_needs_a_slot() -> None:
    with pytest.raises(InputError, match="no place for a word"):
        fill("a photo of a person", "kind")


def test_articles_as_written_in_words_and_neutral_words() -> None:
    """The authors' lists say so themselves; any list can be shown so."""
    from tiltmeter import stimuli
    from tiltmeter.errors import UnknownNameError
    from tiltmeter.probes.texts import audit_prompts

    code = stimuli.prompts(stimuli.load("berg-code"))
    assert len(code) == 29 * 11
    assert "A evil person" in {prompt.text for prompt in code}
    texts = {prompt.text for prompt in audit_prompts(None, "berg", None, None, "written")}
    assert "A photo of a evil person" in texts
    assert not any(" an " in text or text.startswith("An ") for text in texts)
    neutral = [prompt for prompt in audit_prompts(None, "berg-code") if prompt.role == "placebo"]
    assert neutral
    assert not any(" an " in prompt.text for prompt in neutral)
    with pytest.raises(UnknownNameError, match="did you mean 'written'"):
        stimuli.prompts(["honest"], templates="a {}", articles="writen")
