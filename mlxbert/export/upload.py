"""`mlxbert.upload`: publishes the folder of a model on the Hugging Face hub, and checks what arrived.

Only files that the model needs are sent, with its card and its licenses. Records of the training, checkpoints, logs and
everything else in the folder stay on this machine.

huggingface_hub transfers the files. Large files are sent one after another in the thread of the caller, so that an
interrupt takes effect at once; they become visible only with the commit, which also holds the small files. A repository
that was empty before therefore never shows a part of a model. (`upload_folder` makes several commits, and leaves out
what the repository's own gitignore names.)
"""

import json
import os
import re
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Literal

from mlxbert.durable_files import sha256, to_path
from mlxbert.errors import ArgumentError, CheckpointError, HubError
from mlxbert.export.verify import exported_file
from mlxbert.folders.atomic_folder import MANIFEST, MARKER
from mlxbert.folders.copied_files import CARD, LICENSES, is_own
from mlxbert.folders.inspect import inspect
from mlxbert.mac_files import is_system_file
from mlxbert.progress import OnProgress
from mlxbert.results.result import Shown
from mlxbert.version import __version__
from mlxbert.weights.formats.file_names import ONNX, holds_weights
from mlxbert.weights.hub import cache
from mlxbert.weights.hub.cache import AnnouncedFile, is_commit, mismatch
from mlxbert.weights.hub.download import describe
from mlxbert.weights.hub.errors import CACHED, LOG_IN, UnreachableError, explain_download, library, refused
from mlxbert.weights.hub.needed_files import CONFIG, needed_files, parse_json
from mlxbert.weights.model_source import BUILTIN, check_source

Change = Literal["new", "changed", "same"]
_MAIN = "main"
_TEXTS = (".json", ".md", ".txt", ".jinja")
_PATH = re.compile(r"(?<![\w.:/-])/[\w.-]+(?:/[\w.-]+)+")  # an absolute path without spaces
_FRONT_MATTER = re.compile(r"\s*---[\r\n]+\S[\s\S]*?[\r\n]---\s*?(?:[\r\n]|$)")
_CONVERT = "repeat the conversion"
_EXPORTS = (".onnx", ".onnx_data")  # the suffixes of files next to `ONNX`
_MAX_TEXT = 2**20  # bytes of a file that is searched for paths
_RESUME = "try again; large files that have arrived are not sent again"
_CHANGED = ("the repository was changed during the upload", _RESUME)
_REFUSED = ("the hub refuses the upload", None)
_REFUSALS = {  # what a status says about an upload, and a hint
    400: _REFUSED,
    401: ("the hub refuses the token", LOG_IN),
    402: _REFUSED,
    403: (
        "the token may not write to this repository",
        f"{LOG_IN} with a token that can write, and check the namespace",
    ),
    404: (
        "the hub has no such namespace or repository, or the token may not see it",
        "check the spelling, and which repositories the token is for",
    ),
    409: _CHANGED,
    412: _CHANGED,
    413: (
        "the hub refuses a file because it is too large",
        "write the model in smaller files: `mlxbert.convert(FOLDER, NEW, max_shard_size='5GB')`",
    ),
    422: _REFUSED,
}


@dataclass(frozen=True)
class UploadedFile(Shown):
    """A file of an upload.

    Attributes:
        path: The path in the folder and in the repository.
        bytes: The size in bytes.
        change: Whether the repository lacks the file (`new`), has another file of this path (`changed`), or has the
            same file, which is not sent (`same`).
    """

    path: str
    bytes: int
    change: Change


