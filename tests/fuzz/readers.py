"""Every reader of files, with a sound file for it: what the fuzz suite damages.

A reader returns something that can be compared. The rule for damaged input: the right result, or
one of our own errors; never another exception. Where the file has a checksum, the result must be
the same or refused (`sealed`).
"""

from __future__ import annotations

import io
import json
import tarfile
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from PIL import Image

from tests.io.region_layouts import write_lxmert
from tiltmeter.corpus.reading import BrokenFileError, blocks
from tiltmeter.datasets import load_data
from tiltmeter.io.region_files import read_regions
from tiltmeter.io.tables import read_vectors
from tiltmeter.judge.bundle.pack import bundle
from tiltmeter.judge.bundle.verify import verify
from tiltmeter.results import INSTANCES, Run, rows
from tiltmeter.stimuli import load as load_words
from tiltmeter.store import StoredEmbeddings

TABLE = {"id": ["a", "b", "c", "d"], "gender": ["F", "M", "F", "M"], "age": ["1", "2", "3", "4"]}


@dataclass(frozen=True)
class Reader:
    """A sound file, and what reads it."""

    make: Callable[[Path], Path]  # writes it into a folder, returns the file to be damaged
    read: Callable[[Path], Any]
    sealed: bool = False  # damage that changes the result must be refused


def _write(name: str, content: bytes) -> Callable[[Path], Path]:
    def make(folder: Path) -> Path:
        (folder / name).write_bytes(content)
        return folder / name

    return make


def _parquet() -> bytes:
    file = io.BytesIO()
    pq.write_table(pa.table(TABLE), file)
    return file.getvalue()


def _png() -> bytes:
    file = io.BytesIO()
    Image.new("RGB", (8, 8), (200, 10, 10)).save(file, "PNG")
    return file.getvalue()


def _npy() -> bytes:
    file = io.BytesIO()
    np.save(file, np.arange(12, dtype=np.float32).reshape(4, 3))
    return file.getvalue()


def _tar() -> bytes:
    file = io.BytesIO()
    with tarfile.open(fileobj=file, mode="w") as tar:
        for at in range(4):
            fields = json.dumps({"gender": "FM"[at % 2]}).encode()
            for name, data in ((f"{at}.png", _png()), (f"{at}.json", fields)):
                info = tarfile.TarInfo(name)
                info.size = len(data)
                tar.addfile(info, io.BytesIO(data))
    return file.getvalue()


def _images_parquet() -> bytes:
    file = io.BytesIO()
    pq.write_table(pa.table({**TABLE, "image": [_png()] * 4}), file)
    return file.getvalue()


def _run() -> Run:
    table = rows(9, metric="ndkl", probe="ranking", value=[at / 7 for at in range(9)])
    return Run(table, {"seed": 3, "environment": {}}, {"ranking": INSTANCES.empty_table()})


def _saved(name: str) -> Callable[[Path], Path]:
    return lambda folder: _run().save(folder / "run") / name


def _load_run(path: Path) -> Any:
    run = Run.load(path.parents[path.parent.name == "instances"])
    return run.table.to_pylist(), run.meta


def _bundled(folder: Path) -> Path:
    _run().save(folder / "run")
    return bundle(folder / "run", folder / "run.tiltmeter.zip").path


def _verified(path: Path) -> Any:
    result = verify(path)
    return result.problems or result.manifest


def _shard(suffix: str) -> Callable[[Path], Path]:
    def make(folder: Path) -> Path:
        (folder / "space").mkdir()
        space = StoredEmbeddings(folder / "space")
        shard = space.add(["x", "y"], np.arange(6, dtype=np.float32).reshape(2, 3))
        return folder / "space" / f"{shard}{suffix}"

    return make


def _load_shard(path: Path) -> Any:
    space = StoredEmbeddings(path.parent)
    return {item: space.vectors([item]).tolist() for item in space}


def _safetensors() -> bytes:
    from safetensors.numpy import save

    return bytes(save({"weight": np.ones((2, 3), np.float32)}))


