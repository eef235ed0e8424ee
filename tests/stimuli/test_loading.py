"""Names, files, and what is said when they cannot be read."""

import subprocess
import sys
from pathlib import Path

import pytest

from tests.refusing import refused
from tiltmeter.catalogue import entries
from tiltmeter.errors import InputError, UnknownNameError
from tiltmeter.stimuli import STIMULI, Word, load, prompts


def write(folder: Path, name: str, text: str) -> Path:
    path = folder / name
    path.write_text(text, encoding="utf-8")
    return path


def test_an_unknown_name_gets_a_suggestion() -> None:
    with pytest.raises(UnknownNameError, match="did you mean 'sobit'"):
        load("sobbit")


def test_the_catalogue_is_a_mapping() -> None:
    assert "sobit" in STIMULI
    assert "sobbit" not in STIMULI
    assert len(STIMULI) == len(list(STIMULI)) > 10
    assert STIMULI.get("sobit") is not None


def test_the_catalogue_counts_templates() -> None:
    listed = entries("stimuli")
    assert listed["clip-imagenet"].endswith("(80 templates)")
    assert listed["counterbias"].endswith("(6 templates)")


def test_csv_with_all_columns(tmp_path: Path) -> None:
    path = write(
        tmp_path,
        "mine.csv",
        "word,category,pos,template,role\n"
        "honest,Virtue,adjective,,\n"
        "at ease,Mood,,a person who is {},\n"
        "urn,Things,noun,,placebo\n",
    )
    mine = load(path)
    assert mine.name == "mine"
    assert mine.categories == ("Virtue", "Mood", "Things")
    assert mine.words[1] == Word("at ease", "", "Mood", "a person who is {}")
    made = prompts(mine)
    assert [p.text for p in made] == [
        "a photo of an honest person",
        "a person who is at ease",
        "a photo of an urn",
    ]
    assert [p.role for p in made] == ["word", "word", "placebo"]


def test_csv_with_byte_order_mark_quotes_and_blank_lines(tmp_path: Path) -> None:
    path = tmp_path / "mine.csv"
    path.write_bytes(
        b'\xef\xbb\xbfWord, Category\r\n"kind, but firm",Mood\r\n\r\nna\xc3\xafve,Mood\r\n'
    )
    assert [w.text for w in load(str(path)).words] == ["kind, but firm", "naïve"]


def test_yaml_plain_mapping(tmp_path: Path) -> None:
    path = write(
        tmp_path,
        "mine.yml",
        "Things: [cello, oboe]\n"
        'Mood: {pos: adjective, words: [calm, {text: idle, pos: noun}]}\n"1": ["8"]',
    )
    words = load(path).words
    assert words == (
        Word("cello", "", "Things"),
        Word("oboe", "", "Things"),
        Word("calm", "adjective", "Mood"),
        Word("idle", "noun", "Mood"),
        Word("8", "", "1"),
    )


def test_yaml_in_the_format_of_the_package(tmp_path: Path) -> None:
    copy = write(tmp_path, "copy.yaml", STIMULI["berg"].read_text(encoding="utf-8"))
    assert load(copy) == load("berg")


@pytest.mark.parametrize(
    ("name", "text", "message"),
    [
        ("a.csv", "term,category\nkind,Mood\n", "column 'word'"),
        ("a.csv", "", "column 'word'"),
        ("a.csv", "word\n", "no words"),
        ("a.csv", "word,category\n,Mood\n", "entry 1 of .* has no word"),
        ("a.csv", "word,category\nkind,Mood\nkind,Mood\n", "'kind' occurs twice"),
        ("a.csv", "word,pos\nkind,adverb\n", "part of speech 'adverb'"),
        ("a.csv", "word,template\nkind,a person\n", "write {} where the word goes"),
        ("a.csv", "word,category\nkind, but firm,Mood\n", "line 2 of .* put quotes around"),
        ("a.yaml", "", "is empty"),
        ("a.yaml", "Mood: [kind, kind]", "'kind' occurs twice"),
        ("a.yaml", "Mood: []", "no words"),
        ("a.yaml", "Mood:", "must be a list of words"),
        ("a.yaml", "Mood: [no]", "False in category 'Mood' .* in quotes"),
        ("a.yaml", "- kind\n- calm", "contains a list"),
        ("a.yaml", "Mood: [kind", "not valid YAML"),
        ("a.yaml", "kind: wrods\ncategories: {Mood: [kind]}", "of kind 'wrods'"),
        ("a.yaml", "kind: pairs\npairs: [[good]]", "not a pair"),
        ("a.yaml", "kind: pairs", "nothing under 'pairs'"),
        ("a.yaml", "kind: table", "nothing under 'table'"),
        ("a.yaml", "categories: [kind]", "gives its categories as a list"),
        (
            "a.yaml",
            "kind: weat\nsets: {p: [a], q: [b]}\ntests: [{name: t, X: p, Y: q, A: p, B: r}]",
            "no known set for B",
        ),
    ],
)
def test_files_that_cannot_be_used(tmp_path: Path, name: str, text: str, message: str) -> None:
    with pytest.raises(InputError, match=message):
        load(write(tmp_path, name, text))


