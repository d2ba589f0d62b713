"""The git source: names become pins, the person's repository stays as it is, fetches are few."""

import os
import subprocess
from contextlib import contextmanager

import pytest

from elsa_build.errors import ConfigError, ToolError
from elsa_build.git.door import Git
from elsa_build.git.objects import encode
from elsa_build.model import Pin, SourceKind
from elsa_build.upstream.git_source import GitSource, plain
from elsa_build.upstream.lock import Lock
from elsa_build.upstream.source import DEFAULT_URL, open_pinned, open_source, open_wheel

PYPROJECT = b'[project]\ndependencies = ["torch==2.14.1", "numpy"]\n'


class Upstream:
    """A repository with two commits on main, a tag on the first, and a branch."""

    def __init__(self, story) -> None:
        self.git = story.git
        self.path = story.git.path
        self.first = story.commit(
            None, "first", {"python/pyproject.toml": PYPROJECT, "python/sglang/a.py": "1\n"}
        )
        self.second = story.commit(self.first, "second", {"python/sglang/a.py": "2\n"})
        self.side = story.commit(self.first, "side", {"python/sglang/a.py": "3\n"})
        self.move(
            {
                "refs/heads/main": self.second,
                "refs/heads/release/v1": self.side,
                "refs/tags/v1.0.0": self.first,
            }
        )

    def move(self, refs) -> None:
        self.git.move_refs({name: (oid, self.git.find(name)) for name, oid in refs.items()})


class Noted:
    """A progress that keeps what it was told."""

    def __init__(self) -> None:
        self.told = []

    @contextmanager
    def task(self, description, total=None, unit=""):
        done = []
        self.told.append((description, total, unit, done))
        yield done.append


@pytest.fixture
def upstream(story) -> Upstream:
    return Upstream(story)


@pytest.fixture
def source(upstream, tmp_path) -> GitSource:
    return GitSource(url=str(upstream.path), cache=tmp_path / "cache")


def files(folder) -> dict:
    return {p: (p.stat().st_mtime_ns, p.stat().st_size) for p in sorted(folder.rglob("*"))}


# --- names ------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("ref", "expected"),
    [
        ("v1.0.0", "first"),
        ("main", "second"),
        ("nightly", "second"),
        ("release/v1", "side"),
        ("main~1", "first"),
    ],
)
def test_a_tag_a_branch_and_nightly_become_a_pin(upstream, source, ref, expected):
    pin = source.resolve(ref)

    commit = getattr(upstream, expected)
    assert pin == Pin(
        source=SourceKind.GIT,
        url=str(upstream.path),
        ref=ref,
        commit=commit,
        tree=upstream.git.commit(commit).tree,
        date="2023-11-14T23:13:20+01:00",
        requires=("torch==2.14.1", "numpy"),
    )


def test_a_commit_can_be_given_in_full_or_short(upstream, source):
    assert source.resolve(upstream.first).commit == upstream.first
    assert source.resolve(upstream.side[:7]).commit == upstream.side


def test_nightly_of_another_branch_is_pinned_as_that_branch(upstream, tmp_path):
    source = GitSource(url=str(upstream.path), cache=tmp_path, branch="release/v1")

    pin = source.resolve("nightly")

    assert (pin.ref, pin.commit) == ("release/v1", upstream.side)


def test_a_tag_wins_over_a_branch_of_the_same_name(upstream, source):
    upstream.move({"refs/heads/v1.0.0": upstream.second})

    assert source.resolve("v1.0.0").commit == upstream.first


def test_a_tree_without_a_pyproject_requires_nothing(story, tmp_path):
    oid = story.commit(None, "bare", {"a": "1"})
    story.git.move_refs({"refs/heads/main": (oid, None)})

    pin = GitSource(url=str(story.git.path), cache=tmp_path / "cache").resolve("nightly")

    assert pin.requires == ()


@pytest.mark.parametrize("ref", ["v1.0.1", "0" * 40, "--upload-pack=x", "main..v1.0.0", "", "a b"])
def test_an_unknown_name_is_refused(source, ref):
    with pytest.raises(ConfigError, match="unknown ref"):
        source.resolve(ref)


def test_an_unknown_name_is_told_with_near_ones(source):
    with pytest.raises(ConfigError, match=r"near: .*v1\.0\.0") as caught:
        source.resolve("v1.0.1")

    assert caught.value.hint == "elsa-build pin set v1.0.0 --source git"


def twins(tree: str) -> list[bytes]:
    """Return two commits whose ids begin with the same seven digits."""
    seen: dict[str, bytes] = {}
    for number in range(100_000):
        who = f"a <a@b> {number} +0000"
        body = f"tree {tree}\nauthor {who}\ncommitter {who}\n\n{number}\n".encode()
        short = encode("commit", body)[0][:7]
        if short in seen:
            return [seen[short], body]
        seen[short] = body
    raise AssertionError("no two commits alike")


