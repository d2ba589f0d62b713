"""The only door to docker: the SDK's errors become ours, errors inside a stream become errors.

The SDK drives the classic builder only: it cannot ask for BuildKit, whatever the daemon is able to
(docker/docker-py 2230). `push` and `load` report a failure as an event and return normally
(docker-py 3277, 1772); a failed build keeps its reason in the stream (2492).
"""

import io
import os
import re
import shutil
import subprocess
import tarfile
import tempfile
from collections import deque
from collections.abc import Iterable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Any, Self

from elsa_build.errors import ToolError
from elsa_build.images.reference import check_reference
from elsa_build.progress import SILENT, Progress

if TYPE_CHECKING:
    import docker

TAIL = 40
"""Lines of a failed build that are shown: enough for a compiler's error, few enough to read."""
TIMEOUT_S = 600
"""Between two answers of the daemon: loading or saving some gigabytes is silent for minutes."""
DEFAULT_HOST = "unix:///var/run/docker.sock"
_EPOCH = 315532800
"""1980-01-01, of every file in a build context: the classic builder's cache looks at content."""


@contextmanager
def _translated(doing: str) -> Iterator[None]:
    """Turn what the SDK and its HTTP library raise into a ToolError."""
    import docker  # noqa: PLC0415 - 306 ms; only the docker backend pays
    import requests  # noqa: PLC0415 - same

    try:
        yield
    except (docker.errors.DockerException, requests.RequestException) as e:
        words = getattr(e, "explanation", None) or str(e)
        response = getattr(e, "response", None)
        if response is not None:
            # A streamed answer that nobody reads to its end would keep its socket.
            response.close()
        raise ToolError(f"docker: {doing}: {words}") from e


class Daemon:
    """A connection to one docker daemon. Use `with`, or `close()` it."""

    def __init__(self, client: "docker.APIClient") -> None:
        self._client: Any = client  # half of the SDK's stubs are untyped
        version: Mapping[str, Any] = client.version()
        self.version = str(version["Version"])
        self.api = str(version["ApiVersion"])

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        tb: TracebackType | None,
    ) -> None:
        self.close()

    def close(self) -> None:
        """End the connection."""
        self._client.close()

    def inspect(self, image: str) -> Mapping[str, Any] | None:
        """Return the daemon's document of an image, or None when it has no such image."""
        import docker  # noqa: PLC0415 - as above

        with _translated(f"inspect {image}"):
            try:
                found: Mapping[str, Any] = self._client.inspect_image(image)
            except docker.errors.ImageNotFound:
                return None
            return found

    def tag(self, image: str, reference: str) -> None:
        """Give an image another name, which may be one that it had not."""
        folder, slash, last = check_reference(reference).rpartition("/")
        name, _, tag = last.partition(":")
        with _translated(f"tag {reference}"):
            self._client.tag(image, f"{folder}{slash}{name}", tag or "latest")

    def remove(self, image: str) -> None:
        """Take a name off an image, and the image away with its last name."""
        with _translated(f"remove {image}"):
            self._client.remove_image(image, force=True)

    def load(self, archive: Path, progress: Progress = SILENT) -> tuple[str, ...]:
        """Load an image archive and return the names (or ids) that it brought.

        Raises:
            ToolError: The daemon refuses it, as 20.10 does a layer compressed with zstd (exit 6).
        """
        names = []
        with (
            progress.task(f"docker load {archive.name}"),
            _translated(f"load {archive}"),
            archive.open("rb") as file,
        ):
            for line in _lines(self._client.load_image(file), f"load {archive}"):
                found = re.match(r"Loaded image(?: ID)?: (\S+)", line)
                if found:
                    names.append(found[1])
        if not names:
            raise ToolError(f"docker: load {archive}: the daemon loaded nothing and said nothing")
        return tuple(names)

    @contextmanager
    def saved(self, image: str, progress: Progress = SILENT) -> Iterator[Path]:
        """Have an image as an archive while the block runs.

        Raises:
            ToolError: There is no such image, or no room for it (exit 6).
        """
        with tempfile.TemporaryDirectory(prefix="elsa-docker-") as folder:
            path = Path(folder) / "image.tar"
            with progress.task(f"docker save {image}"), _translated(f"save {image}"):
                try:
                    with path.open("wb") as file:
                        for piece in self._client.get_image(image):
                            file.write(piece)
                except OSError as e:
                    raise ToolError(f"docker: save {image}: {e}") from e
            yield path

    def build(
        self,
        context: Mapping[str, bytes],
        *,
        tag: str,
        buildargs: Mapping[str, str] | None = None,
        network: str = "none",
        progress: Progress = SILENT,
    ) -> str:
        """Build a Dockerfile with the classic builder and return the image's id.

        Args:
            context: Every file of the context by its path, `Dockerfile` among them. Nothing else
                is sent: no folder is walked and no `.dockerignore` is read.
            tag: The image's name.
            buildargs: Values of the Dockerfile's ARGs; they stay in its history, so no secrets.
            network: What RUN steps may reach: `none`, `default` or `host`.
            progress: Told of every step.

        Raises:
            ConfigError: Docker would refuse the name (exit 5).
            ToolError: A step failed; the last 40 lines are in the message (exit 6).
        """
        check_reference(tag)
        doing = f"build {tag}"
        with _translated(doing), ExitStack() as step:
            events = self._client.build(
                fileobj=context_tar(context),
                custom_context=True,
                tag=tag,
                buildargs=dict(buildargs or {}),
                network_mode=network,
                use_config_proxy=network != "none",
                decode=True,
                rm=True,
                forcerm=True,
            )
            for line in _lines(events, doing):
                if line.startswith("Step "):
                    step.close()
                    step.enter_context(progress.task(f"docker build: {line}"))
        built = self.inspect(tag)
        if built is None:
            raise ToolError(f"docker: {doing}: the daemon said that it is done, but has no {tag}")
        return str(built["Id"])


