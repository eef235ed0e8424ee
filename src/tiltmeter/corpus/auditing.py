"""Audit of training data: which words occur with which groups in captions."""

from __future__ import annotations

import os
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from tiltmeter.corpus.counting import CaptionCounts, count
from tiltmeter.corpus.duplicates import EXACT, Duplicates
from tiltmeter.corpus.estimates import estimate_rows, neutral_counts, samples
from tiltmeter.corpus.reading import Block, BrokenFileError, File, Place, blocks, find_files
from tiltmeter.corpus.vocabulary import EXAMPLE, Vocabulary
from tiltmeter.engine.engines import Engine, FailedPart, in_this_process
from tiltmeter.engine.parts import run_parts
from tiltmeter.errors import InputError
from tiltmeter.io.filesystems import file_size, path_of
from tiltmeter.io.tables import not_utf8
from tiltmeter.io.yaml_files import parse_yaml
from tiltmeter.results import Run, combined, content_hash, run_record
from tiltmeter.stimuli import Stimuli, Word, load
from tiltmeter.types import Progress

WORDS = "sobit"
NEUTRAL = ("placebo-nouns", "placebo-adjectives", "neutral-people")


def audit_captions(
    corpus: Place | Sequence[Place],
    *,
    words: str | Stimuli | Sequence[Word | str] | None = None,
    groups: str | Mapping[str, Any] | None = None,
    column: str | None = None,
    against: Run | Place | None = None,
    duplicates: str | None = None,
    strict: bool = False,
    seed: int = 0,
    engine: Engine | None = None,
    progress: Progress | None = None,
) -> Run:
    """Count words and group words in captions.

    The same files and seed give the same counts and samples, in any order and on any engine.

    Parameters
    ----------
    corpus : path or sequence of path
        Caption files, folders or patterns: Parquet, CSV, TSV, JSONL or COCO JSON.
    words : str, Stimuli or sequence
        A built-in list name, a file, or words. Defaults to the words of `against`, otherwise to
        `sobit`.
    groups : str or mapping, optional
        Group words in place of those for gender and race: attribute -> group -> words, or a YAML
        file of it.
    column : str, optional
        Column of captions. Defaults to the first known name, such as `caption` or `text`.
    against : Run or path, optional
        A run of `tiltmeter audit` whose lift is compared with that of the captions.
    duplicates : {"exact", "near"}, optional
        Count copies of a caption once: exact ones, or also near ones (see the module of that
        name). Then every file must be readable. By default every caption counts.
    strict : bool
        Fail on an unreadable file. By default it is left out and listed in `run.meta["data"]`.
    seed : int
        Seed of the caption samples and of the bootstrap.
    engine : Engine, optional
        Defaults to threads of this process.
    progress : callable, optional
        Called as `progress(what, share)`.

    Returns
    -------
    Run
        Rows of the probe `captions`, and samples of captions as instances.

    Raises
    ------
    InputError
        If no caption can be read, if `seed` is out of range, or if `against` has no lift or no two
        groups that captions are searched for.
    UnknownNameError
        If a file has no such column, or if a word list is unknown.

    Examples
    --------
    >>> import tempfile
    >>> from pathlib import Path
    >>> file = Path(tempfile.mkdtemp()) / "captions.csv"
    >>> _ = file.write_text("caption\\na nurse and her cat\\n")
    >>> run = audit_captions(file, words=["nurse"])
    >>> run.meta["data"]["captions"]["captions"]
    1
    """
    from tiltmeter.corpus.against_model import (  # imports scipy, so only here
        compare_with_model,
        listed_words,
    )

    if not 0 <= seed < 2**63:
        raise InputError(f"seed must be an integer from 0 to 2^63 - 1; got {seed}")
    if against is not None and not isinstance(against, Run):
        against = Run.load(against)
    files = find_files([corpus] if isinstance(corpus, str | os.PathLike) else corpus)
    if words is None:
        words = WORDS if against is None else listed_words(against)
    word_list = _word_list(words)
    neutral = _neutral_words(word_list)
    group_words = _read_groups(groups) if isinstance(groups, str) else groups
    options: dict[str, Any] = {"column": column, "strict": strict, "seed": seed}
    vocabulary = Vocabulary.of([*word_list, *neutral], group_words)
    copies = None if duplicates is None else Duplicates(duplicates)
    if engine is None or in_this_process(engine):
        counts, broken = count_files(
            files, vocabulary, **options, duplicates=copies, progress=progress
        )
    elif copies is not None and copies.kind != EXACT:
        raise InputError(
            f"--duplicates {duplicates} compares all captions in one process: use --engine local, "
            f"or --duplicates {EXACT}",
            code="bad-option",
            value=duplicates,
        )
    elif copies is not None:
        counts, broken, copies.count = count_distinct_on(
            engine, files, vocabulary, **options, progress=progress
        )
    else:
        counts, broken = count_files_on(engine, files, vocabulary, **options, progress=progress)
    if not counts.captions[-1]:
        reason = f"; {next(iter(broken.values()))}" if broken else ""
        raise InputError(f"no caption could be read from {len(files)} files{reason}")
    name = _name(files)
    tables = [estimate_rows(counts, word_list, neutral, dataset=name, seed=seed)]
    if against is not None:
        tables.append(compare_with_model(counts, neutral, against, dataset=name, seed=seed))
    captions: dict[str, Any] = {
        "name": name, "files": len(files), "bytes": sum(map(file_size, files)),
        "captions": int(counts.captions[-1]), "broken": broken,
    }  # fmt: skip
    if copies is not None:
        captions["duplicates"] = {"kind": copies.kind, "left_out": copies.count}
    meta = run_record(
        data={"captions": captions},
        seed=seed,
        job="captions",
        words={"entries": len(word_list), "distinct": len({word.text for word in word_list}),
               "hash": content_hash([[word.text, word.pos] for word in word_list])},
        neutral=neutral_counts(counts, neutral),
        groups={"hash": content_hash(group_words or load("caption-groups").table)},
        against=None if against is None else against.meta.get("model"),
    )  # fmt: skip
    return Run(combined(tables), meta, {"captions": samples(counts, word_list)})