def _torch() -> bytes:
    import torch

    file = io.BytesIO()
    torch.save({"state_dict": {"weight": torch.ones(2, 3)}}, file)
    return file.getvalue()


def _weights(path: Path) -> Any:
    from tiltmeter.models.weights import read

    return {name: tuple(value.shape) for name, value in read(path).items()}


def _faces(scheme: str) -> Callable[[Path], Any]:
    def read(path: Path) -> Any:
        faces = load_data(f"{scheme}:{path}")
        return faces.ids, {name: groups.names for name, groups in faces.groups.items()}

    return read


def _captions(path: Path) -> Any:
    try:
        return [text for block in blocks(path) for text in block.captions.to_pylist()]
    except BrokenFileError as error:
        return str(error)  # named, and left out


def _words(path: Path) -> Any:
    return [word.text for word in load_words(str(path)).words]


ANSWER = {
    "choices": [
        {
            "message": {"content": "a nurse"},
            "finish_reason": "stop",
            "logprobs": {"content": [{"top_logprobs": [{"token": "a", "logprob": -0.5}]}]},
        }
    ],
    "prompt_logprobs": [None, {"7": {"logprob": -1.5, "decoded_token": " nurse"}}],
    "usage": {"completion_tokens": 2},
}


def _answer(path: Path) -> Any:
    """The file as a server's answer, through the HTTP library."""
    import httpx2

    from tiltmeter.models.openai import continuation, top_tokens, written
    from tiltmeter.models.openai.client import Address, Client
    from tiltmeter.models.openai.journal import Journal

    client = Client(Address("http://127.0.0.1:1/v1"), Journal(path.with_suffix(".jsonl")), tries=1)
    transport = httpx2.MockTransport(lambda _: httpx2.Response(200, content=path.read_bytes()))
    client._http = httpx2.Client(transport=transport)
    answer = client.send({})
    return written(answer), top_tokens(answer), continuation(answer, "nurse")


def _journal(folder: Path) -> Path:
    from tiltmeter.models.openai.journal import Journal

    Journal(folder / "answers.jsonl").record({"n": 1}, ANSWER)
    return folder / "answers.jsonl"


def _recorded(path: Path) -> Any:
    from tiltmeter.models.openai.journal import Journal

    return Journal(path).answer({"n": 1})


def _regions(folder: Path) -> Path:
    features = np.arange(12, dtype=np.float32).reshape(2, 2, 3)
    boxes = np.tile(np.array([0.1, 0.1, 0.5, 0.5]), (2, 2, 1))
    return write_lxmert(folder / "r.tsv", ["a", "b"], features, boxes)


def _read_regions(path: Path) -> Any:
    return read_regions(path).features.shape


def _debiased(name: str) -> Callable[[Path], Path]:
    def make(folder: Path) -> Path:
        import tiltmeter as tm

        images = "testbed:?images=140&seed=1"
        tm.debias("leace", "testbed:dual", images, attribute="shape", out=folder / "fair")
        return folder / "fair" / name

    return make


def _load_debiased(path: Path) -> Any:
    from tiltmeter.models import load_model

    return load_model(str(path.parent)).encode_texts(["a nurse"]).tolist()


