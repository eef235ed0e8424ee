"""Results of an audit: one table of declared columns, its provenance, and files on disk.

`run` has `Run` (in memory and on disk), `schema` the columns of its tables, `record` the provenance
in `run.json`, and `files` atomic writing and hashes.
"""

from tiltmeter.results.files import atomic_directory, content_hash, file_hash, label_hash
from tiltmeter.results.record import machine, prompt_record, run_record, versions
from tiltmeter.results.run import FORMAT, ProbeFailedError, Run
from tiltmeter.results.schema import (
    COMPARISON,
    INSTANCES,
    KEY,
    PLACEBO,
    RESULTS,
    combined,
    over_templates,
    rows,
)

__all__ = [
    "COMPARISON",
    "FORMAT",
    "INSTANCES",
    "KEY",
    "PLACEBO",
    "RESULTS",
    "ProbeFailedError",
    "Run",
    "atomic_directory",
    "combined",
    "content_hash",
    "file_hash",
    "label_hash",
    "machine",
    "over_templates",
    "prompt_record",
    "rows",
    "run_record",
    "versions",
]
