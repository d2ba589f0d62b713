"""One upstream commit put on a tree of ours: the same merge as a replay's, quicker where it can be.

A scan makes some hundred of these. Most files of a commit are on our tree as the commit found them;
then there is nothing to merge and no process to start.
"""

from elsa_build.diagnostics import Diagnostic, errors
from elsa_build.git.door import Git
from elsa_build.git.objects import Change
from elsa_build.model import Oid, Outcome, Replay, Step
from elsa_build.patches.guarding import guarded
from elsa_build.patches.history import UpstreamCommit
from elsa_build.patches.replay import of_commit
from elsa_build.patches.threeway import Merged, put
from elsa_build.rebasing import picks


def landed(git: Git, commit: UpstreamCommit, onto: Oid, scope: str = "") -> Merged:
    """Return a tree with a commit's change against its first parent merged in.

    Only files whose path starts with `scope` count: a published release holds no tests.
    """
    change = tuple(one for one in commit.changes if one.path.startswith(scope))
    if all(_as_found(git, one, onto) for one in change):
        tree = git.objects.edit(onto, {path: new for path, _, new in change})
        return Merged(tree=tree, paths=tuple(one.path for one in change))
    before, after = sides(git, commit, scope)
    return put(git, before, after, onto)


def sides(git: Git, commit: UpstreamCommit, scope: str = "") -> tuple[Oid, Oid]:
    """Return the trees before and after a commit; outside of `scope` the second is as the first."""
    made = git.commit(commit.oid)
    before = git.commit(made.parents[0]).tree if made.parents else git.objects.edit(None, {})
    if not scope:
        return before, made.tree
    own = {path: new for path, _, new in commit.changes if path.startswith(scope)}
    return before, git.objects.edit(before, own)


def part(git: Git, oid: Oid, scope: str) -> Oid:
    """Return a commit that changes only what lies in `scope`, and says what it is a part of."""
    change, parent = of_commit(git, oid)
    whole = git.commit(oid)
    own = {path: new for path, _, new in change if path.startswith(scope)}
    tree = git.objects.edit(parent, own)
    message = f"{whole.message.rstrip()}\n\n(cherry picked from commit {oid})"
    return git.commit_tree(tree, whole.parents, message, whole.author)


def outcome(merged: Merged, onto: Oid) -> Outcome:
    """Return what became of a commit in the words of a replay."""
    if merged.conflicts:
        return Outcome.CONFLICT
    return Outcome.ABSORBED if merged.tree == onto else Outcome.CLEAN


def objections(
    git: Git, oid: Oid, onto: Oid, merged: Merged, scope: str = ""
) -> tuple[Diagnostic, ...]:
    """Return what the guards find wrong with a commit that merged into the tree `onto`.

    A merge of upstream's has no single change to be guarded.
    """
    if len(git.commit(oid).parents) != 1:
        return ()
    (patch,) = picks(git, [part(git, oid, scope) if scope else oid]).patches
    author = git.commit(oid).author
    head = git.commit_tree(onto, (), "our stack", author)
    commit = git.commit_tree(merged.tree, (head,), "a candidate", author)
    step = Step(
        patch=patch, outcome=Outcome.CLEAN, tree=merged.tree, commit=commit, paths=merged.paths
    )
    done = Replay(onto=head, steps=(step,), head=commit, tree=merged.tree)
    return errors(guarded(git, done).steps[0].findings)


def _as_found(git: Git, change: Change, onto: Oid) -> bool:
    """Say whether a tree has a file as a change found it, so that no rename can matter."""
    here = git.objects.find(onto, change.path)
    if change.old is not None or here is not None:
        return here == change.old
    folder = change.path.rpartition("/")[0]
    return not folder or git.objects.find(onto, folder) is not None
