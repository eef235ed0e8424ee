"""Parts that are finished are not computed again, and a journal runs no code."""

from __future__ import annotations

import hashlib
import os
import pickle
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.engine.collections_in_shards import clip_retrieval, scaled_model
from tiltmeter.auditing.audit import audit
from tiltmeter.engine.engines import FailedPart
from tiltmeter.engine.journal import Journal
from tiltmeter.engine.ranking.partitioned import DigestTask
from tiltmeter.engine.score_moments import MomentsTask
from tiltmeter.metrics.summary import Moments

ASKED: dict[str, Any] = {"probes": ["ranking", "lift"], "k": [10], "permutations": 20,
                         "bootstraps": 0, "engine": "parts:size=100"}  # fmt: skip


@pytest.mark.parametrize("task", [DigestTask, MomentsTask])
def test_after_the_loss_of_the_driver_finished_parts_are_not_done_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, task: type[Any]
) -> None:
    place = clip_retrieval(tmp_path / "laion")
    model, spec, store = scaled_model(place), f"embeddings:{place}", tmp_path / "store"
    whole = audit(model, spec, **ASKED)
    done: list[range] = []
    work = task.work

    def counted(self: Any, part: range) -> Any:
        if len(done) == 2:
            raise KeyboardInterrupt  # as a killed driver: nothing of ours is run after it
        done.append(part)
        return work(self, part)

    monkeypatch.setattr(task, "work", counted)
    with pytest.raises(KeyboardInterrupt):
        audit(model, spec, store=store, **ASKED)
    assert len(done) == 2
    kept = sorted((store / "unfinished").glob("*/*.part"))
    assert len(kept) == 2
    (kept[0].parent / ".2.part.0f.part").write_bytes(b"of a worker killed while it wrote")
    again: list[range] = []

    def seen(self: Any, part: range) -> Any:
        again.append(part)
        return work(self, part)

    monkeypatch.setattr(task, "work", seen)
    finished = audit(model, spec, store=store, **ASKED)
    assert finished.table.equals(whole.table)
    assert not set(again) & set(done)
    assert sum(map(len, again)) + sum(map(len, done)) == 2000
    assert not list((store / "unfinished").glob("*/*.part"))


def test_changed_files_are_counted_and_scored_again(tmp_path: Path) -> None:
    place = clip_retrieval(tmp_path / "laion")
    model, spec, store = scaled_model(place), f"embeddings:{place}", tmp_path / "store"
    before = audit(model, spec, store=store, **ASKED)
    indexes = list((store / "unfinished" / "index").iterdir())
    assert len(indexes) == 4
    file = place / "img_emb" / "img_emb_0.npy"
    np.save(file, -np.load(file))
    os.utime(file, ns=(1, 1))
    after = audit(model, spec, store=store, **ASKED)
    assert not after.table.equals(before.table)
    assert len(list((store / "unfinished" / "index").iterdir())) == 5
    indexes[0].write_text(indexes[0].read_text().replace("1", "2"))  # damaged: counted again
    assert audit(model, spec, store=store, **ASKED).table.equals(after.table)


class Evil:
    def __reduce__(self) -> Any:
        return os.system, ("touch owned",)


def test_damaged_and_foreign_results_are_parts_that_are_not_finished(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    journal = Journal(tmp_path / "job")
    journal.write(0, Moments(np.ones(2), np.ones((1, 2)), np.ones((1, 2))))
    assert journal.read(0).mean.tolist() == [[1.0, 1.0]]
    file = tmp_path / "job" / "0.part"
    file.write_bytes(file.read_bytes()[:-3])
    data = pickle.dumps(Evil())
    (tmp_path / "job" / "1.part").write_bytes(hashlib.sha256(data).digest() + data)
    for number in (0, 1, 2):
        assert isinstance(journal.read(number), FailedPart)
    assert not (tmp_path / "owned").exists()
