"""From plan to jobs and back: what names a job, what a budget takes, what a failure costs."""

from dataclasses import replace
from itertools import pairwise

import pytest

from elsa_build.cli.kernels_build import seconds
from elsa_build.errors import UsageError
from elsa_build.kernels import building
from elsa_build.kernels.building import Building, Choice, Work, built, within
from elsa_build.kernels.bundle import Bundle, Kernel, Manifest
from elsa_build.kernels.jobs import Family, Job, Outcome
from elsa_build.kernels.plan import Plan, planned, tunings
from elsa_build.reports import kernels_build as words

STAMP = {"target": {"name": "sm_120"}, "tools": {"triton": "3.8.0"}, "package": "1" * 40}


def plan(*names):
    entries = [{"family": "triton", "name": name, "spec": {"block": 1}} for name in names]
    modules = [{"family": "flashinfer", "name": name, "spec": {}} for name in ("norm", "page")]
    choices = [
        {"name": "m:tuned", "spec": {"tuning_key": [32, "bf16"], "configs": ["a", "b"]}},
        {"name": "m:tuned", "spec": {"tuning_key": [64, "bf16"], "configs": ["a", "b"]}},
    ]
    return Plan(
        recipe="small",
        target="sm_120",
        package="1" * 40,
        versions={},
        kernels=tuple(planned(entries + modules)),
        tunings=tuple(tunings(choices)),
    )


def job(id_, name="", *, family=Family.FLASHINFER, cpu_s=1.0, mib=100, needs=()):
    return Job(
        id=id_,
        family=family,
        name=name or id_,
        call="x:y",
        arguments={},
        memory_mib=mib,
        cpu_s=cpu_s,
        needs=needs,
    )


def work(name, *costs, family=Family.TRITON):
    return Work(
        family=family,
        name=name,
        jobs=tuple(job(f"{name}{n}", cpu_s=cost) for n, cost in enumerate(costs)),
    )


# --- what names a job ---------------------------------------------------------------------------


def ids(plan, stamp):
    works = [*building.triton_work(plan, stamp), *building.tuning_work(plan, stamp, untimed=True)]
    return [one.result for one in works]


def test_the_same_plan_and_tools_give_the_same_jobs():
    assert ids(plan("m:a", "m:b"), STAMP) == ids(plan("m:b", "m:a"), dict(STAMP))


@pytest.mark.parametrize(
    "changed",
    [
        {"target": {"name": "sm_121"}},
        {"tools": {"triton": "3.8.1"}},
        {"package": "2" * 40},
    ],
)
def test_another_target_toolchain_or_tree_is_other_work(changed):
    before, after = ids(plan("m:a"), STAMP), ids(plan("m:a"), STAMP | changed)

    assert not set(before) & set(after)
    for family_jobs in ([job("norm", "norm"), job("norm/link", "norm/link", needs=("norm",))],):
        first = building.stamped(family_jobs, STAMP)
        second = building.stamped(family_jobs, STAMP | changed)
        assert not {one.id for one in first} & {one.id for one in second}


def test_why_a_kernel_is_planned_and_who_recorded_it_are_not_its_work():
    here = plan("m:a")
    told = replace(
        here,
        recipe="other",
        versions={"torch": "9"},
        failures={"x": "y"},
        kernels=tuple(replace(one, why="seen", boots=2, phases=("boot",)) for one in here.kernels),
    )

    assert ids(here, STAMP) == ids(told, STAMP)


def test_stamped_jobs_still_need_each_other():
    first, second = building.stamped([job("a"), job("b", needs=("a",))], STAMP)

    assert second.needs == (first.id,)


# --- works -------------------------------------------------------------------------------------


def test_each_specialisation_is_one_work_with_the_plans_own_spec():
    works = list(building.triton_work(plan("m:a", "m:b"), STAMP))

    assert [one.name for one in works] == ["m:a", "m:b"]
    assert works[0].jobs[0].call == "triton:compile"
    assert works[0].jobs[0].arguments == {"name": "m:a", "spec": {"block": 1}}
    assert works[0].planned == plan("m:a").of(Family.TRITON)[0]


def test_a_choice_takes_the_cards_timings_and_without_them_the_first_only_when_that_is_asked():
    measured = {building.choice_id("m:tuned", [64, "bf16"]): {"a": [2, 2, 2], "b": [1, 1, 1]}}

    (timed,) = building.tuning_work(plan(), STAMP, measured)
    first, second = building.tuning_work(plan(), STAMP, measured, untimed=True)

    assert timed == second
    assert first.jobs[0].arguments["timings"] is None
    assert second.jobs[0].arguments["timings"]["b"] == [1, 1, 1]
    assert first.jobs[0].arguments["spec"]["tuning_key"] == [32, "bf16"]
    assert first.result != second.result


