"""Texts that users read are plain English: the worst words of the first release stay out.

A file that has not been rewritten yet is in `OLD`, and leaves it once it is clean.

    python -m tests.test_language              counts the words in the working tree
    python -m tests.test_language COMMIT       counts them at a commit
    python -m tests.test_language --old        prints what belongs into `OLD` now
"""

from __future__ import annotations

import ast
import re
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest
import typer
from typer.testing import CliRunner

from tests.conftest import ROOT
from tiltmeter.cli.app import app

#: Word or phrase as a regular expression (whole words, any case): what to write instead.
WORDS = {
    r"pictures?": "image",
    r"photographs?": "image",
    r"tilt(?:s|ed)?": "bias",
    r"leans?": "is associated with, scores higher with",
    r"(?:dealt|dealing|dealings|deals?) out|relabell(?:ed|ings?)": "permuted labels, permutations",
    r"drawn (?:again|anew)": "bootstrap resamples",
    r"vectors of (?:photographs|pictures|images)|image vectors": "image embeddings",
    r"data sets?": "dataset",
    r"crossings?": "intersection",
    r"usefulness": "utility",
    r"(?:one|row|two|many) an? (?:query|image|group|text|word|prompt|model|probe)": "per query",
    r"less (?:that|those|the mean) of": "minus the mean of",
    r"anew": "again",
    r"whence|thereof|whereof": "from where, of it",
    r"hangs? on": "depends on",
    r"(?:brought|brings) along": "supplied",
    r"beside": "next to, with",
    r"in short": "summary",
    r"cr(?:y|ies) wolf": "false-positive rate",
    r"question was wrong": "usage error",
    r"what does (?:no )?harm": "harmful classes, benign classes",
    r"perm\. only": "not beyond neutral words",
    r"placebos?": "neutral words",
    r"house convention|the house(?:'s)?": "default convention",
    r"thousand million": "billion",
    r"hand(?:ing|ed)?(?: \w+){0,2} on": "share",
    r"name what there is|look after": "list, manage",
    r"what (?:stands|lies|is) where": "layout",
    r"told": "reported, known",
}
#: Only counted: each also has a right use.
AMBIGUOUS = {
    r"figures?": "value, estimate, metric; right for a plot",
    r"price": "utility cost; right for money",
    r"holds?": "contains; right for a theorem",
    r"lies?": "is",
    r"stands?": "is",
}
PATTERNS = {word: re.compile(rf"\b(?:{word})\b", re.I) for word in {**WORDS, **AMBIGUOUS}}
#: Not prose: code, targets of links, options, and the value `placebo` of columns.
ALLOWED = re.compile(r"`[^`]*`|\]\([^)]*\)|https?://\S+|--[\w-]+|['\"]placebo['\"]|\bp plac\.")


def words_in(text: str) -> set[str]:
    """The words and phrases to avoid that a text contains."""
    prose = " ".join(ALLOWED.sub(" ", text).split())  # a phrase may begin on one line
    return {found[0] for word in WORDS for found in PATTERNS[word].finditer(prose)}


def prose_of_page(page: str) -> str:
    """A page without its blocks of code and output, and without entries of the API reference."""
    return re.sub(r"^```.*?^```$|^::: .*?$", "", page, flags=re.M | re.S)


def strings(tree: ast.AST) -> Iterator[str]:
    """The text of all string literals and f-strings, without docstrings and keys of one word."""
    docstrings = {
        id(node.body[0].value)
        for node in ast.walk(tree)
        if isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef)
        and ast.get_docstring(node) is not None
    }
    for node in ast.walk(tree):
        is_text = isinstance(node, ast.Constant) and isinstance(node.value, str)
        if is_text and id(node) not in docstrings and " " in node.value.strip():
            yield node.value


def strings_of_errors(source: str) -> str:
    """What the errors that a file raises say."""
    raised = [node for node in ast.walk(ast.parse(source)) if isinstance(node, ast.Raise)]
    return "\n".join(text for node in raised for text in strings(node))


def strings_of_file(source: str) -> str:
    """Every sentence that a file may print."""
    return "\n".join(strings(ast.parse(source)))


