"""The verdict: one sentence for each attribute, harms first, small groups marked, next steps."""

from __future__ import annotations

import math
from pathlib import Path

import pyarrow as pa
import pytest

from tests.pages.report.making import lifted
from tiltmeter.pages import text
from tiltmeter.pages.next_steps import next_steps
from tiltmeter.pages.report import page_of
from tiltmeter.pages.terminal.verdict import COLUMNS, LINES, parts
from tiltmeter.pages.verdict import answers, attribute_words, sentence
from tiltmeter.probes.lift.rows import TOO_FEW
from tiltmeter.results import RESULTS, Run, combined, rows
from tiltmeter.stats.lift_verdict import left_out

AGES = ["0-2", "3-9", "10-19"]
META = {"model": {"name": "m", "spec": "hf:some/clip"}, "arguments": {"given": {
    "faces": "table:my faces.csv?path=file"}}, "environment": {"place": "runs/one"}}  # fmt: skip


def harms(
    rates: list[float], sizes: list[int], p: float = 0.001, by_splits: float = 0.01
) -> pa.Table:
    same = {"probe": "harms", "model": "m", "dataset": "d", "attribute": "age", "n": sum(sizes),
            "category": "ape", "target": "ape"}  # fmt: skip
    pairs = [(a, b) for a in range(3) for b in range(a + 1, 3)]
    judged = [rate for rate, n in zip(rates, sizes, strict=True) if n >= 20] or rates
    gap = {"value": max(judged) - min(judged), "note": left_out(AGES, sizes)}
    return combined([
        rows(3, **same, metric="group_rates", group=AGES, value=rates, n_group=sizes),
        rows(1, **same, metric="gaps", **gap, p_fwer=p, null_high=0.04),
        rows(1, **same, metric="gaps", **gap, experiment="random visible splits", null_high=0.05,
             p_fwer=by_splits),
        rows(3, **same, metric="gaps", experiment=[f"{AGES[a]} against {AGES[b]}"
             for a, b in pairs], group=[AGES[a] for a, _ in pairs],
             value=[rates[a] - rates[b] for a, b in pairs], p_fwer=p, null_low=-0.1, null_high=0.1),
    ])  # fmt: skip


def test_a_group_of_few_images_is_marked_and_one_of_fewer_gets_no_verdict() -> None:
    [answer] = answers(Run(harms([0.8, 0.1, 0.3], [20, 500, 500])))
    assert "80.0% of 0-2 (only 20 images), 10.0% of 3-9" in text.plain(answer.found)
    [answer] = answers(Run(harms([0.8, 0.1, 0.3], [9, 500, 500])))
    few = "left out, fewer than 20 images: 0-2"
    assert text.plain(answer.found) == f"“ape” for 30.0% of 10-19, 10.0% of 3-9; {few}"
    shown = " ".join(map(str, parts(Run(harms([0.8, 0.1, 0.3], [9, 500, 500]), META))))
    assert "fewer than 20 images: 0-2" in " ".join(shown.split())
    [answer] = answers(Run(harms([0.8, 0.1, 0.1], [9, 500, 500], p=0.9)))
    assert answer.verdict == "no gap found"
    assert text.plain(answer.found).endswith(f"classified as “ape”; {few}")
    [answer] = answers(Run(harms([0.8, 0.0, 0.0], [9, 500, 500], p=0.9)))
    assert "None of" not in text.plain(answer.found)  # some of the group that is left out did
    assert "0-2" not in text.plain(sentence(Run(harms([0.8, 0.1, 0.3], [9, 500, 500]))))


def test_harms_of_few_images_are_not_judged() -> None:
    [answer] = answers(Run(harms([0.2, 0.1, 0.3], [9, 5, 500], p=0.4)))
    assert answer.verdict == "not judged"
    assert "fewer than 20 images" in answer.found


def test_the_largest_clear_harm_is_drawn_with_the_verdict() -> None:
    words = lifted("gender", ["Female", "Male"])
    for by_splits, name in ((0.01, "figure-harms-age-ape"), (0.2, "figure-lift-gender")):
        table = combined([harms([0.8, 0.1, 0.3], [500] * 3, by_splits=by_splits), words])
        leading = page_of(Run(table, META)).leading
        assert leading is not None
        assert leading.name == name


