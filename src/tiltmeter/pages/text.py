"""How labels and numbers are written, on every page and screen: the only place that formats them.

Labels are text and nothing else; numbers are short.
"""

from __future__ import annotations

import math
import unicodedata
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

from markupsafe import Markup

from tiltmeter.stats.lift_verdict import ASSOCIATED, CANNOT_TELL, NO_LARGER, RULE

IN_PLOT, IN_TABLE = 34, 160  # characters of a label that are shown
FEW, TOO_FEW = 30, RULE.group_images  # images of a group: marked; without a verdict
NONE = "–"
#: Marks that turn the direction of what follows them; text that runs right to left needs none.
TURNING = set("\u202a\u202b\u202c\u202d\u202e\u2066\u2067\u2068\u2069")
#: Verdicts on words in the words of a reader; only lift gives them.
VERDICTS = {
    ASSOCIATED: "associated",
    CANNOT_TELL: "cannot tell",
    NO_LARGER: "no larger than 1.25x",
}
METRICS = {
    "c_asc": "C-ASC",
    "skew": "Skew",
    "max_skew": "MaxSkew",
    "min_skew": "MinSkew",
    "ndkl": "NDKL",
    "normalized_entropy": "Normalised entropy",
    "group_rates": "rate",
    "gaps": "gap",
    "mean_abs_lift": "Mean lift (nats)",
}


def clean(text: Any) -> str:
    """One line without control characters, which no page can hold.

    >>> clean("a" + chr(0) + chr(10) + "<b>")
    'a� <b>'
    """
    return printable(" ".join(str(text).split()))


def printable(text: str) -> str:
    """The same lines; what would move a cursor or turn what follows is replaced.

    >>> printable("a" + chr(27) + "[31m" + chr(10) + "b")
    'a�[31m\\nb'
    """
    return "".join(
        "\ufffd"
        if sign in TURNING or (unicodedata.category(sign) in ("Cc", "Cs") and sign not in "\n\t")
        else sign
        for sign in text
    )


def short(text: Any, most: int = IN_PLOT) -> str:
    """The label, or its beginning: as wide as `most` Latin letters.

    >>> short("a" * 50, 5), short("漢字漢字", 5), short("four", 5)
    ('aaaa…', '漢字…', 'four')
    """
    begins = str(text)[: 4 * most + 40]  # a label may have a million letters
    cleaned = clean(begins)
    wide = 0
    for at, sign in enumerate(cleaned):
        wide += 2 if unicodedata.east_asian_width(sign) in "WF" else 1
        if wide > most - 1 and (
            at + 1 < len(cleaned) or len(begins) < len(str(text)) or wide > most
        ):
            return cleaned[:at].rstrip() + "…"
    return cleaned


def capitalized(words: str) -> str:
    """With a capital letter; the others stay as they are.

    >>> capitalized("text to image"), capitalized("")
    ('Text to image', '')
    """
    return words[:1].upper() + words[1:]


def left_out(unseen: Mapping[str, Any]) -> str:
    """What was left out because a debiaser was fitted on it.

    >>> left_out({"left_out": 3, "duplicates": 1, "first_duplicates": ["b (the same as a)"]})
    '3 that the correction was fitted on are left out, 1 of them under another name: \
b (the same as a)'
    """
    said = f"{unseen['left_out']:,} that the correction was fitted on are left out"
    if unseen["duplicates"]:
        named = ", ".join(short(name, IN_TABLE) for name in unseen["first_duplicates"])
        said += f", {unseen['duplicates']:,} of them under another name: {named}"
    return said


def shown(text: Any, most: int = IN_TABLE) -> Markup:
    """A label inside a sentence of the page: escaped, and with a direction of its own."""
    return Markup("<bdi>{}</bdi>").format(short(text, most))


