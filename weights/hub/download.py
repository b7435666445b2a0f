"""Models of the Hugging Face hub: downloads into the shared cache, and their removal, through huggingface_hub.

Only what a model needs is fetched. Files are fetched one after the other in the caller's thread, so that an interrupt
ends the work at once: the pool of threads of `snapshot_download` would first finish the files that it has begun.
"""

import glob
import logging
import warnings
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

from mlxbert.errors import HubError, MlxbertError
from mlxbert.weights.hub import cache
from mlxbert.weights.hub.errors import explain
from mlxbert.weights.hub.files import leaves_folder, needed_files, parse_json

TIMEOUT = 10.0  # seconds for the first answer, as huggingface_hub gives the other requests
_LOG = logging.getLogger("mlxbert")

OnProgress = Callable[[int, int], None]


@contextmanager
def library(name: str, revision: str | None) -> Iterator[Any]:
    """The module huggingface_hub, hushed, with its errors made ours.

    It would talk on stderr on its own: about retries, about tokens, about links that a disk does not have.

    Raises:
        HubError: Something in the body failed; it says what to do next.
    """
    log = logging.getLogger("huggingface_hub")
    level: int | None = None
    try:
        with warnings.catch_warnings(action="ignore"):
            import huggingface_hub
            import huggingface_hub.utils.logging  # sets the level of its log, which is then to be set back

            level = log.level
            log.setLevel(logging.CRITICAL)
            yield huggingface_hub
    except MlxbertError:
        raise
    except Exception as problem:  # huggingface_hub lets errors of four libraries through
        _LOG.info("%s: %s: %s", name, type(problem).__name__, problem)
        raise explain(problem, name, revision) from None
    finally:
        if level is not None:
            log.setLevel(level)


def _counter(count: Callable[[int], None]) -> type:
    """A progress bar that draws nothing and counts the bytes written; of the two bars per file the other is ignored."""
    from huggingface_hub.utils.tqdm import tqdm

    class Counter(tqdm):
        monitor_interval = 0  # no thread to watch over it

        def __init__(self, *args: Any, **options: Any) -> None:
            self._counted = options.get("unit") == "B" and not str(options.get("name")).endswith(".transfer")
            super().__init__(*args, **options | {"disable": True})
            self.update(options.get("initial") or 0)

        def update(self, n: float | None = 1) -> None:
            if self._counted:
                count(int(n or 0))

    return Counter


class _Progress:
    """Bytes of several files added up and told to whoever listens."""

    def __init__(self, total: int, listen: OnProgress | None) -> None:
        self.total, self.listen, self.done = total, listen or (lambda done, total: None), 0
        self.listen(0, total)

    def add(self, count: int) -> None:
        self.done = max(0, min(self.total, self.done + count))
        self.listen(self.done, self.total)


def _files(name: str, info: Any) -> dict[str, int]:
    """The files of a commit and their sizes, as the hub lists them.

    Raises:
        HubError: The answer names no commit, or a file that would be written somewhere else than its folder.
    """
    if not isinstance(info.sha, str) or not cache.is_commit(info.sha):
        raise HubError(f"{name}: the hub says that its commit is {info.sha!r:.60}, expected 40 hexadecimal digits")
    sizes = {str(file.rfilename): int(file.size or 0) for file in info.siblings or ()}
    for file in sizes:
        if leaves_folder(file):
            raise HubError(
                f"{name}: the repository lists a file {file!r}, which lies outside of its folder; nothing was written",
                hint="do not trust this repository",
            )
    return sizes


