"""What benchmarks print, where it can be checked without running them."""

from __future__ import annotations

import threading
import time

import numpy as np
import pytest

from benchmarks.audit_at_scale import now, rest


def test_steps_that_overlap_leave_no_negative_time() -> None:
    """Two threads that wait side by side: their clocks together pass the whole."""
    steps: dict[str, np.ndarray] = {}

    def step(name: str) -> None:
        started = now(of_one_thread=True)
        time.sleep(0.2)
        steps[name] = now(of_one_thread=True) - started

    started = now()
    threads = [threading.Thread(target=step, args=(name,)) for name in "abcd"]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    took = now() - started
    assert sum(each[0] for each in steps.values()) > took[0]
    clock, processor = rest(took, steps, overlap=True)
    assert np.isnan(clock)
    assert processor >= 0


def test_steps_one_after_the_other_leave_the_difference() -> None:
    steps = {"a": np.array([3.0, 5.0]), "b": np.array([4.0, 7.0])}
    assert rest(np.array([10.0, 15.0]), steps, overlap=False) == pytest.approx([3.0, 3.0])
