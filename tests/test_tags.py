import pytest

from elsa_build.errors import ConfigError, ExitCode, FailedError
from elsa_build.images.tags import Claim, parse, read, render, settle, split
from elsa_build.model import Digest


def claim(letter: str, manifest: str | None = None) -> Claim:
    digest = Digest(f"sha256:{letter * 64}")
    return Claim(manifest=Digest(manifest or digest), config=digest, diff_ids=(digest, digest))


def test_a_bare_tag_gets_the_usual_repository():
    assert split("elsa-v1.7") == ("elsa", "elsa-v1.7")


def test_a_repository_may_have_a_host_with_a_port():
    assert split("registry.example:5000/team/elsa:v1") == ("registry.example:5000/team/elsa", "v1")


@pytest.mark.parametrize("tag", ["a", "_x", "1.7", "V1.7-rc.1_x", "x" * 128])
def test_every_tag_that_docker_takes_is_taken(tag):
    assert split(tag) == ("elsa", tag)


@pytest.mark.parametrize(
    ("tag", "hint"),
    [
        ("1.7+cu130", "--tag 1.7-cu130"),
        ("elsa v1", "--tag elsa-v1"),
        (".hidden", "--tag hidden"),
        ("-flag", "--tag flag"),
        ("x" * 129, f"--tag {'x' * 128}"),
        ("v1\n", "--tag v1-"),
        ("größe", "--tag gr--e"),
        ("a/b", "--tag a-b"),
        ("", None),
        ("Elsa:v1", "--tag elsa:v1"),
        ("a:b:c", None),
    ],
)
def test_a_tag_that_docker_would_refuse_is_refused_with_one_that_it_takes(tag, hint):
    with pytest.raises(ConfigError) as caught:
        split(tag)

    assert caught.value.hint == hint


@pytest.mark.parametrize("tag", ["v1.tar", "v1.json"])
def test_a_tag_that_would_be_a_file_of_another_tag_is_refused(tag):
    with pytest.raises(ConfigError, match="a file of another tag"):
        split(tag)


def test_a_lock_written_and_read_is_equal():
    claims = {"v2": claim("b"), "v1": claim("a")}

    assert parse(render(claims), "tags.lock") == claims


def test_a_lock_is_sorted_with_one_value_a_line():
    lines = render({"b": claim("b"), "a": claim("a")}).splitlines()

    assert [line for line in lines if line.startswith("[")] == ['[tags."a"]', '[tags."b"]']
    assert all(line.count("sha256:") <= 1 for line in lines)


def test_no_lock_is_a_lock_without_tags(tmp_path):
    assert read(tmp_path / "tags.lock") == {}


@pytest.mark.parametrize(
    "text", ["version = 2\n", "", "<<<<<<< ours\n", 'version = 1\n[tags."a"]\nmanifest = "x"\n']
)
def test_a_broken_lock_is_refused_by_name(text):
    with pytest.raises(ConfigError, match=r"tags\.lock"):
        parse(text, "tags.lock")


def test_a_new_tag_is_entered():
    after = settle({}, "v1", claim("a"), here=None, replace_local=False)

    assert after == {"v1": claim("a")}


def test_the_same_image_again_is_welcome():
    before = {"v1": claim("a")}

    assert settle(before, "v1", claim("a"), here=claim("a"), replace_local=False) == before


def test_the_same_image_from_another_compressor_keeps_the_first_manifest():
    before = {"v1": claim("a")}
    again = claim("a", manifest=f"sha256:{'9' * 64}")

    assert settle(before, "v1", again, here=None, replace_local=False) == before


def test_another_image_is_refused_and_the_way_out_is_named():
    with pytest.raises(FailedError, match="already names") as caught:
        settle({"v1": claim("a")}, "v1", claim("b"), here=claim("a"), replace_local=False)

    assert caught.value.code == ExitCode.FAILED
    assert "--replace-local" in caught.value.hint


def test_a_tag_whose_image_lies_here_moves_when_the_person_says_so():
    after = settle(
        {"v1": claim("a"), "v0": claim("c")}, "v1", claim("b"), here=claim("a"), replace_local=True
    )

    assert after == {"v1": claim("b"), "v0": claim("c")}


@pytest.mark.parametrize("here", [None, claim("c")])
def test_a_tag_that_came_with_the_project_does_not_move(here):
    with pytest.raises(FailedError, match="already names") as caught:
        settle({"v1": claim("a")}, "v1", claim("b"), here=here, replace_local=True)

    assert "its image is not here" in caught.value.hint


def test_an_image_whose_entry_was_lost_still_holds_its_tag():
    with pytest.raises(FailedError, match="already names"):
        settle({}, "v1", claim("b"), here=claim("a"), replace_local=False)