def texts(root: Path = ROOT) -> dict[str, str]:
    """What users read, by where it is written: pages, errors, and the strings of `pages/`."""
    pages = [root / "README.md", root / "CONTRIBUTING.md", *sorted((root / "docs").rglob("*.md"))]
    found = {str(page.relative_to(root)): prose_of_page(page.read_text()) for page in pages}
    for path in sorted((root / "src/tiltmeter").rglob("*.py")):
        in_pages = path.relative_to(root).parts[2] in ("pages", "sharing")
        read = strings_of_file if in_pages else strings_of_errors
        found[str(path.relative_to(root))] = read(path.read_text())
    return {name: text for name, text in found.items() if text}


def commands() -> Iterator[tuple[str, ...]]:
    """The path of every command: (), ("audit",), ("store", "verify"), ..."""
    waiting = [((), typer.main.get_command(app))]
    while waiting:
        path, command = waiting.pop()
        yield path
        below = getattr(command, "commands", {})
        waiting += [((*path, name), sub) for name, sub in below.items()]


def help_of(command: tuple[str, ...]) -> str:
    """What `tiltmeter COMMAND --help` prints, without its frames."""
    wide = {"COLUMNS": "300", "NO_COLOR": "1", "TERM": "dumb"}
    return CliRunner().invoke(app, [*command, "--help"], env=wide).output


def help_name(command: tuple[str, ...]) -> str:
    return " ".join(("help", *command))


TEXTS = texts()
COMMANDS = {help_name(command): command for command in sorted(commands())}

#: Not yet rewritten.
OLD: set[str] = set()


def check(name: str, text: str) -> None:
    found = words_in(text)
    if name in OLD:
        assert found, f"{name} is clean now: remove it from OLD"
    else:
        assert not found, f"{name}: see WORDS for what to write instead"


@pytest.mark.parametrize("name", TEXTS)
def test_texts(name: str) -> None:
    check(name, TEXTS[name])


@pytest.mark.parametrize("name", COMMANDS)
def test_help(name: str) -> None:
    check(name, help_of(COMMANDS[name]))


def test_old_names_what_exists() -> None:
    assert {*TEXTS, *COMMANDS} >= OLD


def test_the_tests_above_can_fail() -> None:
    assert words_in("Whence these Pictures? See the data set.") == {
        "Whence",
        "Pictures",
        "data set",
    }
    assert words_in("Tiltmeter: `placebo`, --placebo, [x](pictures/a.md)") == set()
    assert prose_of_page("a\n```text\npicture\n```\nb") == "a\n\nb"
    raising = 'def f():\n    """A picture."""\n    raise ValueError(f"no pictures in {x}")'
    assert strings_of_errors(raising) == "no pictures in "


def print_counts(root: Path) -> None:
    """How often each word is in the documentation, in strings of the source, and in all of it."""
    pages = [root / "README.md", root / "CONTRIBUTING.md", *(root / "docs").rglob("*.md")]
    sources = [path.read_text() for path in (root / "src").rglob("*.py")]
    columns = {
        "docs": "\n".join(page.read_text() for page in pages),
        "strings": "\n".join(strings_of_file(source) for source in sources),
        "src": "\n".join(sources),
    }
    print("".join(f"{name:>8}" for name in columns), " word")
    for word, pattern in PATTERNS.items():
        counts = [len(pattern.findall(" ".join(text.split()))) for text in columns.values()]
        print("".join(f"{count:8,}" for count in counts), "", word.replace("?:", ""))


def main(arguments: list[str]) -> None:
    if arguments == ["--old"]:
        found = [name for name, text in TEXTS.items() if words_in(text)]
        found += [name for name, command in COMMANDS.items() if words_in(help_of(command))]
        print("\n".join(f'    "{name}",' for name in sorted(found)))
    elif arguments:
        with tempfile.TemporaryDirectory() as folder:
            packed = subprocess.run(
                ["git", "archive", arguments[0], "src", "docs", "README.md", "CONTRIBUTING.md"],
                cwd=ROOT,
                check=True,
                capture_output=True,
            )
            subprocess.run(["tar", "-x", "-C", folder], input=packed.stdout, check=True)
            print_counts(Path(folder))
    else:
        print_counts(ROOT)


if __name__ == "__main__":
    main(sys.argv[1:])