CSV = b"id,gender,age\na,F,1\nb,M,2\nc,F,3\nd,M,4\n"
JSONL = b"".join(
    json.dumps({"id": i, "gender": g, "caption": "a nurse"}).encode() + b"\n"
    for i, g in zip("abcd", "FMFM", strict=True)
)
READERS = {
    "run.json": Reader(_saved("run.json"), _load_run, sealed=True),
    "results.parquet": Reader(_saved("results.parquet"), _load_run, sealed=True),
    "instances": Reader(_saved("instances/ranking.parquet"), _load_run, sealed=True),
    "bundle": Reader(_bundled, _verified),
    "shard.npy": Reader(_shard(".npy"), _load_shard, sealed=True),
    "shard.parquet": Reader(_shard(".parquet"), _load_shard, sealed=True),
    "table.csv": Reader(_write("t.csv", CSV), _faces("table")),
    "table.tsv": Reader(_write("t.tsv", CSV.replace(b",", b"\t")), _faces("table")),
    "table.jsonl": Reader(_write("t.jsonl", JSONL), _faces("table")),
    "table.parquet": Reader(_write("t.parquet", _parquet()), _faces("table")),
    "vectors.npy": Reader(_write("v.npy", _npy()), lambda path: read_vectors([path]).shape),
    "webdataset": Reader(_write("000.tar", _tar()), _faces("webdataset")),
    "images.parquet": Reader(_write("i.parquet", _images_parquet()), _faces("parquet")),
    "captions.jsonl": Reader(_write("c.jsonl", JSONL), _captions),
    "captions.csv": Reader(_write("c.csv", b"id,caption\n1,a nurse\n2,a man\n"), _captions),
    "captions.parquet": Reader(
        lambda folder: _table_file(folder / "c.parquet", {"caption": ["a nurse", "a man"]}),
        _captions,
    ),
    "captions.json": Reader(
        _write("c.json", json.dumps({"annotations": [{"caption": "a nurse"}]}).encode()), _captions
    ),
    "words.yaml": Reader(_write("w.yaml", b"Occupation: [nurse, pilot]\n"), _words),
    "words.csv": Reader(_write("w.csv", b"word,category\nnurse,a\npilot,b\n"), _words),
    "safetensors": Reader(lambda folder: _write("w.safetensors", _safetensors())(folder), _weights),
    "debiased.json": Reader(_debiased("debiased.json"), _load_debiased, sealed=True),
    "debiaser": Reader(_debiased("debiaser.safetensors"), _load_debiased, sealed=True),
    "server answer": Reader(_write("a.json", json.dumps(ANSWER).encode()), _answer),
    "server journal": Reader(_journal, _recorded, sealed=True),
    "regions": Reader(_regions, _read_regions),
    "torch": Reader(lambda folder: _write("w.pt", _torch())(folder), _weights),
}


def _table_file(path: Path, columns: dict[str, list[str]]) -> Path:
    pq.write_table(pa.table(columns), path)
    return path


#: Whole files that no reader must trip over, whatever it expects.
HOSTILE = {
    "empty": b"",
    "zeros": bytes(64),
    "deep JSON": b"[" * 100_000,
    "deep objects": b'{"a":' * 50_000 + b"1" + b"}" * 50_000,
    "deep YAML": b"a: " + b"[" * 20_000,
    "surrogate": b'{"id": "\\ud800", "gender": "F", "caption": "\\ud800"}\n',
    "huge number": b'{"id": "a", "gender": 1' + b"0" * 400 + b', "caption": "x"}\n',
    "long cell": b"word,id,gender,caption\n" + b"x" * 200_000 + b",a,F,x\n",
    "long quoted cell": b'word,id,gender\n"' + b"x" * 200_000 + b'",a,F\n',
    "not UTF-8": b"word,id,gender,caption\n\xff\xfe,\xff,\xff,\xff\n",
    "NUL": b"id,gender,caption\n\0,\0,\0\n",
    "npy header": b"\x93NUMPY\x01\x00\x10\x00{'descr': '<f4', (",
    "parquet magic": b"PAR1" + bytes(20) + b"PAR1",
    "list": b"[1, 2, 3]",
    "number": b"7",
    "YAML date": b"2026-13-45: [x]",
    "YAML bomb": b"a: &a [x,x]\nb: &b [*a,*a]\nc: [*b,*b]\n",
}
#: Specs of models and datasets that somebody may type.
SPECS = ("", ":", "?", "hf:", "table:", "table:?", "folder:\0", "embeddings:" + "a" * 5000, "hf:[]",
         "open_clip:", "slip:", "fit:", "albef:", "python:", "python::", "python:/x.py:", "nope:x",
         "table:x.csv?path", "table:x.csv?=&=", "testbed:dual?twin=", "fairface:/",
         "webdataset:/nowhere-{000..9}.tar", "parquet:*", "debias:", "vlss:", "\ud800:x", "a:b:c:d",
         "table:../../etc/passwd", "captions:" + "?" * 500)  # fmt: skip