def test_a_module_has_all_its_jobs_and_the_one_that_places_it_last():
    jobs = [job("1", "norm/a.cu"), job("2", "page/b.cu"), job("3", "norm/link"), job("4", "norm")]

    works = {one.name: one for one in building.module_work(plan(), Family.FLASHINFER, jobs)}

    assert [one.id for one in works["norm"].jobs] == ["1", "3", "4"]
    assert works["norm"].result == "4"
    assert [one.id for one in works["page"].jobs] == ["2"]
    assert works["norm"].cpu_s == 3.0


# --- the budget --------------------------------------------------------------------------------


WORKS = [work("d", 300, 300), work("b", 2.0), work("a", 2.0), work("c", 50, 1), work("e", 1.0)]


def test_the_cheapest_are_taken_first_and_the_rest_is_left():
    choice = within(WORKS, 10)

    assert [one.name for one in choice.taken] == ["e", "a", "b"]
    assert [one.name for one in choice.left] == ["c", "d"]


def test_the_choice_does_not_depend_on_the_order_of_the_plan():
    for limit in (None, 0, 3, 5, 56, 1000):
        assert within(WORKS, limit) == within(WORKS[::-1], limit)


def test_without_a_limit_all_is_taken_and_with_none_at_all_nothing():
    assert within(WORKS, None).left == ()
    assert within(WORKS, 0).taken == ()


def test_more_time_never_leaves_what_less_time_took():
    taken = [{one.name for one in within(WORKS, limit).taken} for limit in range(0, 700, 7)]

    assert all(less <= more for less, more in pairwise(taken))


@pytest.mark.parametrize(
    ("text", "found"), [("90", 90), ("90s", 90), ("20m", 1200), ("1.5h", 5400), ("0", 0)]
)
def test_a_time_is_read_as_people_type_it(text, found):
    assert seconds(text) == found


@pytest.mark.parametrize("text", ["", "m", "-3", "2d", "1h30", "nan"])
def test_what_is_no_time_is_refused(text):
    with pytest.raises(UsageError, match="is no time"):
        seconds(text)


# --- what became of it -------------------------------------------------------------------------


def outcomes(works, **errors):
    return [
        Outcome(job=one.id, error=errors.get(one.id), cpu_s=1.5, peak_mib=n, fresh=n % 2 == 0)
        for n, one in enumerate(one for work in works for one in work.jobs)
    ]


def test_a_failed_unit_fails_its_module_and_no_other():
    works = [work("bad", 1, 1, 1), work("good", 1, 1)]

    bad, good = built(works, outcomes(works, bad1="nvcc: killed", bad2="not tried: bad1 failed"))

    assert bad.error == "nvcc: killed"
    assert good.error is None
    assert (bad.cpu_s, bad.peak_mib) == (4.5, 2)
    assert Building(bundle=None, built=(bad, good), left=()).failed == (bad,)


def test_what_was_there_before_is_not_counted_as_compiled():
    works = [work("a", 1), work("b", 1), work("c", 1)]

    found = built(works, outcomes(works, c0="gone"))

    assert [one.fresh for one in found] == [True, False, False]
    assert Building(bundle=None, built=found, left=()).compiled == 1


def test_the_order_of_outcomes_does_not_matter():
    works = [work("a", 1, 2), work("b", 3)]

    assert built(works, outcomes(works)) == built(works, outcomes(works)[::-1])


def building_of(done, left=()):
    kernels = tuple(
        Kernel(family=one.work.family, id=one.work.name, name=one.work.name, key="k", files=())
        for one in done
        if one.error is None
    )
    manifest = Manifest(recipe="r", target="sm_120", tree="0", toolchain={}, kernels=kernels)
    return Building(bundle=Bundle(folder=None, manifest=manifest), built=done, left=left)


def test_a_family_of_which_all_was_left_or_failed_has_a_row():
    works = [work("a", 1), work("m", 1, family=Family.SGLANG_JIT)]
    left = (work("moe", 6900, family=Family.FLASHINFER),)

    rows = list(words.rows(building_of(built(works, outcomes(works, m0="no")), left)))

    assert [row[:5] for row in rows] == [
        ("flashinfer", 0, 0, 0, 1),
        ("sglang-jit", 0, 0, 1, 0),
        ("triton", 1, 1, 0, 0),
    ]


def test_a_choice_is_told_with_its_cost_and_its_largest_job():
    choice = Choice(taken=(work("a", 2),), left=(work("moe", 600, 700, family=Family.FLASHINFER),))

    document = words.chosen(choice)

    assert document["cpu_s"] == 2
    assert document["left"] == [
        {"family": "flashinfer", "name": "moe", "jobs": 2, "cpu_s": 1300, "memory_mib": 100}
    ]
    assert words.choice_table(choice).row_count == 2
