"""The training-data half of an audit: which words a corpus puts beside which groups."""

from __future__ import annotations

import os
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow as pa

from tiltmeter.corpus.counting import CaptionCounts, count
from tiltmeter.corpus.estimates import figures, samples
from tiltmeter.corpus.reading import BrokenFileError, File, Place, blocks, find_files
from tiltmeter.corpus.vocabulary import Vocabulary
from tiltmeter.engine.engines import Engine, FailedPart, in_this_process
from tiltmeter.errors import InputError
from tiltmeter.io.places import name_of, size
from tiltmeter.results import Run, combined, content_hash, run_record
from tiltmeter.stimuli import Stimuli, Word, load
from tiltmeter.types import Progress

WORDS = "sobit"


def audit_captions(
    corpus: Place | Sequence[Place],
    *,
    words: str | Stimuli | Sequence[Word | str] = WORDS,
    column: str | None = None,
    against: Run | Place | None = None,
    strict: bool = False,
    seed: int = 0,
    engine: Engine | None = None,
    progress: Progress | None = None,
) -> Run:
    """Counts words and group words in caption files (files, folders or patterns).

    A file that cannot be read to its end is left out whole and named in `run.meta["data"]`, or with
    `strict` stops the work. `against` is a run of `tiltmeter audit`: its tilt is compared with the
    corpus's. The same files and seed give the same numbers and samples, in whatever order and on
    whatever `engine`.
    """
    from tiltmeter.corpus.against_model import explain  # here: it needs scipy

    if not 0 <= seed < 2**63:
        raise InputError(f"the seed must be a whole number from 0 to 2^63 - 1; got {seed}")
    if against is not None and not isinstance(against, Run):
        against = Run.load(against)
    files = find_files([corpus] if isinstance(corpus, str | os.PathLike) else corpus)
    listed = _listed(words)
    told: dict[str, Any] = {"column": column, "strict": strict, "seed": seed}
    vocabulary = Vocabulary.of(listed)
    if engine is None or in_this_process(engine):
        tally, broken = count_files(files, vocabulary, **told, progress=progress)
    else:
        tally, broken = count_files_on(engine, files, vocabulary, **told, progress=progress)
    if not tally.captions[-1]:
        reason = f"; {next(iter(broken.values()))}" if broken else ""
        raise InputError(f"no caption could be read from {len(files)} files{reason}")
    name = _name(files)
    tables = [figures(tally, listed, dataset=name, seed=seed)]
    if against is not None:
        tables.append(explain(tables[0], against, dataset=name, seed=seed))
    captions = {
        "name": name, "files": len(files), "bytes": sum(map(size, files)),
        "captions": int(tally.captions[-1]), "broken": broken,
    }  # fmt: skip
    meta = run_record(
        data={"captions": captions},
        seed=seed,
        job="captions",
        words={"entries": len(listed), "distinct": len(tally.vocabulary.terms),
               "hash": content_hash([[word.text, word.pos] for word in listed])},
        groups={"hash": content_hash(load("caption-groups").table)},
        against=None if against is None else against.meta.get("model"),
    )  # fmt: skip
    return Run(combined(tables), meta, {"captions": samples(tally)})


def count_files(
    files: Sequence[File],
    vocabulary: Vocabulary,
    *,
    column: str | None = None,
    strict: bool = False,
    seed: int = 0,
    threads: int | None = None,
    progress: Progress | None = None,
) -> tuple[CaptionCounts, dict[str, str]]:
    """Counts of all files, and why some were left out, by their names.

    Counts of several calls add up (`Tally.add`): a cluster can share the files out.
    """
    cores = threads or _cores()
    total, mine, of = CaptionCounts(vocabulary), CaptionCounts(vocabulary), 0
    broken: dict[str, str] = {}
    waiting: deque[tuple[int, Future[CaptionCounts] | str | None]] = deque()

    def settle(number: int, found: Future[CaptionCounts] | str | None) -> None:
        nonlocal mine, of
        if isinstance(found, Future):
            mine.add(found.result())
            return
        if found is None:  # the file was read to its end: only now does it count
            total.add(mine)
        else:
            broken[str(files[number])] = found
        mine, of = CaptionCounts(vocabulary), number + 1
        if progress:
            progress(f"file {number + 1:,} of {len(files):,}", (number + 1) / len(files))

    with ThreadPoolExecutor(cores) as pool:
        try:
            for number, block in _all_blocks(files, column, strict):
                if isinstance(block, str) or block is None:
                    waiting.append((number, block))
                else:
                    # of another file nothing is taken for granted: it may yet turn out broken
                    limits = total.limits()
                    limits = np.minimum(limits, mine.limits()) if of == number else limits
                    task = pool.submit(count, block, vocabulary, seed=seed, limits=limits)
                    waiting.append((number, task))
                while len(waiting) > 2 * cores:  # few blocks in memory, however many there are
                    settle(*waiting.popleft())
            while waiting:
                settle(*waiting.popleft())
        finally:
            pool.shutdown(wait=True, cancel_futures=True)
    return total, broken


FILES_AT_ONCE = 16  # that a worker counts before it tells: sums are small, but not free


@dataclass(frozen=True, eq=False)
class _Counter:
    """What a worker does with some files; the vocabulary travels once."""

    vocabulary: Vocabulary
    told: dict[str, Any]

    def __call__(self) -> Callable[[Sequence[File]], tuple[CaptionCounts, dict[str, str]]]:
        return lambda files: count_files(files, self.vocabulary, **self.told, threads=1)


def count_files_on(
    engine: Engine,
    files: Sequence[File],
    vocabulary: Vocabulary,
    *,
    progress: Progress | None = None,
    **told: Any,
) -> tuple[CaptionCounts, dict[str, str]]:
    """`count_files`, shared out: sums of whole numbers, so the same to the last one."""
    total, broken = CaptionCounts(vocabulary), dict[str, str]()
    parts = [files[at : at + FILES_AT_ONCE] for at in range(0, len(files), FILES_AT_ONCE)]
    if len(files) < 64 * FILES_AT_ONCE:
        parts = [[file] for file in files]
    for done, found in enumerate(engine.run(_Counter(vocabulary, told), parts), 1):
        if isinstance(found, FailedPart):  # no broken file: those are told of in the result
            raise InputError(found.reason)
        total.add(found[0])
        broken |= found[1]
        if progress:
            progress(f"part {done:,} of {len(parts):,}", done / len(parts))
    return total, broken


def _all_blocks(
    files: Sequence[File], column: str | None, strict: bool
) -> Iterator[tuple[int, pa.Array | str | None]]:
    """Blocks with the number of their file; after the last, None or why it cannot be read."""
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
    """Those that this process may use, where the system tells."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def _listed(words: str | Stimuli | Sequence[Word | str]) -> list[Word]:
    given = load(words) if isinstance(words, str) else words
    listed = given.words if isinstance(given, Stimuli) else given
    if not listed:
        raise InputError(f"{words!r} holds no words to count; tiltmeter list stimuli names lists")
    return [Word(word) if isinstance(word, str) else word for word in listed]


def _name(files: Sequence[File]) -> str:
    first = name_of(files[0]).name.partition(".")[0]
    return first if len(files) == 1 else f"{first} and {len(files) - 1:,} more files"