def plain(markup: str) -> str:
    """A sentence of the page as plain text.

    >>> plain(Markup("{} &amp; others").format(shown("<b>")))
    '<b> & others'
    """
    return Markup(markup).striptags() if isinstance(markup, Markup) else markup


def number(value: float | None, digits: int = 3, *, signed: bool = False) -> str:
    """0.123; with a true minus.

    >>> number(-0.5, 2), number(0.5, 2, signed=True), number(2e-4, signed=True), number(None)
    ('−0.50', '+0.50', '+2.0e−04', '–')
    """
    if value is None:
        return NONE
    if value and digits > 2 and abs(value) < 0.5 * 10**-digits:
        text = f"{value:+.1e}" if signed else f"{value:.1e}"
    else:
        text = f"{value:+.{digits}f}" if signed and value else f"{value:.{digits}f}"
        text = f"{0:.{digits}f}" if not float(text) else text  # no sign for what rounds to nothing
    return text.replace("-", "−")


def span(low: float | None, high: float | None, digits: int = 3) -> str:
    """0.12 to 0.34."""
    if low is None or high is None:
        return NONE
    return f"{number(low, digits)} to {number(high, digits)}"


def null_span(
    mean: float | None, low: float | None = None, high: float | None = None, digits: int = 3
) -> str:
    """The 95% range of a null distribution, or its mean where no range is known."""
    return number(mean, digits) if low is None else span(low, high, digits)


def p_value(p: float | None) -> str:
    """.012, or <.001."""
    if p is None:
        return NONE
    return "<.001" if p < 0.001 else f"{p:.3f}".lstrip("0") if p < 1 else "1.000"


def count(value: float | None) -> str:
    """1,234."""
    return NONE if value is None else f"{int(value):,}"


def percent(share: float | None, digits: int = 1) -> str:
    """12.3%; with a true minus, and no sign for what rounds to nothing.

    >>> percent(0.123), percent(-0.123), percent(-0.0001), percent(None)
    ('12.3%', '−12.3%', '0.0%', '–')
    """
    return NONE if share is None else f"{number(100 * share, digits)}%"


def percent_span(low: float | None, high: float | None, digits: int = 1) -> str:
    """1.2% to 3.4%."""
    if low is None or high is None:
        return NONE
    return f"{percent(low, digits)} to {percent(high, digits)}"


def ratio(nats: float | None) -> str:
    """A difference of logits as a ratio.

    >>> ratio(0.0), ratio(-1.02), ratio(2.7), ratio(-6.0), ratio(None)
    ('1.00x', '0.36x', '15x', '0.002x', '–')
    """
    if nats is None:
        return NONE
    times = math.exp(min(nats, 700.0))
    return f"{times:.0f}x" if times >= 9.995 else f"{times:.2f}x" if times >= 0.01 else (
        f"{times:.1g}x")  # fmt: skip


def ratio_span(low: float | None, high: float | None) -> str:
    """0.60x to 1.70x."""
    return NONE if low is None or high is None else f"{ratio(low)} to {ratio(high)}"


def size(count: int) -> str:
    """1.5 MB."""
    return f"{count / 1e6:,.1f} MB" if count >= 10**6 else f"{count / 1e3:.1f} kB"


def named_left_out(notes: Iterable[str | None]) -> str:
    """The parts of notes that name what is left out, such as small groups.

    >>> named_left_out(["left out, fewer than 20 images: 0-2; a tie", None])
    'left out, fewer than 20 images: 0-2'
    """
    parts = dict.fromkeys(part for note in notes for part in (note or "").split("; ")
                          if part.startswith("left out"))  # fmt: skip
    return "; ".join(short(part, 200) for part in parts)


def listed(names: Sequence[str]) -> str:
    """a, b and c.

    >>> listed(["a"]), listed(["a", "b", "c"])
    ('a', 'a, b and c')
    """
    return " and ".join([", ".join(names[:-1])] * (len(names) > 1) + [*names[-1:]])


