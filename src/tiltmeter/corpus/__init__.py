"""Bias in caption corpora: which words occur with which groups.

>>> from tiltmeter.corpus import Vocabulary, count
>>> import pyarrow as pa
>>> counts = count(pa.array(["A nurse and her cat.", "The nurse's hat"]), Vocabulary.of(["nurse"]))
>>> counts.captions[0], counts.containing[0, 1]  # captions with a nurse; with a nurse and "she"
(np.int64(2), np.int64(1))
"""

from __future__ import annotations

from tiltmeter.corpus.auditing import audit_captions, count_files
from tiltmeter.corpus.counting import CaptionCounts, count
from tiltmeter.corpus.vocabulary import Vocabulary

__all__ = ["CaptionCounts", "Vocabulary", "audit_captions", "count", "count_files"]
