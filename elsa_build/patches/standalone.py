"""One patch as a pair of small commits that hold only the files it touches.

A diff depends on the files that it changes and on nothing else, so a patch can be shown with more
context, re-written or exported without the tree around it, and whatever base its neighbours need.
"""

import contextlib
from collections.abc import Iterable
from dataclasses import replace

from elsa_build.git.door import Git
from elsa_build.git.objects import Change
from elsa_build.model import Mail, Oid, Patch, Signature
from elsa_build.patches.diff import DiffError, changes
from elsa_build.patches.mail import CONTEXT, parse, write
from elsa_build.patches.replay import change_of, words_of

_NOBODY = Signature(name="elsa-build", email="elsa-build@localhost", date="0 +0000")


def prepare(git: Git, patches: Iterable[Patch]) -> None:
    """Store the files as these patches leave them; a later one was written on them.

    A patch that cannot be read or lacks its pre-images is passed over: whoever needs it says so.
    """
    for patch in patches:
        if patch.mail is not None:
            with contextlib.suppress(DiffError):
                changes(git, patch.mail.diff)


def trees(git: Git, change: Iterable[Change]) -> tuple[Oid, Oid]:
    """Return the trees before and after a change, with nothing else in them."""
    change = tuple(change)
    before = git.objects.edit(None, {path: old for path, old, _ in change if old})
    after = git.objects.edit(None, {path: new for path, _, new in change if new})
    return before, after


def commit(git: Git, change: Iterable[Change], message: str, author: Signature) -> Oid:
    """Store a change as a commit on a parent of its own and return it."""
    before, after = trees(git, change)
    parent = git.commit_tree(before, (), "before", _NOBODY)
    return git.commit_tree(after, (parent,), message, author)


def mail(git: Git, patch: Patch, message: str | None = None, context: int = CONTEXT) -> bytes:
    """Return a patch as a mail written anew; a cherry-pick kept as a reference becomes one.

    Raises:
        MissingBlobError: The repository lacks the base of the patch (exit 5).
        DiffError: The diff is damaged (exit 5).
    """
    change, _ = change_of(git, patch)
    own, author = words_of(git, patch)
    return write(git, commit(git, change, own if message is None else message, author), context)


def with_mail(patch: Patch, name: str, text: bytes) -> Patch:
    """Return a patch with another mail; `name` is the path to show."""
    parsed: Mail = parse(name, text)
    return replace(patch, mail=parsed)


def diff(git: Git, patch: Patch, context: int) -> bytes:
    """Return a patch's diff with as many lines of context as asked for.

    Raises:
        MissingBlobError: The repository lacks the base of the patch (exit 5).
    """
    before, after = trees(git, change_of(git, patch)[0])
    options = ("--full-index", "--binary", "--no-renames", "--no-ext-diff", "--no-textconv")
    return git.run("diff-tree", "-p", "-r", f"-U{context}", *options, before, after)[1]