@dataclass(frozen=True)
class Upload(Shown):
    """What an upload sends, or has sent.

    Attributes:
        name: The name of the repository on the hub, `NAMESPACE/NAME`.
        url: The address of its page.
        revision: The branch.
        public: Whether everybody can read the repository.
        created: Whether the upload creates the repository.
        commit: The hash of the commit; `None` before the upload.
        bytes: The total size of the files to send, in bytes.
        files: The files of the model.
        kept: Other files of the repository, which remain in it.
        left_out: Files and folders in the model's folder that are not sent.
        notes: What a reader of the repository may see that its author did not intend.
    """

    name: str
    url: str
    revision: str
    public: bool
    created: bool
    commit: str | None
    bytes: int
    files: tuple[UploadedFile, ...]
    kept: tuple[str, ...]
    left_out: tuple[str, ...]
    notes: tuple[str, ...]


@dataclass(frozen=True)
class Repository:
    """A repository on the hub, as it is before an upload."""

    name: str  # `NAMESPACE/NAME`
    url: str  # the address of its page
    branch: str  # the branch that gets the commit
    has_branch: bool = False  # if not, the branch is created from `commit`
    public: bool | None = None  # whether everybody can read it; `None` if it does not exist
    commit: str | None = None  # the newest of the branch, or else of the main branch; `None` if it does not exist
    listed: Mapping[str, AnnouncedFile] = field(default_factory=dict)  # the files of `commit`


@dataclass(frozen=True)
class UploadPlan:
    """An upload that was checked and can be executed."""

    upload: Upload  # what is sent
    target: Repository = field(repr=False)
    folder: Path  # the folder of the model
    message: str  # the message of the commit

    def execute(self, on_progress: OnProgress | None = None) -> Upload:
        """Creates what is missing and sends the files that the branch lacks; returns the upload with its commit."""
        target, name = self.target, self.target.name
        files = {file.path: self.folder / file.path for file in self.upload.files if file.change != "same"}
        with _hub_for(name) as hub:
            if target.commit is None:
                hub.HfApi().create_repo(name, private=not self.upload.public)
            if not target.has_branch and target.branch != _MAIN:
                hub.HfApi().create_branch(name, branch=target.branch, revision=target.commit)
            sizes = {path: file.stat().st_size for path, file in files.items()}
        if not files:
            return replace(self.upload, commit=target.commit)
        listen = on_progress or (lambda done, total: None)
        done, total, additions = 0, sum(sizes.values()), []
        for path, file in files.items():
            listen(done, total)
            with _hub_for(name, bars=on_progress is None) as hub, file.open("rb"):  # says why it cannot be read
                addition = hub.CommitOperationAdd(path, str(file))
                # An empty gitignore, since huggingface_hub silently leaves out what the repository's own one names.
                options = {"revision": target.branch, "free_memory": False, "gitignore_content": ""}
                hub.HfApi().preupload_lfs_files(name, [addition], **options)
            additions.append(addition)
            done += sizes[path]
        with _hub_for(name) as hub:
            options = {"commit_message": self.message, "revision": target.branch, "parent_commit": target.commit}
            commit = str(hub.HfApi().create_commit(name, additions, **options).oid)
            _, listed = describe(hub, name, commit)
            unlike = [(path, _difference(file, listed.get(path))) for path, file in files.items()]
        if wrong := [(path, what) for path, what in unlike if what is not None]:
            raise HubError(
                f"{name}: commit {commit} is not what was sent: {wrong[0][0]} {wrong[0][1]}",
                hint="check that no program changes the files, then upload them again",
            )
        listen(done, total)
        return replace(self.upload, commit=commit)