def test_a_gap_that_random_splits_give_as_well_is_weak() -> None:
    clear, weak = (Run(harms([0.2, 0.1, 0.3], [500] * 3, by_splits=p)) for p in (0.01, 0.2))
    assert [answer.verdict for run in (clear, weak) for answer in answers(run)] == ["clear", "weak"]
    assert "classified as" in text.plain(sentence(clear))
    assert "classified as" not in text.plain(sentence(weak))
    words = lifted("gender", ["Female", "Male"], verdict="none found", of=["no larger"] * 2)
    both = combined([harms([0.2, 0.1, 0.3], [500] * 3, by_splits=0.2), words])
    assert text.plain(sentence(Run(both))) == (
        "Harmful classes differ by age, but no more than other visible differences between these "
        "images would make them. Words: no bias above 1.25x found by gender."
    )


def test_harms_without_permutations_are_not_judged() -> None:
    """The exact tests of pairs of groups are no test of the largest gap."""
    untested = harms([0.2, 0.1, 0.3], [500] * 3, p=0.4).to_pylist()
    for row in untested:
        if row["experiment"] is None:
            row["p_fwer"] = None
    [answer] = answers(Run(pa.Table.from_pylist(untested, RESULTS)))
    assert answer.verdict == "not judged"
    assert "was not tested (--permutations 0); highest rate: 30.0% of images" in text.plain(
        answer.found
    )


def test_harms_within_chance_are_no_finding() -> None:
    [answer] = answers(Run(harms([0.2, 0.1, 0.3], [500] * 3, p=0.4)))
    assert answer.verdict == "no gap found"  # and not "none found": a third is called apes
    assert text.plain(answer.found) == (
        "Groups do not differ beyond chance; highest rate: 30.0% of images of 10-19 are "
        "classified as “ape”"
    )


def test_found_and_expected_stand_side_by_side() -> None:
    verdicts = {"noun": "weak", "adjective": "clear"}
    tables = [lifted("gender", ["Female", "Male"], experiment=kind, verdict=verdict)
              for kind, verdict in verdicts.items()]  # fmt: skip
    run = Run(combined(tables))
    [words] = attribute_words(run.table.to_pylist())
    assert words.verdict == "clear"
    [answer] = answers(run)
    assert answer.question == "Words, by gender"
    found = text.plain(answer.found)
    assert "4 of 4 words are associated" in found
    assert "“carpenter” 2.78x as high with Male as with Female" in found  # the larger way round
    assert answer.chance.startswith("0.2 beyond 95% of neutral words (found: 4); up to")
    assert text.plain(sentence(run)) == "Clearly biased by gender."


def test_small_differences_of_many_words_are_said() -> None:
    """More words differ from neutral ones than chance gives, and why none is associated."""
    table = lifted("gender", ["Female", "Male"], verdict="none found", of=["no larger"] * 2)
    [answer] = answers(Run(table))
    found = "0.1 beyond 95% of neutral words (found: 2)"
    assert answer.chance == f"{found}, none once all words are tested together"
    shown = table.to_pylist()
    for row in shown:
        if row["metric"] == "lift" and row["concept"]:
            row |= {"ci_low": row["value"] - 2, "ci_high": row["value"] + 2}
    [answer] = answers(Run(pa.Table.from_pylist(shown, RESULTS)))
    assert answer.chance == f"{found}, none shown to be above 1.25x"
    few = [{**row, "note": f"75 {TOO_FEW}"} if row["metric"] == "lift" else row for row in shown]
    [answer] = answers(Run(pa.Table.from_pylist(few, RESULTS)))
    assert answer.chance == f"{found}; 75 {TOO_FEW}"  # that is the reason
    for row in shown:
        if row["metric"] == "words_beyond":
            row["value"] = 0.0
    [answer] = answers(Run(pa.Table.from_pylist(shown, RESULTS)))
    assert "none" not in answer.chance