class Commit:
    """A commit of a model on the hub, and the files of it that the model needs.

    Attributes:
        hash: Its hash.
        folder: Where the cache keeps its files.
        sizes: The bytes of every file on the hub.
        needed: The files that the model needs, small ones first; those that steer the choice are in the cache now.
    """

    def __init__(self, hub: Any, name: str, revision: str | None) -> None:
        """Asks the hub what the revision means now.

        Args:
            hub: The module huggingface_hub, as `library` gives it.
            name: `ORG/NAME`.
            revision: Branch, tag or commit; the main branch if `None`.
        """
        info = hub.HfApi().model_info(name, revision=revision, files_metadata=True, timeout=TIMEOUT)
        self.sizes = _files(name, info)
        self.hash: str = info.sha
        self.folder = cache.repository_folder(name) / "snapshots" / self.hash
        self._hub, self._name = hub, name
        self.needed = needed_files(name, self.sizes, lambda file: parse_json(name, self._fetch(file)), self.has)

    def has(self, file: str) -> bool:
        """Whether a file is in the cache."""
        return (self.folder / file).is_file()

    def _fetch(self, file: str, count: Callable[[int], None] = lambda count: None) -> Path:
        options = {"revision": self.hash, "cache_dir": cache.cache_folder(), "tqdm_class": _counter(count)}
        return Path(self._hub.hf_hub_download(self._name, file, **options))

    def fetch(self, files: Iterable[str], on_progress: OnProgress | None) -> None:
        """Brings files into the cache, those that are not there yet."""
        missing = [file for file in files if not self.has(file)]
        if missing:
            progress = _Progress(sum(self.sizes[file] for file in missing), on_progress)
            for file in missing:
                self._fetch(file, progress.add)
            progress.add(progress.total)


def download(name: str, revision: str | None = None, on_progress: OnProgress | None = None) -> Path:
    """Brings the files of a model that are needed into the shared cache, those that are not there yet.

    Always asks the hub what the revision means now.

    Args:
        name: `ORG/NAME`.
        revision: Branch, tag or commit; the main branch if `None`.
        on_progress: Called with bytes done and bytes in all as files arrive; not called when all are there.

    Returns:
        The folder of the snapshot.

    Raises:
        HubError: The model cannot be had; see `explain` for the kinds.
        ArgumentError: The revision is none.
    """
    cache.check_revision(revision)
    with library(name, revision) as hub:
        commit = Commit(hub, name, revision)
        commit.fetch(commit.needed, on_progress)
        # All files are there: this writes down what the revision means, and the list of files that the commit has.
        folder = Path(
            hub.snapshot_download(
                name,
                revision=revision,
                cache_dir=cache.cache_folder(),
                allow_patterns=[glob.escape(file) for file in commit.needed],
                tqdm_class=_counter(lambda count: None),
            )
        )
    # A branch may have moved in between; the commit that it moved to cannot.
    return folder if folder.name == commit.hash else download(name, folder.name, on_progress)


class Removal:
    """What leaves the shared cache when a model does, worked out but not done yet.

    Attributes:
        folder: The folder that goes, or that of the model where other commits stay.
        commits: The hashes of the commits that go.
        size: How many bytes that frees; files that commits which stay share are not counted.
    """

    def __init__(self, name: str, revision: str | None) -> None:
        """Works it out.

        Raises:
            HubError: The model, or this revision of it, is not in the cache.
        """
        self.name, self.revision = name, revision
        snapshot = cache.find_snapshot(name, revision) if revision is not None else None
        found = [snapshot] if snapshot else list(cache.snapshots(name)) if revision is None else []
        if not found:
            at = "" if revision is None else f" at revision {revision!r}"
            raise HubError(f"{name}: not in the cache{at}", hint="`mlxbert models list` shows what is there")
        self.commits = [snapshot.commit for snapshot in found]
        repository = cache.repository_folder(name)
        with library(name, revision) as hub:
            scanned = hub.scan_cache_dir(cache.cache_folder())
            for known in scanned.repos:
                if known.repo_type == "model" and known.repo_path.name == repository.name:
                    break
            else:
                raise HubError(f"{name}: huggingface_hub finds {repository} damaged", hint="delete that folder")
            # A copy of a repository has the commits of the original: the others must be out of sight.
            self._strategy = replace(scanned, repos=frozenset({known})).delete_revisions(*self.commits)
        self.size = int(self._strategy.expected_freed_size)
        self.folder = repository if self._strategy.repos else found[0].folder

    def execute(self) -> None:
        """Does it.

        Raises:
            HubError: A folder is still there.
        """
        with library(self.name, self.revision):
            self._strategy.execute()
        left = [commit for commit in self.commits if cache.find_snapshot(self.name, commit)]
        if left:
            raise HubError(f"{self.folder}: cannot be removed", hint="check who owns the folder")