def upload(
    folder: str | Path,
    name: str,
    *,
    public: bool = False,
    revision: str | None = None,
    message: str | None = None,
    dry_run: bool = False,
    on_progress: OnProgress | None = None,
) -> Upload:
    """Uploads the folder of a model to the Hugging Face hub, in one commit.

    Only the files that the model needs are sent, with its files in ONNX, `README.md` and licenses; the result lists
    what is left out. An existing repository gets a new commit, and its other files remain. After the upload, the hashes
    that the hub states are compared with the files. The token is that of `HF_TOKEN` or of `hf auth login`.

    Example:
        >>> mlxbert.upload("my-model", "my-name/my-model").url

    Args:
        folder: The folder of a model or of an adapter, in a format that `mlxbert.load` reads; or a folder that
            `mlxbert.convert` wrote with `to="onnx"`.
        name: The name of the repository: `NAMESPACE/NAME`, or `NAME` in your own namespace.
        public: Whether everybody may read the repository. The visibility of an existing repository is not changed, and
            must be the one that is asked for.
        revision: The branch; by default the main branch. A branch that does not exist is created from the main
            branch.
        message: The message of the commit.
        dry_run: Whether to send nothing. The hub is still asked what the repository has.
        on_progress: Called before and after each file with the number of sent bytes and the total. If it is `None`,
            huggingface_hub draws its bars in a terminal or a notebook.

    Raises:
        ArgumentError: The folder has no complete model, or its card is damaged; or the repository has another
            visibility.
        HubError: The hub refuses the upload or cannot be reached, or does not have the files that were sent; or a file
            cannot be read.
    """
    plan = plan_upload(folder, name, public=public, revision=revision, message=message)
    if dry_run:
        return plan.upload
    return plan.execute(on_progress)


def plan_upload(
    folder: str | Path, name: str, *, public: bool = False, revision: str | None = None, message: str | None = None
) -> UploadPlan:
    """Checks a folder and asks the hub what the repository has; nothing is sent. See `upload` for the arguments."""
    _check_name(name, revision)
    if message is not None and (not isinstance(message, str) or not message.strip()):
        raise ArgumentError(f"`message` is {message!r:.60}, expected a sentence about the upload")
    source = _finished_folder(folder)
    paths = _files(source)
    notes = (*_card_notes(source), *_path_notes(source, paths))
    target = find_repository(name, revision)
    if target.public and not public:
        raise ArgumentError(
            f"{target.name}: everybody can read this repository, expected a private one",
            hint="`public=True` uploads to a public repository",
        )
    if public and target.public is False:
        raise ArgumentError(
            f"{target.name}: is private, and an upload does not change that",
            hint=f"change it in {target.url}/settings, or upload without `public=True`",
        )
    files = tuple(
        UploadedFile(path, (source / path).stat().st_size, _change(source / path, target.listed.get(path)))
        for path in paths
    )
    planned = Upload(
        name=target.name, url=target.url, revision=target.branch, public=public, created=target.commit is None,
        commit=None, bytes=sum(file.bytes for file in files if file.change != "same"), files=files,
        kept=tuple(sorted({*target.listed} - {*paths})), left_out=tuple(_left_out(source, {*paths})),
        notes=notes,
    )  # fmt: skip
    return UploadPlan(planned, target, source, message or f"Upload with mlxbert {__version__}")


def _check_name(name: object, revision: str | None) -> None:
    """Raises `ArgumentError` if a repository cannot have this name, or if the revision cannot be a branch."""
    if not isinstance(name, str) or not cache.is_hub_name(name):
        raise ArgumentError(f"`name` is {name!r:.100}, expected the name of a repository on the hub: NAMESPACE/NAME")
    cache.check_revision(revision)
    if is_commit(revision):
        raise ArgumentError(f"`revision` is {revision!r}, a commit, expected a branch")


def _finished_folder(folder: str | Path) -> Path:
    """Returns the path of a folder that no program is writing, or raises an error."""
    check_source(folder, "folder")
    source = to_path(folder, "folder")
    if str(folder) == BUILTIN and not source.is_dir():
        raise ArgumentError(f"`folder` is {BUILTIN!r}, the built-in model, expected the folder of a model of yours")
    if not source.is_dir():
        raise ArgumentError(f"{source}: is not a folder, expected the folder of a model")
    if (source / MARKER).exists() or (source.name.endswith(".partial") and (source / "runs").is_dir()):
        raise ArgumentError(
            f"{source}: is unfinished, expected a finished model", hint="repeat the command that writes it"
        )
    return source