def test_an_ambiguous_short_id_is_told_with_the_commits(story, tmp_path):
    tree = story.git.objects.write_tree({})
    oids = [story.git.objects.write("commit", body) for body in twins(tree)]
    story.git.move_refs({f"refs/heads/b{n}": (oid, None) for n, oid in enumerate(oids)})

    with pytest.raises(ConfigError, match="the beginning of 2 commits") as caught:
        GitSource(url=str(story.git.path), cache=tmp_path / "cache").resolve(oids[0][:7])

    assert all(oid in str(caught.value) for oid in oids)


# --- following upstream -----------------------------------------------------------------------


def test_a_branch_is_asked_for_again_and_a_tag_is_not(upstream, source, story):
    source.resolve("main")
    third = story.commit(upstream.second, "third", {"python/sglang/a.py": "4\n"})
    upstream.move({"refs/heads/main": third})

    assert source.resolve("main").commit == third
    upstream.path.rename(upstream.path.with_suffix(".away"))
    with pytest.raises(ConfigError, match="no such folder or repository"):
        source.resolve("main")


def test_update_follows_the_branch_or_the_newest_release_tag(upstream, source, story):
    nightly, tagged = source.resolve("nightly"), source.resolve("v1.0.0")
    third = story.commit(upstream.second, "third", {"python/sglang/a.py": "4\n"})
    upstream.move(
        {
            "refs/heads/main": third,
            "refs/tags/v1.10.0": upstream.second,
            "refs/tags/v1.9.0": upstream.side,
            "refs/tags/v2.0.0rc1": third,
            "refs/tags/not-a-version": third,
        }
    )

    assert source.update(nightly).commit == third
    assert source.update(tagged).ref == "v1.10.0"
    assert source.update(tagged).commit == upstream.second


def test_a_single_commit_has_nothing_newer(upstream, source):
    with pytest.raises(ConfigError, match="is a single commit"):
        source.update(source.resolve(upstream.first))


def test_a_pinned_commit_survives_upstreams_rewriting(upstream, source):
    pin = source.resolve("nightly")
    upstream.move({"refs/heads/main": upstream.side})
    source.resolve("nightly")

    with Git(source.ensure(pin)) as git:
        git.run("reflog", "expire", "--expire=now", "--all")
        git.run("prune", "--expire=now")
        assert git.find(pin.commit) == upstream.second
        assert git.find("refs/heads/main") == upstream.side


# --- ensure -----------------------------------------------------------------------------------


def test_ensure_gives_a_bare_repository_with_the_commit(upstream, source, tmp_path):
    pin = source.resolve("v1.0.0")

    repository = open_pinned(Lock(pin=pin), cache=tmp_path / "elsewhere")

    with Git(repository) as git:
        assert git.text("rev-parse", "--is-bare-repository") == "true"
        assert git.commit(pin.commit).tree == pin.tree


def test_ensure_works_without_the_network_once_it_has_run(upstream, tmp_path):
    url = upstream.path.as_uri()
    source = open_source(SourceKind.GIT, url, cache=tmp_path / "cache")
    pin = source.resolve("nightly")
    before = files(upstream.path)

    assert source.ensure(pin) == source.ensure(pin)

    assert files(upstream.path) == before


def test_a_commit_that_is_gone_is_told(upstream, source):
    pin = source.resolve("nightly")
    lost = Pin(
        source=pin.source,
        url=pin.url,
        ref=pin.ref,
        commit="1" * 40,
        tree=pin.tree,
        date=pin.date,
    )

    with pytest.raises(ConfigError, match="no longer has commit 1111"):
        source.ensure(lost)


def test_a_lock_with_another_tree_is_refused(upstream, source):
    pin = source.resolve("nightly")
    wrong = Pin(
        source=pin.source,
        url=pin.url,
        ref=pin.ref,
        commit=pin.commit,
        tree="2" * 40,
        date=pin.date,
    )

    with pytest.raises(ConfigError, match=f"has tree {pin.tree}, the lock says 2222"):
        source.ensure(wrong)


def test_a_git_pin_has_no_wheel(source, tmp_path):
    with pytest.raises(ConfigError, match="has no wheel"):
        open_wheel(Lock(pin=source.resolve("nightly")), python="3.12", cache=tmp_path)


# --- where it comes from ----------------------------------------------------------------------


def test_a_persons_repository_is_neither_written_to_nor_copied(upstream, source):
    before = files(upstream.path)

    mirror = source.ensure(source.resolve("nightly"))

    assert files(upstream.path) == before
    assert list((mirror / "objects").glob("pack/*.pack")) == []
    assert list((mirror / "objects").glob("??/*")) == []