def connect(env: Mapping[str, str] | None = None) -> Daemon:
    """Connect to the daemon that DOCKER_HOST and its companions name, else the local one.

    Raises:
        ToolError: No daemon answers (exit 6).
    """
    import docker  # noqa: PLC0415 - 306 ms; only the docker backend pays
    from docker.utils import kwargs_from_env  # noqa: PLC0415 - same

    settings = kwargs_from_env(environment=dict(os.environ if env is None else env))
    where = str(settings.get("base_url", DEFAULT_HOST))
    unix = where.removeprefix("http+").startswith("unix://")
    if unix and not Path(where.partition("://")[2]).exists():
        # Asked here, since the SDK leaves its socket open when there is nothing to connect to.
        raise _unreachable(where, "no such socket")
    try:
        return Daemon(docker.APIClient(version="auto", timeout=TIMEOUT_S, **settings))
    except docker.errors.DockerException as e:
        raise _unreachable(where, str(e)) from e


def _unreachable(where: str, why: str) -> ToolError:
    return ToolError(f"docker daemon not reachable at {where}: {why}", hint="use --backend oci")


def context_tar(context: Mapping[str, bytes]) -> io.BytesIO:
    """Return a build context as an uncompressed tar in memory, in path order."""
    out = io.BytesIO()
    with tarfile.open(fileobj=out, mode="w", format=tarfile.PAX_FORMAT) as tar:
        for path, body in sorted(context.items()):
            member = tarfile.TarInfo(path)
            member.size, member.mtime, member.mode = len(body), _EPOCH, 0o644
            tar.addfile(member, io.BytesIO(body))
    out.seek(0)
    return out


def _lines(events: Iterable[Mapping[str, Any]], doing: str) -> Iterator[str]:
    """Yield the text lines of a stream of events.

    Raises:
        ToolError: An event is an error; the lines before it are in the message.
    """
    tail: deque[str] = deque(maxlen=TAIL)
    wrong: str | None = None
    for event in events:
        if wrong is None and ("errorDetail" in event or "error" in event):
            # The stream is read to its end all the same: only then the SDK gives the socket back.
            detail = event.get("errorDetail") or {}
            wrong = str(detail.get("message") or event.get("error") or "no reason given").strip()
        for line in str(event.get("stream") or event.get("status") or "").splitlines():
            if line.strip():
                tail.append(line.rstrip())
                yield line.rstrip()
    if wrong is not None:
        shown = "".join(f"\n  | {line}" for line in tail)
        raise ToolError(f"docker: {doing} failed: {wrong}{shown}")


# --- BuildKit ---------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True, kw_only=True)
class BuildKit:
    """A docker command line that can drive BuildKit, and how: `buildx` or `built-in`."""

    cli: Path
    via: str


def probe_buildkit(env: Mapping[str, str] | None = None) -> BuildKit | None:
    """Return the first docker command line that can drive BuildKit, or None.

    Before 23 it is built in (with DOCKER_BUILDKIT=1); from then on it needs the buildx plugin. So
    the second `docker` on PATH may do what the first cannot. The SDK never can.
    """
    environment = dict(os.environ if env is None else env)
    folders = [*environment.get("PATH", "").split(os.pathsep), "/usr/bin"]
    for folder in dict.fromkeys(folders):
        found = shutil.which("docker", path=folder) if folder else None
        if found is None:
            continue
        if _ask(found, "buildx", "version", env=environment) is not None:
            return BuildKit(cli=Path(found), via="buildx")
        version = _ask(
            found, "version", "--format", "{{.Client.Version}}", env=environment, ok=(0, 1)
        )
        major = re.match(r"(\d+)\.", version or "")
        if major and int(major[1]) < 23:
            return BuildKit(cli=Path(found), via="built-in")
    return None


def _ask(cli: str, *args: str, env: Mapping[str, str], ok: tuple[int, ...] = (0,)) -> str | None:
    """Return what a command prints; `version` ends with 1 when only the daemon is missing."""
    try:
        done = subprocess.run([cli, *args], capture_output=True, env=env, check=False, timeout=20)
    except (OSError, subprocess.TimeoutExpired):
        return None
    return done.stdout.decode("utf-8", "replace").strip() if done.returncode in ok else None