def _files(source: Path) -> list[str]:
    """Returns the paths of the files to send, small files first; raises an error if the model is not complete."""
    present = [path for path in _listed(source) if not is_system_file(Path(path).name)]
    needed = _exported_files(source, present) or _model_files(source, present)
    texts = [path.name for pattern in (CARD, *LICENSES) for path in sorted(source.glob(pattern)) if path.is_file()]
    paths = [*dict.fromkeys([*texts, *needed])]
    for path in paths:
        if not is_own(source / path, source):
            raise ArgumentError(
                f"{source / path}: is a link to {(source / path).resolve()}, outside the folder of the model",
                hint="put a copy of the file into the folder if it may be published",
            )
    return paths


def _model_files(source: Path, present: list[str]) -> list[str]:
    """Returns the files that a model needs, then its files in ONNX."""
    inspection = inspect(source)  # raises an error if a file is missing, damaged or does not fit the configuration
    if not inspection.weights.here:
        raise ArgumentError(f"{source}: the weights are not in this folder")
    try:
        needed = needed_files(str(source), present, lambda file: parse_json(str(source), source / file))
    except HubError as problem:  # about a file that a configuration names
        raise CheckpointError(problem.message) from None
    folders = [path.removesuffix(CONFIG) + ONNX.partition("/")[0] for path in needed if Path(path).name == CONFIG]
    inside = [path for path in present if path.endswith(_EXPORTS) and path.rpartition("/")[0] in folders]
    return [*needed, *inside]


def _exported_files(source: Path, present: list[str]) -> list[str]:
    """Returns the files that `convert` wrote with `to="onnx"`; none if the folder has the weights of its encoder.

    All files but the card and licenses must be as they were written.
    """
    exported = exported_file(source)
    if exported is None:
        return []
    if any(holds_weights(Path(path).name) for path in present if (source / path).parent == exported.parents[1]):
        return []
    written = parse_json(str(source), source / MANIFEST)["written"]
    for path, hash in written.items():
        if any(map(Path(path).match, (CARD, *LICENSES))):
            continue
        if path not in present:
            raise ArgumentError(f"{source / path}: is missing, but mlxbert wrote it", hint=_CONVERT)
        if sha256(source / path) != hash:
            raise ArgumentError(f"{source / path}: has changed since mlxbert wrote it", hint=_CONVERT)
    return sorted(written.keys() & {*present}, key=lambda path: (source / path).stat().st_size)


def _listed(source: Path) -> list[str]:
    return sorted(path.relative_to(source).as_posix() for path in source.rglob("*") if path.is_file())


def _card_notes(source: Path) -> list[str]:
    """Returns a note if there is no card or no front matter; raises `ArgumentError` if front matter cannot be read."""
    from huggingface_hub import ModelCard

    card, unseen = source / CARD, "so the hub shows neither a license nor the task"
    if not card.is_file():
        return [f"there is no {CARD}, {unseen}"]
    try:
        text = card.read_text(encoding="utf-8-sig")
        if _FRONT_MATTER.match(text) is None:  # `ModelCard` would log a warning
            return [f"{CARD} has no front matter, {unseen}"]
        ModelCard(text)
        return []
    except Exception as problem:  # errors of PyYAML, of huggingface_hub and of the system
        reason = " ".join(str(problem).split())[:200]
        raise ArgumentError(f"{card}: the front matter cannot be read ({reason})") from None


def _change(file: Path, known: AnnouncedFile | None) -> Change:
    if known is None:
        return "new"
    return "changed" if known.hash is None or mismatch(file, known) is not None else "same"


def _difference(file: Path, known: AnnouncedFile | None) -> str | None:
    """Says how a file on the hub differs from the one that was sent; `None` if it does not."""
    file.stat()  # `mismatch` takes a file that has disappeared for one of the cache
    if known is None:
        return "is missing on the hub"
    return "has no hash on the hub" if known.hash is None else mismatch(file, known)


