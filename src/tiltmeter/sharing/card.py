"""`tiltmeter card`: a section for a model card of Hugging Face, and its `model-index`.

Into an existing card only two things are written: the section between the two markers, and
tiltmeter's own results in the YAML metadata. Every other byte stays as it is. huggingface_hub's
`metadata_update` would dump the whole YAML block again, and lose its comments, quotes and order.
"""

from __future__ import annotations

import re
import shlex
from collections.abc import Mapping, Sequence
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import yaml

from tiltmeter.errors import InputError, UnknownNameError
from tiltmeter.pages import columns as col
from tiltmeter.pages import markdown, measured, text
from tiltmeter.pages.html import page_of
from tiltmeter.pages.markdown import escape
from tiltmeter.pages.model import Column, Finding, Row, table
from tiltmeter.results import Run

BEGIN, END = "<!-- tiltmeter:begin -->", "<!-- tiltmeter:end -->"
HOME = "https://github.com/tiltmeter/tiltmeter"
SOURCE = {"name": "Tiltmeter", "url": HOME}  # marks the results that are ours to replace
INDEX = "model-index"
MEANINGS = {
    "max_skew": "MaxSkew@k is ln(share in the top k / expected share) of the group with the "
    "largest excess; 0 is ideal, 0.69 is twice the expected share.",
    "min_skew": "MinSkew@k is the same for the group with the largest shortfall; 0 is ideal.",
    "ndkl": "NDKL is the divergence from the expected shares over the whole ranking; 0 is ideal.",
    "normalized_entropy": "Normalised entropy@k is 1 where groups have equal shares of the top k.",
}
#: The metadata at the top: the opening line, the YAML, and the closing line.
_FRONT = re.compile(r"\A(\ufeff?\s*---[ \t]*(?:\r\n|\r|\n))((?:[\S\s]*?(?:\r\n|\r|\n))?)"
                    r"(---[ \t]*(?:\r\n|\n|\Z))")  # fmt: skip


def of_model(run: Run, model: str | None = None) -> Run:
    """The part of a run that is about one model: a card has one."""
    names = list(dict.fromkeys(run.table["model"].drop_null().to_pylist()))
    if model is not None and model not in names:
        raise UnknownNameError("model of the run", model, names)
    if len(names) < 2:
        return run
    if model is None:
        raise InputError(f"the run is of several models: {', '.join(names)}. Choose: --model NAME")
    audits = [one for one in run.meta.get("panel", [run.meta])
              if one.get("model", {}).get("name") == model]  # fmt: skip
    meta = {**(audits[0] if audits else run.meta)}
    if len(audits) > 1:
        meta["panel"] = audits
    return Run(run.table.filter(pc.equal(run.table["model"], model)), meta)


def card(run: Run, existing: str = "") -> str:
    """A whole card: `existing` with the section and the metadata of this run."""
    return put_into(existing, section(run), model_index(run))


def put_into(existing: str, new: str, index: dict[str, Any] | None) -> str:
    """A card with a section and an entry of the `model-index`; all else as it was."""
    line = "\r\n" if "\r\n" in existing else "\n"
    front = _FRONT.match(existing)
    body = _with_section(existing[front.end() :] if front else existing, new, line)
    head = _with_index(front.group(2) if front else "", index, line)
    if front:
        return front.group(1) + head + front.group(3) + body
    return f"---{line}{head}---{line}{line}{body}" if head else body


def headline(run: Run) -> list[Row]:
    """Size of lift, then results over all words or items, by attribute."""
    table = run.table
    keep = pc.and_(pc.is_valid(table["value"]), pc.is_valid(table["metric"]))
    keep = pc.and_(keep, pc.invert(pc.is_in(table["probe"], pa.array(["panel"]))))
    for name in ("concept", "category", "template", "group", "experiment", "factor", "target"):
        keep = pc.and_(keep, pc.is_null(table[name]))
    found: list[Row] = table.filter(pc.fill_null(keep, False)).to_pylist()
    return [*run.where(metric="lift_size"), *found]


def model_index(run: Run) -> dict[str, Any] | None:
    """One entry of a `model-index`, in the shape that the Hub reads; None where nothing fits."""
    results: dict[tuple[Any, Any], Row] = {}
    for row in headline(run):
        place = (row["dataset"], row["attribute"])
        if place not in results:
            name = str(row["dataset"] or "its own data")
            dataset = {"type": text.short(name, 200), "name": text.short(name, 200)}
            if row["attribute"]:
                dataset["config"] = text.short(row["attribute"], 200)
            if row["split"]:
                dataset["split"] = text.short(row["split"], 200)
            results[place] = {
                "task": {"type": "other", "name": "Social bias audit"},
                "dataset": dataset,
                "metrics": [],
                "source": dict(SOURCE),
            }
        results[place]["metrics"].append(_metric(row))
    if not results:
        return None
    return {"name": text.short(_model(run), 200), "results": list(results.values())}