@pytest.mark.parametrize("name", ["none.csv", "none.yaml"])
def test_a_missing_file(tmp_path: Path, name: str) -> None:
    with pytest.raises(InputError, match="there is no file .*check the path"):
        load(tmp_path / name)


@pytest.mark.parametrize("name", ["latin.csv", "latin.yaml"])
def test_a_file_that_is_not_utf8(tmp_path: Path, name: str) -> None:
    path = tmp_path / name
    path.write_bytes("word\nnaïve\n".encode("latin-1"))
    with pytest.raises(InputError, match="not UTF-8"):
        load(path)


def test_a_folder_or_another_kind_of_file(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="ends in .yaml"):
        load(tmp_path / "words.txt")
    with pytest.raises(InputError, match="ends in .yaml"):
        load("words.txt")
    (tmp_path / "folder.csv").mkdir()
    with pytest.raises(InputError, match="cannot read"):
        load(tmp_path / "folder.csv")


def test_the_same_word_may_stand_in_two_categories() -> None:
    lazy = [p.category for p in prompts(load("sobit")) if p.concept == "lazy"]
    assert lazy == ["Behaviorial", "Education and wealth"]


def test_templates_given_by_hand() -> None:
    words = [Word("honest", "adjective"), Word("at ease", "adjective", template="{} at last")]
    assert [p.text for p in prompts(words, templates=["A {} face", "{}"])] == [
        "An honest face",
        "honest",
        "An at ease face",
        "at ease",
    ]
    by_pos = prompts(words, templates={"adjective": ["this is {}"]}, role="placebo")
    assert [(p.text, p.role) for p in by_pos] == [
        ("this is honest", "placebo"),
        ("at ease at last", "placebo"),
    ]


def test_no_template_is_guessed() -> None:
    with pytest.raises(InputError, match="part of speech is not given"):
        prompts(["honest"])
    assert prompts(["honest"], templates="an {} person")[0].text == "an honest person"


@pytest.mark.parametrize("templates", [[], ["no slot"]])
def test_templates_that_cannot_be_used(templates: list[str]) -> None:
    with pytest.raises(InputError):
        prompts([Word("kind", "adjective")], templates=templates)


def test_typed_words_are_a_list() -> None:
    """With the part of speech and template of the built-in lists, or the one that is typed."""
    listed = load("doctor, nurse,brave, police,zookeeper:noun,")
    assert [p.text for p in prompts(listed)] == [
        "a photo of a doctor", "a photo of a nurse", "a photo of a brave person",
        "a photo of a police officer", "a photo of a zookeeper",
    ]  # fmt: skip
    assert [word.pos for word in listed.words] == ["noun", "noun", "adjective", "noun", "noun"]


@pytest.mark.parametrize(
    ("typed", "value", "instead"),
    [
        ("nurse,zookeeper", "zookeeper", "zookeeper:noun"),
        ("nurse,nice:adverb", None, "adverb"),
        ("nurse,lamp", "lamp", "lamp:noun"),  # a neutral word is none to test
        (",", None, "no words"),
    ],
)
def test_typed_words_that_cannot_be_used(typed: str, value: str | None, instead: str) -> None:
    with pytest.raises(InputError, match=instead) as caught:
        load(typed)
    assert caught.value.value == value


@pytest.mark.parametrize("typed", ["nurse", "zookeeper:noun"])
def test_one_typed_word_needs_no_comma(typed: str) -> None:
    assert [word.text for word in load(typed).words] == [typed.partition(":")[0]]


def test_a_typed_word_that_is_nearly_known() -> None:
    with pytest.raises(InputError, match=r"did you mean doctor\?"):
        load("docter,nurse")


def test_a_misspelt_word_of_a_file(tmp_path: Path) -> None:
    for word, hint in (("enginer", "did you mean engineer?"), ("flibber", "--template")):
        (tmp_path / "mine.csv").write_text(f"word\n{word}\n")
        with refused("bad-input", repr(word), hint, "--template"):
            prompts(load(tmp_path / "mine.csv"))
    with pytest.raises(InputError) as caught:
        prompts(["flibber"])
    assert caught.value.value == "flibber"
    assert "did you mean" not in str(caught.value)


def test_no_words_no_prompts() -> None:
    with pytest.raises(InputError, match="no words"):
        prompts([])


def test_importing_reads_no_file_and_no_yaml() -> None:
    code = (
        "import sys, pathlib, tiltmeter.stimuli as s\n"
        "assert 'yaml' not in sys.modules\n"
        "s.load('iat')\n"
        "assert 'yaml' in sys.modules\n"
    )
    source = str(Path(__file__).parents[2] / "src")
    done = subprocess.run(
        [sys.executable, "-c", code],
        capture_output=True,
        text=True,
        env={"PYTHONPATH": source},
        check=False,
    )
    assert done.returncode == 0, done.stderr


def test_one_word_that_no_list_has() -> None:
    with pytest.raises(UnknownNameError, match="did you mean 'zookeeper:noun'"):
        load("zookeeper")
    assert [word.pos for word in load("zookeeper:noun").words] == ["noun"]
    with pytest.raises(UnknownNameError, match="did you mean 'sobit'"):
        load("sobbit")
