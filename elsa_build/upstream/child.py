"""A child process whose lines are read while it runs, and which does not outlive its run."""

import os
import re
import selectors
import subprocess
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import IO


@contextmanager
def running(
    command: Sequence[str], env: Mapping[str, str], stdin: bytes = b""
) -> Iterator[tuple["subprocess.Popen[bytes]", IO[bytes]]]:
    """Start a program; give it and the pipe with both of its output streams.

    Leaving the block early (an error, ^C) kills it; else it is waited for.
    """
    pipe = subprocess.PIPE
    with subprocess.Popen(
        command, stdin=pipe, stdout=pipe, stderr=subprocess.STDOUT, env=env
    ) as process:
        assert process.stdin is not None
        assert process.stdout is not None
        try:
            process.stdin.write(stdin)
            process.stdin.close()
            yield process, process.stdout
        except BaseException:
            process.kill()
            raise


def lines(stream: IO[bytes], pause: float | None = None) -> Iterator[str]:
    """Yield lines as they come; a carriage return ends one as well (progress is drawn with it).

    With `pause`, an empty line is yielded whenever so many seconds pass without output.
    """
    rest = b""
    with selectors.DefaultSelector() as selector:
        selector.register(stream, selectors.EVENT_READ)
        while True:
            if not selector.select(timeout=pause):
                yield ""
                continue
            block = os.read(stream.fileno(), 65536)
            *whole, rest = re.split(rb"[\r\n]+", rest + block)
            yield from (line.decode("utf-8", "replace").rstrip() for line in whole if line)
            if not block:
                break
    if rest:
        yield rest.decode("utf-8", "replace").rstrip()