def section(run: Run) -> str:
    """The section, with its markers; lines end with \\n."""
    page = page_of(run)
    meta = run.meta.get("panel", [run.meta])[0]
    version = (meta.get("versions") or {}).get("tiltmeter", "")
    when = measured.date(Run(run.table, meta))
    found = page.summary
    parts = [
        BEGIN,
        "## Social bias audit",
        f"Measured with [Tiltmeter]({HOME}) {escape(version)}".rstrip()
        + (f" on {escape(when)}" if when else "")
        + ". This is about one model on one set of images and words, not about people: labels of "
        "race, gender or age are **perceived labels**, assigned to images by others.",
        escape(text.plain(found.sentence)),
        *_findings("### Words and groups", found.lift),
        "### What was measured",
        "\n".join(f"- **{escape(name)}**: {escape(fact)}" for name, fact in measured.facts(run)),
        *_results(run),
        *_findings("### Other significant results", found.tested),
        "### What cannot be concluded",
        markdown.listed([*found.limits, *_not_run(run)]),
        "### How to reproduce",
        *_again(meta),
        END,
    ]  # fmt: skip
    return "\n\n".join(part for part in parts if part) + "\n"


def command(meta: Mapping[str, Any]) -> str | None:
    """The command line that reproduces the run; None where it was made from Python objects."""
    spec = (meta.get("model") or {}).get("spec")
    given = (meta.get("arguments") or {}).get("given")
    if not spec or given is None:
        return None
    words: list[str] = ["tiltmeter", "audit", str(spec)]
    for name, option in (("faces", "--images"), ("words", "--words"), ("placebo", "--placebo"),
                         ("classes", "--classes"), ("convention", "--convention"),
                         ("permutations", "--permutations"), ("bootstraps", "--bootstraps"),
                         ("seed", "--seed"), ("precision", "--precision"),
                         ("engine", "--engine")):  # fmt: skip
        if given.get(name) is not None:
            words += [option, str(given[name])]
    for name, option in (("probes", "--probe"), ("templates", "--template"), ("k", "--k"),
                         ("attributes", "--attribute"), ("cross", "--cross")):  # fmt: skip
        for one in given.get(name) or ():
            words += [option, str(one)]
    for role, one in sorted((given.get("data") or {}).items()):
        words += ["--data", f"{role}={one}"]
    for probe, options in sorted((given.get("options") or {}).items()):
        for option, value in sorted(options.items()):
            words += ["--option", f"{probe}.{option}={value}"]
    words += ["--thorough"] * bool(given.get("thorough"))
    words += ["--strict"] * bool(given.get("strict"))
    words += ["--no-vectors"] * (given.get("keep_vectors") is False)
    if given.get("engine") and "store" in (meta.get("environment") or {}):
        words += ["--store", "store"]
    return " ".join(map(_quoted, words))


def _quoted(word: str) -> str:
    """A word for a shell, without hidden characters and without our markers."""
    if any(text.clean(sign) != sign and sign != " " for sign in word):
        shown = (sign if sign.isascii() and sign.isprintable() and sign not in "\\'"
                 else f"\\U{ord(sign):08x}" for sign in word)  # fmt: skip
        return "$'" + "".join(shown).replace("<!--", "\\x3c!--") + "'"
    return shlex.quote(word).replace("<!--", "<!''--")


def _model(run: Run) -> str:
    meta = run.meta.get("panel", [run.meta])[0]
    return str((meta.get("model") or {}).get("name") or "model")


def _metric(row: Row) -> Row:
    args = {name: row[name] for name in ("k", "n", "convention") if row[name] is not None}
    args |= {"verdict": row["verdict"]} if row["verdict"] else {}
    for name in ("ci_low", "ci_high", "null_low", "null_high", "ideal", "p"):
        if row[name] is not None:
            args[name] = float(f"{row[name]:.6g}")
    name = text.metric_name(row["metric"], row["k"])
    if row["metric"] == "lift_size":  # the value is on the scale of its interval and its ideal 0
        name += " (nats)"
        args["ratio"] = text.ratio(row["value"])
    by = f", {row['attribute']}" if row["attribute"] else ""
    by += f", {row['experiment']}" if row["experiment"] else ""
    return {
        "type": str(row["metric"]),
        "name": text.short(f"{name}{by}", 200),
        "value": float(f"{row['value']:.6g}"),
        "args": args,
    }