@pytest.mark.parametrize(("lift", "alike"), [(0.9, True), (-0.9, False)])
def test_opposites_that_lean_alike_are_one_finding_about_their_topic(
    lift: float, alike: bool
) -> None:
    table = lifted("gender", ["Female", "Male"])
    same = {"probe": "lift", "model": "m", "dataset": "d", "attribute": "gender",
            "experiment": "concept", "metric": "lift", "group": "Female", "ideal": 0.0,
            "null_low": -0.2, "null_high": 0.2, "n_group": 200,
            "verdict": "associated"}  # fmt: skip
    pair = rows(2, **same, concept=["attractive", "unattractive"], value=[math.log(1.8), lift])
    [answer] = answers(Run(combined([table, pair])))
    assert bool(answer.topics) is alike
    assert ("the topic, and not one side" in text.plain(answer.found)) is alike


def pairs(part: str, size: float, verdict: str) -> list[pa.Table]:
    same = {"probe": "counterfactual", "model": "m", "attribute": "gender", "n": 30,
            "experiment": f"redrawn, {part}"}  # fmt: skip
    return [
        rows(1, **same, metric="pair_lift_size", category="Occupation", value=size, verdict=verdict,
             null_high=0.1, ci_low=size, ci_high=size, note="judged by 338 neutral words"),
        rows(2, **same, metric="pair_lift", category="Occupation", target=["nurse", "judge"],
             group="Female", value=[size, -size / 2], null_low=-0.1, null_high=0.1,
             verdict=["associated" if verdict == "clear" else "no larger", "no larger"]),
    ]  # fmt: skip


def test_masked_words_are_one_answer_for_image_text_and_both() -> None:
    tables = [*pairs("image", math.log(2), "clear"), *pairs("text", 0.01, "none found")]
    [answer] = answers(Run(combined(tables)))
    assert (answer.question, answer.verdict) == ("Masked words, by gender", "clear")
    assert text.plain(answer.found) == (
        "With image swapped 1 of 2 words are associated (typical size 2.00x); with text swapped 0 "
        "(1.01x). “nurse” is 2.00x as likely with Female as with the other group."
    )
    assert answer.chance == "groups swapped at random within pairs: up to 1.11x and 1.11x"
    assert text.plain(sentence(Run(combined(tables)))) == "Clearly biased by gender (masked words)."
    both = Run(combined([*tables, lifted("gender", ["Female", "Male"])]))
    assert text.plain(sentence(both)) == "Clearly biased by gender."  # said once
    fair = Run(combined(pairs("image", 0.01, "none found")))
    assert "swapped 0 of 2 words are associated" in text.plain(next(iter(answers(fair))).found)


def test_next_steps_are_commands_for_this_run() -> None:
    run = Run(lifted("gender", ["Female", "Male"]), META)
    commands = [command for step in next_steps(run) for command in step.commands]
    assert commands[0] == (
        "tiltmeter debias fairvlp hf:some/clip --images 'table:my faces.csv?path=file' "
        "--attribute gender --share 0.5 --out fair"
    )  # scores are no cosines: there are no embeddings to correct
    assert commands[1].startswith("tiltmeter audit fair --images 'table:my faces.csv?path=file'")
    assert "tiltmeter explore runs/one" in commands
    assert commands[2] == "tiltmeter compare runs/one after --fail-on worse"
    fair = Run(lifted("gender", ["Female", "Male"], verdict="none found",
                      of=["no larger", "no larger"]), META)  # fmt: skip
    commands = [command for step in next_steps(fair) for command in step.commands]
    assert not any("debias" in command for command in commands)
    assert commands[1:3] == [
        "tiltmeter audit NEXT_MODEL --images 'table:my faces.csv?path=file' --out next",
        "tiltmeter compare runs/one next --fail-on worse",
    ]


def test_groups_without_enough_images_get_the_number_that_is_needed() -> None:
    why = "fewer than 20 images in all groups but one"
    none = rows(1, probe="lift", model="m", dataset="d", attribute="gender", metric="lift",
                experiment="noun", note=why)  # fmt: skip
    [step] = [step for step in next_steps(Run(none, META)) if "plan" in step.commands[0]]
    assert "at least 20 images per group" in step.text