def test_a_work_tree_and_a_linked_one_can_be_the_source(upstream, tmp_path):
    main, linked = tmp_path / "main", tmp_path / "linked"
    for command in (
        ["git", "clone", "--quiet", str(upstream.path), str(main)],
        ["git", "-C", str(main), "worktree", "add", "--quiet", str(linked)],
    ):
        subprocess.run(command, check=True, capture_output=True)

    for path in (main, linked):
        source = GitSource(url=str(path), cache=tmp_path / "cache")
        assert source.resolve("v1.0.0").commit == upstream.first


def test_a_hooks_environment_does_not_lead_astray(upstream, source, monkeypatch, tmp_path):
    monkeypatch.setenv("GIT_DIR", str(tmp_path / "nowhere"))
    monkeypatch.setenv("GIT_INDEX_FILE", str(tmp_path / "index"))

    assert source.resolve("nightly").commit == upstream.second


def test_a_server_that_can_is_asked_without_blobs_and_then_for_all_of_the_pin(upstream, tmp_path):
    """`file` with a filter stands for such a server; a plain path is borrowed from instead."""
    upstream.git.run("config", "uploadpack.allowFilter", "true")
    upstream.git.run("config", "uploadpack.allowAnySHA1InWant", "true")
    source = Remote(url=upstream.path.as_uri(), cache=tmp_path / "cache")

    pin = source.resolve("v1.0.0")

    repository = source.ensure(pin)
    upstream.path.rename(tmp_path / "away")
    with Git(repository) as git:
        missing = git.text("rev-list", "--objects", "--missing=print", "--all").splitlines()
        assert [line for line in missing if line.startswith("?")] != []
        entries = dict(git.objects.files(pin.tree))
        assert [git.objects.blob(e.oid) for e in entries.values()] == [PYPROJECT, b"1\n"]


class Remote(GitSource):
    """A source that treats its address as a server, although it is on this machine."""

    local = None


def test_progress_has_a_task_for_each_phase(upstream, story, tmp_path):
    blobs = {f"python/sglang/f{n}.py": os.urandom(64).hex() for n in range(200)}
    upstream.move({"refs/heads/main": story.commit(upstream.second, "many", blobs)})
    noted = Noted()

    Remote(url=upstream.path.as_uri(), cache=tmp_path, progress=noted).resolve("nightly")

    told = {description: (total, sum(done)) for description, total, _, done in noted.told}
    assert f"connect to {upstream.path.as_uri()}" in told
    total, done = told["receive objects"]
    assert total == done
    assert total > 200


# --- bad addresses ----------------------------------------------------------------------------


@pytest.mark.parametrize(
    "url",
    [
        "ext::sh -c touch% /tmp/x",
        "http://example.org/x.git",
        "git://example.org/x.git",
        "fd::17",
        "--upload-pack=touch x",
        "",
    ],
)
def test_an_address_that_git_would_run_or_not_check_is_refused(url, tmp_path):
    with pytest.raises(ConfigError, match=r"is not allowed|is not the address"):
        GitSource(url=url, cache=tmp_path)


def test_a_folder_that_is_no_repository_is_refused(tmp_path):
    (tmp_path / "empty").mkdir()

    with pytest.raises(ConfigError, match="is not a git repository"):
        GitSource(url=str(tmp_path / "empty"), cache=tmp_path / "cache").resolve("nightly")


def test_a_server_that_does_not_answer_is_a_tool_error_with_a_command(tmp_path):
    source = GitSource(url="https://127.0.0.1:9/x.git", cache=tmp_path)

    with pytest.raises(ToolError, match="cannot fetch from https") as caught:
        source.resolve("nightly")

    assert caught.value.hint == "git ls-remote --heads https://127.0.0.1:9/x.git"


def test_a_password_is_in_no_pin_and_no_message(tmp_path):
    source = GitSource(url="https://me:hunter2@127.0.0.1:9/x.git", cache=tmp_path)

    with pytest.raises(ToolError) as caught:
        source.resolve("nightly")

    assert source.address == "https://127.0.0.1:9/x.git"
    assert "hunter2" not in f"{caught.value}{caught.value.hint}"


@pytest.mark.parametrize(
    ("url", "expected"),
    [
        ("https://me:secret@example.org/x.git", "https://example.org/x.git"),
        ("https://example.org:8443/x@y.git", "https://example.org:8443/x@y.git"),
        ("git@example.org:group/x.git", "git@example.org:group/x.git"),
        ("ssh://git@example.org/x.git", "ssh://git@example.org/x.git"),
    ],
)
def test_only_an_https_address_carries_a_password(url, expected):
    assert plain(url) == expected


def test_each_source_has_sglang_as_its_default(tmp_path):
    for kind in SourceKind:
        assert open_source(kind, None, cache=tmp_path).url == DEFAULT_URL[kind]