def count_files(
    files: Sequence[File],
    vocabulary: Vocabulary,
    *,
    column: str | None = None,
    strict: bool = False,
    seed: int = 0,
    duplicates: Duplicates | None = None,
    threads: int | None = None,
    progress: Progress | None = None,
) -> tuple[CaptionCounts, dict[str, str]]:
    """Counts over all files, and reasons for files that were left out, by name.

    Counts of several calls can be added (`CaptionCounts.add`). With `duplicates` an unreadable file
    is an error: what was read of it would already count as seen.
    """
    strict = strict or duplicates is not None
    cores = threads or _cores()
    total, file_counts, current_file = CaptionCounts(vocabulary), CaptionCounts(vocabulary), 0
    broken: dict[str, str] = {}
    waiting: deque[tuple[int, Future[CaptionCounts] | str | None]] = deque()

    def settle(number: int, result: Future[CaptionCounts] | str | None) -> None:
        nonlocal file_counts, current_file
        if isinstance(result, Future):
            file_counts.add(result.result())
            return
        if result is None:  # the file was read completely: only now it counts
            total.add(file_counts)
        else:
            broken[str(files[number])] = result
        file_counts, current_file = CaptionCounts(vocabulary), number + 1
        if progress:
            progress(f"file {number + 1:,} of {len(files):,}", (number + 1) / len(files))

    with ThreadPoolExecutor(cores) as pool:
        try:
            for number, block in _all_blocks(files, column, strict):
                if isinstance(block, str) or block is None:
                    waiting.append((number, block))
                else:
                    # limits of an unfinished file do not apply to others: it may be broken
                    limits = total.limits()
                    limits = (
                        np.minimum(limits, file_counts.limits())
                        if current_file == number
                        else limits
                    )
                    if duplicates is not None:
                        block = duplicates.leave_out(block)
                    task = pool.submit(count, block.captions, vocabulary, images=block.images,
                                       seed=seed, limits=limits)  # fmt: skip
                    waiting.append((number, task))
                while len(waiting) > 2 * cores:  # limits the blocks in memory
                    settle(*waiting.popleft())
            while waiting:
                settle(*waiting.popleft())
        finally:
            pool.shutdown(wait=True, cancel_futures=True)
    return total, broken


FILES_AT_ONCE = 16  # files per result of a worker: sending results is not free
#: Bytes of files whose distinct captions one worker remembers: about 500 MB of hashes.
SHARE_BYTES = 1 << 29


@dataclass(frozen=True, eq=False)
class _Counter:
    """Counts files in a worker; the vocabulary is sent once."""

    vocabulary: Vocabulary
    options: dict[str, Any]

    def __call__(self) -> Callable[[Sequence[File]], tuple[CaptionCounts, dict[str, str]]]:
        return lambda files: count_files(files, self.vocabulary, **self.options, threads=1)


