"""A replayed forward pass gives what the call gives; what cannot be captured is called."""

from __future__ import annotations

import pytest

torch = pytest.importorskip("torch")

from tiltmeter.engine.embedding.cuda_graph import WARM_UP, GraphedCall  # noqa: E402

needs_gpu = pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")


@needs_gpu
@torch.inference_mode()
def test_replays_equal_calls_and_other_shapes_are_called():
    network = torch.nn.Sequential(torch.nn.Linear(8, 32), torch.nn.GELU(), torch.nn.Linear(32, 4))
    network.cuda()
    graphed = GraphedCall(network, 16)
    for call in range(WARM_UP + 4):
        x = torch.randn(16, 8, device="cuda")
        assert torch.equal(graphed(x), network(x))
        assert (graphed.graph is not None) == (call >= WARM_UP)
    few = torch.randn(5, 8, device="cuda")
    assert torch.equal(graphed(few), network(few))
    first, second = torch.randn(2, 16, 8, device="cuda")
    kept = graphed(first)
    graphed(second)
    assert torch.equal(kept, network(first))  # not overwritten by the next replay


@needs_gpu
@torch.inference_mode()
@pytest.mark.parametrize("state", ["waits for the GPU", "counts its calls"])
def test_what_cannot_be_captured_is_called(state):
    calls = []

    def work(x):
        calls.append(1)
        if state == "waits for the GPU":
            return x * float(x.sum().item() > 0)
        return x * len(calls)

    graphed = GraphedCall(work, 4)
    x = torch.ones(4, 2, device="cuda")
    for _ in range(WARM_UP + 3):
        expected = x if state == "waits for the GPU" else x * (len(calls) + 1)
        assert torch.equal(graphed(x), expected) or graphed.fails
    assert graphed.fails
    assert graphed.graph is None
    assert torch.equal(x + 1, torch.full_like(x, 2))  # the GPU still works