def test_the_next_audit_has_the_options_of_this_one_and_a_clear_harm_comes_first() -> None:
    given = {"faces": "fairface:ff", "cross": ["race*gender"], "k": [10], "words": "a,b",
             "data": {"captions": "coco:my file"}, "limit": 900}  # fmt: skip
    table = combined([harms([0.8, 0.1, 0.3], [500] * 3), lifted("gender", ["Female", "Male"])])
    environment = {**META["environment"], "store": str(Path("vectors").resolve())}
    meta = {**META, "arguments": {"given": given}, "environment": environment}
    run = Run(table, meta)
    debias, audit, compare = next_steps(run)[0].commands
    assert "--attribute age --share 0.5 --store vectors --out fair" in debias
    assert audit == (
        "tiltmeter audit fair --images fairface:ff --unseen fair --cross 'race*gender' "
        "--k 10 --words a,b --data 'captions=coco:my file' --limit 900 --store vectors --out after"
    )
    assert compare == "tiltmeter compare runs/one after --fail-on worse"


def test_the_terminal_gets_at_most_40_lines() -> None:
    tables = [lifted(f"attribute {at}", ["one", "other", "third"]) for at in range(30)]
    shown = parts(Run(combined(tables), META))
    lines = [line for part in shown for line in str(getattr(part, "text", part)).split("\n")]
    assert len(lines) <= LINES
    assert max(map(len, lines)) <= COLUMNS
    assert any("more in the report" in line for line in lines)
    assert Path("runs/one").name in lines[-1]


def test_refusals_that_differ_are_in_the_sentence() -> None:
    gap = {"probe": "silence", "model": "m", "dataset": "d", "metric": "gaps", "target": "refused",
           "experiment": "who is this", "attribute": "gender", "group": "Male", "ideal": 0.0,
           "null_low": -0.05, "null_high": 0.05, "n": 400, "n_group": 200}  # fmt: skip
    large = rows(1, **gap, value=0.2, ci_low=0.1, ci_high=0.3, p=0.001, p_fwer=0.001)
    found = text.plain(sentence(Run(large)))
    assert found.startswith("Refusals differ: “refused” (who is this): 20.0 points more for Male")
    chance = rows(1, **gap, value=0.04, ci_low=-0.02, ci_high=0.1, p=0.3, p_fwer=0.4)
    assert "Refusals differ" not in text.plain(sentence(Run(chance)))


def test_options_of_probes_and_a_free_name_are_in_the_next_steps() -> None:
    fair = lifted("gender", ["Female", "Male"], verdict="none found", of=["no larger"] * 2)
    given = {"options": {"lift": {"splits": "50"}}, "seed": 3, "bootstraps": 0}
    meta = {**META, "arguments": {"given": given}, "environment": {"place": "next"}}
    commands = [command for step in next_steps(Run(fair, meta)) for command in step.commands]
    assert commands[1:3] == [
        "tiltmeter audit NEXT_MODEL --option lift.splits=50 --bootstraps 0 --seed 3 --out later",
        "tiltmeter compare next later --fail-on worse",
    ]


def test_what_could_not_be_measured_is_named_with_its_reason_and_has_a_page() -> None:
    same = {"probe": "silence", "model": "m", "dataset": "d", "metric": "gaps"}
    few = "fewer than 20 images in all groups but one"
    race = rows(2, **same, attribute="race", target=["refused", "words"], note=few)
    gender = combined([
        rows(1, **same, attribute="gender", target="refused", value=0.01, ci_low=-0.02,
             ci_high=0.04, p_fwer=0.6),
        rows(2, **{**same, "metric": "group_rates"}, attribute="gender", target="refused",
             group=["Female", "Male"], value=[0.02, 0.01], n_group=50),
    ])  # fmt: skip
    run = Run(race, META)
    [answer] = answers(run)
    assert (answer.question, answer.verdict) == ("Refusals and length, by race", "not judged")
    assert text.plain(sentence(run)) == f"Nothing was judged: {few}."
    assert page_of(run).sections
    both = Run(combined([race, gender]), META)
    found = {answer.question: answer.verdict for answer in answers(both)}
    assert found == {"Refusals and length, by gender": "none found",
                     "Refusals and length, by race": "not judged"}  # fmt: skip
    [silence] = [one for one in page_of(both).sections if one.name == "section-silence"]
    assert [figure.title for figure in silence.figures] == ["Refused answers by gender"]