def count_files_on(
    engine: Engine,
    files: Sequence[File],
    vocabulary: Vocabulary,
    *,
    progress: Progress | None = None,
    **options: Any,
) -> tuple[CaptionCounts, dict[str, str]]:
    """`count_files` on an engine; sums of integers, so the result is identical."""
    total, broken = CaptionCounts(vocabulary), dict[str, str]()
    parts = [files[start : start + FILES_AT_ONCE] for start in range(0, len(files), FILES_AT_ONCE)]
    if len(files) < 64 * FILES_AT_ONCE:
        parts = [[file] for file in files]
    for done, result in enumerate(engine.run(_Counter(vocabulary, options), parts), 1):
        if isinstance(result, FailedPart):  # not a broken file: those are in the result
            raise InputError(result.reason)
        total.add(result[0])
        broken |= result[1]
        if progress:
            progress(f"part {done:,} of {len(parts):,}", done / len(parts))
    return total, broken


@dataclass(frozen=True, eq=False)
class _DistinctCounter:
    """Counts, in a worker, the distinct captions of all files whose hash belongs to one share."""

    files: Sequence[File]
    vocabulary: Vocabulary
    shares: int
    options: dict[str, Any]

    def __call__(self) -> Callable[[int], tuple[CaptionCounts, int]]:
        return self.work

    def work(self, number: int) -> tuple[CaptionCounts, int]:
        """Distinct captions of one share, and the number of copies that were left out."""
        copies = Duplicates(EXACT, (number, self.shares))
        counts, _ = count_files(
            self.files, self.vocabulary, **self.options, duplicates=copies, threads=1
        )
        return counts, copies.count


def count_distinct_on(
    engine: Engine,
    files: Sequence[File],
    vocabulary: Vocabulary,
    *,
    progress: Progress | None = None,
    **options: Any,
) -> tuple[CaptionCounts, dict[str, str], int]:
    """`count_files` without exact copies on an engine, and the number of copies.

    Every worker reads all files, and keeps the captions whose hash belongs to its share: no caption
    is sent anywhere, and what it has seen fits into its memory. An unreadable file is an error.
    """
    shares = max(engine.slots, -(-sum(map(file_size, files)) // SHARE_BYTES))
    total, left_out = CaptionCounts(vocabulary), 0
    task = _DistinctCounter(files, vocabulary, shares, options)
    tell = progress or (lambda what, share: None)
    for result in run_parts(engine, task, list(range(shares)), tell, "counting", "shares"):
        if isinstance(result, FailedPart):
            raise InputError(result.reason)
        total.add(result[0])
        left_out += result[1]
    return total, {}, left_out


def _all_blocks(
    files: Sequence[File], column: str | None, strict: bool
) -> Iterator[tuple[int, Block | str | None]]:
    """Blocks with the number of their file; after its last, None or the reason of a failure."""
    for number, path in enumerate(files):
        try:
            for block in blocks(path, column):
                yield number, block
        except BrokenFileError as error:
            if strict:
                raise
            yield number, str(error)
        else:
            yield number, None


def _cores() -> int:
    """Number of cores that this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def _word_list(words: str | Stimuli | Sequence[Word | str]) -> list[Word]:
    loaded = load(words) if isinstance(words, str) else words
    entries = loaded.words if isinstance(loaded, Stimuli) else loaded
    if not entries:
        raise InputError(f"{words!r} has no words to count; see tiltmeter list stimuli")
    return [Word(word) if isinstance(word, str) else word for word in entries]


def _read_groups(path: str) -> Mapping[str, Any]:
    try:
        text = Path(path).read_text(encoding="utf-8-sig")
    except UnicodeDecodeError as error:
        raise not_utf8(path, error) from None
    found = parse_yaml(text, path)
    if not isinstance(found, Mapping):
        raise InputError(f"{path} has no group words; {EXAMPLE}", code="bad-file", value=path)
    return found


def _neutral_words(listed: Sequence[Word]) -> list[Word]:
    """Neutral words that are no words of the list: captions' own reference."""
    own = {word.text for word in listed}
    words = [word for name in NEUTRAL for word in load(name).words]
    return list({word.text: word for word in words if word.text not in own}.values())


def _name(files: Sequence[File]) -> str:
    first = path_of(files[0]).name.partition(".")[0]
    return first if len(files) == 1 else f"{first} and {len(files) - 1:,} more files"
