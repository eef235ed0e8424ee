"""Run a model as a CUDA graph.

Launching the kernels of a forward pass one by one takes Python about as long as a fast GPU needs to
run them, and the threads that decode the next batches wait for Python meanwhile. A graph is
launched in one call.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

WARM_UP = 2  # calls before a capture: libraries allocate memory and choose kernels in the first
CLOSE = 1e-2  # largest difference of a replay from the call: the model may work in half precision


class GraphedCall:
    """A function of one tensor, replayed as a CUDA graph for inputs of one shape.

    Every other shape, and a function that cannot be captured (it waits for the GPU, or a replay
    gives something else), is called as it is.

    Parameters
    ----------
    work : callable
        Takes and returns a tensor; the same input gives the same output.
    batch : int
        Rows of the inputs that are replayed.
    """

    def __init__(self, work: Callable[[Any], Any], batch: int) -> None:
        self.work, self.batch = work, batch
        self.kind: Any = None  # shape and type of the inputs that are replayed
        self.calls = 0  # with such inputs
        self.fails = False
        self.graph: Any = None
        self.input: Any = None
        self.output: Any = None

    def __call__(self, x: Any) -> Any:
        kind = (x.shape, x.dtype)
        if self.kind is None and len(x) == self.batch:
            self.kind = kind
        if kind != self.kind or self.fails:
            return self.work(x)
        self.calls += 1
        if self.calls <= WARM_UP:
            return self.work(x)
        if self.graph is None:
            return self._capture(x)
        self.input.copy_(x)
        self.graph.replay()
        return self.output.clone()

    def _capture(self, x: Any) -> Any:
        """Capture the call, and return its output."""
        import torch

        expected, graph, self.input = self.work(x), torch.cuda.CUDAGraph(), x.clone()
        try:
            # other threads decode meanwhile, which only a capture of this thread allows
            with torch.cuda.graph(graph, capture_error_mode="thread_local"):
                self.output = self.work(self.input)
            graph.replay()
            if not torch.allclose(self.output, expected, atol=CLOSE):
                raise RuntimeError("a replay gives another result than the call")
        except RuntimeError:
            self.fails, self.input, self.output = True, None, None
        else:
            self.graph = graph
        return expected