def byte_size(count: float) -> str:
    """A number of bytes in the unit that suits it.

    >>> byte_size(0), byte_size(92e6), byte_size(2.05e12), byte_size(3e13)
    ('–', '92 MB', '2.05 TB', '30 TB')
    """
    if not count:
        return NONE
    power = min(max(int(math.log10(count)) // 3, 0), 5)
    return f"{count / 1000**power:.3g} {('B', 'kB', 'MB', 'GB', 'TB', 'PB')[power]}"


def plural(many: int, one: str, more: str | None = None) -> str:
    """1 word, 2 words."""
    return f"{many:,} {one if many == 1 else more or one + 's'}"


def group(name: Any, images: float | None) -> str:
    """A group's name, marked where it has few images.

    >>> group("0-2", 89), group("0-2", 12), group("0-2", None)
    ('0-2', '0-2 (only 12 images)', '0-2')
    """
    few = images is not None and images < FEW
    return f"{name} (only {count(images)} images)" if few else str(name)


def metric_name(metric: str, k: int | None = None) -> str:
    """The name of a metric as papers write it: MaxSkew@1000."""
    return METRICS.get(metric, metric.replace("_", " ")) + (f"@{k}" if k else "")


def slug(*names: Any) -> str:
    """A name for a file and for a place on the page: letters, digits and dashes.

    >>> slug("top-k", "race*gender", "<b>")
    'top-k-race-gender-b'
    """
    text = "-".join(str(name) for name in names if name is not None)
    kept = "".join(sign.lower() if sign.isascii() and sign.isalnum() else "-" for sign in text)
    return "-".join(part for part in kept.split("-") if part)[:60] or "part"


def estimate(
    row: dict[str, Any],
    name: str,
    digits: int = 3,
    *,
    signed: bool = False,
    null: bool = True,
    adjusted: bool = True,
    n: str = "n",
    of: str = "",
) -> str:
    """The numbers behind a finding: value, interval, null, p and n of a row of results."""
    parts = [
        f"{name} {number(row['value'], digits, signed=signed)}{of}, 95% interval "
        f"{span(row['ci_low'], row['ci_high'], digits)}"
    ]
    if null:
        parts.append(f"by chance {span(row['null_low'], row['null_high'], digits)}")
    if adjusted:
        parts.append(f"adjusted p {p_value(row['p_fwer'])}")
    return "; ".join([*parts, f"n = {count(row[n])}"])


#: How the values of a table's column are written, by the column's kind: values, then digits.
FORMATS: dict[str, Callable[..., str]] = {
    "text": lambda value, digits: NONE if value is None else short(value, IN_TABLE),
    "long": lambda value, digits: printable(str(value)),  # our own words, never cut
    "cell": lambda value, digits: NONE if value is None else short(value, IN_TABLE),
    "value": number,
    "signed": lambda value, digits: number(value, digits, signed=True),
    "span": span,
    "null": null_span,
    "p": lambda value, digits: p_value(value),
    "count": lambda value, digits: count(value),
    "percent": lambda value, digits: percent(value),
    "percents": lambda low, high, digits: percent_span(low, high),
    "null_percents": lambda mean, low, high, digits: (
        percent(mean) if low is None else percent_span(low, high)
    ),
    "metric": lambda metric, k, digits: short(metric_name(metric, k), IN_TABLE),
    "verdict": lambda value, digits: VERDICTS.get(value, value or NONE),
    "ratio": lambda value, digits: ratio(value),
    "ratios": lambda low, high, digits: ratio_span(low, high),
    # nats as ratios, other measures as they are
    "unit": lambda value, nats, digits: ratio(value) if nats else number(value, digits),
    "signed_unit": lambda value, nats, digits: (
        ratio(value) if nats else number(value, digits, signed=True)
    ),
    "unit_span": lambda low, high, nats, digits: (
        ratio_span(low, high) if nats else span(low, high, digits)
    ),
}
