"""Results of an audit: one table of declared columns, its provenance, and files on disk.

`run` has `Run` (in memory and on disk), `schema` the columns of its tables, `record` the provenance
in `run.json`, `atomic` writing whole or not at all, and `files` parsing and hashes.
"""

from tiltmeter.results.atomic import atomic_directory, recover, write_atomically
from tiltmeter.results.files import (
    content_hash,
    file_hash,
    label_hash,
    parse_json,
    parse_parquet,
)
from tiltmeter.results.record import machine, prompt_record, run_record, versions
from tiltmeter.results.run import FORMAT, ProbeFailedError, Run, other_format
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
    "other_format",
    "over_templates",
    "parse_json",
    "parse_parquet",
    "prompt_record",
    "recover",
    "rows",
    "run_record",
    "versions",
    "write_atomically",
]