def _results(run: Run) -> list[str]:
    rows = [row for row in headline(run) if row["metric"] != "lift_size"]  # has sentences
    if not rows:
        return []
    about = [MEANINGS[name] for name in MEANINGS if any(row["metric"] == name for row in rows)]
    about.append(
        "“By chance” is the range of 95% of the values if labels mean nothing (permuted labels). A "
        "model without bias can be far outside it. A dash is undefined or not measured."
    )
    if choices := measured.choices(run):
        listed = "; ".join(f"{name} {meaning}" for name, meaning in choices)
        about.append(f"The convention: {listed}.")
    made = table("", rows, ("dataset", "data"), ("attribute", "by"), col.METRIC, col.VALUE,
                 col.INTERVAL, Column("95% by chance", ("null_low", "null_high"), "span"), col.P,
                 col.N)  # fmt: skip
    return ["### Main results", markdown.table(made, caption=False), escape(" ".join(about))]


def _findings(title: str, found: Sequence[Finding]) -> list[str]:
    return [title, markdown.findings(found)] if found else []


def _not_run(run: Run) -> list[str]:
    left = measured.not_run(run)
    return [f"Not measured: {', '.join(name for name, _ in left)}."] if left else []


def _again(meta: Mapping[str, Any]) -> list[str]:
    line = command(meta)
    how = "The run was made from Python; its arguments are in `run.json`."
    if line is not None:
        fence = "`" * max(3, 1 + max(map(len, re.findall("`+", line)), default=0))
        how = f"{fence}sh\n{line}\n{fence}"
    used = sorted((meta.get("versions") or {}).items())
    versions = ", ".join(f"{name} {version}" for name, version in used)
    facts = [f"Seed {meta.get('seed', 0)}. Versions: {versions}."]
    if weights := (meta.get("model") or {}).get("weights"):
        facts.append(f"SHA-256 of the weights: {weights}.")
    if convention := (meta.get("convention") or {}).get("name"):
        facts.append(f"Convention: {convention}.")
    return [how, escape(" ".join(facts))]


def _with_section(existing: str, new: str, line: str) -> str:
    new = new.replace("\n", line)
    begins, ends = existing.count(BEGIN), existing.count(END)
    if not begins and not ends:
        gap = "" if not existing else line if existing.endswith("\n") else 2 * line
        return f"{existing}{gap}{new}"
    start, end = existing.find(BEGIN), existing.find(END)
    if (begins, ends) != (1, 1) or end < start:
        raise InputError(
            f"the card has {begins} of {BEGIN} and {ends} of {END}: one of each was expected, in "
            "this order; correct or remove them"
        )
    return existing[:start] + new.rstrip("\r\n") + existing[end + len(END) :]


def _with_index(head: str, mine: dict[str, Any] | None, line: str) -> str:
    """The YAML with our results in it; other results, keys and comments stay."""
    try:
        known, root = yaml.safe_load(head), yaml.compose(head, Loader=yaml.SafeLoader)
    except yaml.YAMLError as error:
        raise InputError(f"the YAML at the top of the card cannot be read: {error}") from None
    known = {} if known is None else known
    if not isinstance(known, dict):
        raise InputError("the YAML at the top of the card is not a mapping of names to values")
    wanted = _merged(known.get(INDEX), mine)
    if wanted is None or wanted == known.get(INDEX):
        return head
    # inner mappings on one line: a card is read by people too
    block = yaml.safe_dump(
        {INDEX: wanted}, sort_keys=False, allow_unicode=True, width=1000, default_flow_style=None
    )
    start, end = _place(head, root)
    merged = head[:start] + block.replace("\n", line) + head[end:]
    try:
        same = yaml.safe_load(merged) == {**known, INDEX: wanted}
    except yaml.YAMLError:
        same = False
    if not same:
        raise InputError(
            f"the YAML at the top of the card is written in a way that {INDEX} cannot be put into "
            "without changing the rest: write it in block style"
        )
    return merged


def _place(head: str, root: Any) -> tuple[int, int]:
    """Where `model-index` is in the YAML, or where it can be put: at the end."""
    for key, value in root.value if isinstance(root, yaml.MappingNode) else ():
        if key.value == INDEX:
            start, end = key.start_mark.index, value.end_mark.index
            lines = head[start:end].splitlines(keepends=True)
            while len(lines) > 1 and (not lines[-1].strip() or lines[-1].lstrip().startswith("#")):
                end -= len(lines.pop())  # comments on what follows
            return start, end
    return len(head), len(head)


def _merged(known: Any, mine: dict[str, Any] | None) -> list[Any] | None:
    """The model index with our results in place of those that we wrote before."""
    if known is None:
        return None if mine is None else [mine]
    if not isinstance(known, list) or not all(isinstance(one, dict) for one in known):
        raise InputError(f"{INDEX} of the card is not a list of entries: correct it first")
    kept = []
    for entry in known:
        results = [one for one in entry.get("results") or ()
                   if not (isinstance(one, dict) and one.get("source") == SOURCE)]  # fmt: skip
        kept.append({**entry, "results": results})
    if mine is not None:
        if kept:
            kept[0] = {**kept[0], "results": [*kept[0]["results"], *mine["results"]]}
        else:
            kept = [mine]
    return kept