def _left_out(source: Path, sent: set[str]) -> list[str]:
    """Returns the files that are not sent; a folder without any file to send is one entry."""
    found: dict[str, None] = {}
    for path in _listed(source):
        if path in sent or is_system_file(Path(path).name):
            continue
        parts = path.split("/")
        folders = ("/".join(parts[:depth]) + "/" for depth in range(1, len(parts)))
        whole = (folder for folder in folders if not any(file.startswith(folder) for file in sent))
        found[next(whole, path)] = None
    return [*found]


def _path_notes(source: Path, paths: list[str]) -> list[str]:
    """Returns a note for each text file that names a path of this machine."""
    notes = []
    for path in paths:
        file = source / path
        if path.endswith(_TEXTS) and file.stat().st_size <= _MAX_TEXT:
            named = _PATH.findall(file.read_text(encoding="utf-8", errors="replace"))
            if (name := next((name for name in named if os.path.exists(name)), None)) is not None:
                notes.append(f"{path} names {name}, a path of this machine")
    return notes


@contextmanager
def _hub_for(name: str, *, bars: bool = False) -> Iterator[Any]:
    """Yields the module huggingface_hub, with errors that fit an upload, and with its bars if `bars` is set."""
    with library(name, None, _explain) as hub:
        if not hub.get_token():
            raise HubError(f"{name}: an upload needs a token of the hub, but there is none", hint=LOG_IN)
        silenced = not bars and not hub.utils.are_progress_bars_disabled()
        if silenced:
            hub.utils.disable_progress_bars()
        try:
            yield hub
        finally:
            if silenced:
                hub.utils.enable_progress_bars()


def _explain(problem: Exception, name: str, revision: str | None) -> HubError:
    """Returns the error to raise instead of an exception of huggingface_hub during an upload, without the token."""
    import huggingface_hub

    while isinstance(problem, RuntimeError) and isinstance(problem.__cause__, Exception):
        problem = problem.__cause__  # huggingface_hub only says which file it could not send
    error = explain_download(problem, name, revision)
    if isinstance(problem, huggingface_hub.errors.HfHubHTTPError):
        status = problem.response.status_code
        if status in _REFUSALS and not isinstance(error, UnreachableError):
            what, hint = _REFUSALS[status]
            error = HubError(f"{name}: {what} ({refused(problem)})", hint=hint)
    elif isinstance(problem, ValueError) and not isinstance(problem, json.JSONDecodeError):  # about the card, usually
        reason = " ".join(str(problem).split()) or type(problem).__name__
        error = HubError(f"{name}: the hub refuses the upload ({reason:.500})")
    elif isinstance(problem, OSError) and problem.errno is not None:  # an upload writes no file
        error = HubError(f"{problem.filename or f'{name}, a file'}: cannot be read ({problem.strerror})")
    hint = f"check the network and {_RESUME}" if CACHED in (error.hint or "") else error.hint
    return HubError(error.message.replace(huggingface_hub.get_token() or "\0", "…"), hint=hint)


def find_repository(name: str, revision: str | None) -> Repository:
    """Asks the hub who the user is and what the repository holds; a `name` without a namespace is in the user's own."""
    with _hub_for(name) as hub:
        user = hub.HfApi().whoami()
        if ((user.get("auth") or {}).get("accessToken") or {}).get("role") == "read":
            raise HubError(
                f"{name}: the token of {user['name']} can only read", hint=f"{LOG_IN} with a token that can write"
            )
        if "/" not in name:
            name = f"{user['name']}/{name}"
            _check_name(name, revision)
        url, branch = f"{hub.constants.ENDPOINT}/{name}", revision or _MAIN
        try:
            info, listed = describe(hub, name, None)
        except hub.errors.GatedRepoError:
            raise
        except hub.errors.RepositoryNotFoundError:
            return Repository(name, url, branch)
        public, has_branch = info.private is False, True
        if revision is not None:
            try:
                info, listed = describe(hub, name, revision)
            except hub.errors.RevisionNotFoundError:
                has_branch = False
        return Repository(name, url, branch, has_branch, public, info.sha, listed)
