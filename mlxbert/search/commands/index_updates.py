"""Brings an index up to date for a command, with progress and notes on what was left out; once, or until Ctrl-C."""

import math
import os
import shlex
import time
from collections import Counter
from collections.abc import Callable, Sequence
from contextlib import ExitStack, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from mlxbert.cli import session
from mlxbert.cli.shared_options import OutputOptions
from mlxbert.cli.views import console, rich
from mlxbert.errors import BusyError, InputError, MlxbertError
from mlxbert.mac_files import PRIVACY
from mlxbert.search import file_systems, views
from mlxbert.search.power import on_battery

if TYPE_CHECKING:
    from mlxbert.search.index import Index
    from mlxbert.search.update_events import Event, FileFailed, FileLeftOut, FileRead, IndexUpdated, Scanned

When = Literal["always", "plugged-in"]
_TICK = 500  # milliseconds between attempts at an update that another process blocks
_POWER_SECONDS = 30.0  # between looks at the power supply
_DOWNLOAD = "choose 'Download Now' in the Finder, then update the index again"
_SHOWN = 3  # guessed columns, or reasons of problems, in a note


@dataclass
class IndexUpdate:
    """The progress of an update of an index.

    `paths` are the paths to update, in the spelling of the index. `changed` says whether the update has modified the
    index. `read` has the paths of the files that the update has tried to read, `indexed` those of the files that it has
    written, and `removed` those of the files that it has removed.
    """

    paths: Sequence[str] = ()
    scanned: "Scanned | None" = None
    finished: "IndexUpdated | None" = None
    failed: "list[FileFailed]" = field(default_factory=list)
    left_out: "list[FileLeftOut]" = field(default_factory=list)
    guessed: "list[FileRead]" = field(default_factory=list)
    read: set[str] = field(default_factory=set)
    indexed: list[str] = field(default_factory=list)
    removed: list[str] = field(default_factory=list)
    changed: bool = False
    embedded: int = 0

    def add(self, event: "Event") -> None:
        from mlxbert.search import update_events

        match event:
            case update_events.Scanned():
                self.scanned = event
            case update_events.FileLeftOut():
                self.left_out.append(event)
            case update_events.FileFailed():
                self.failed.append(event)
                if self.scanned is not None:  # failures before the scan are from earlier updates
                    self.changed = True
                    self.read.add(event.path)
            case update_events.FileStarted():
                self.read.add(event.path)
            case update_events.FileIndexed() | update_events.FileRemoved():
                self.changed = True
                (self.indexed if isinstance(event, update_events.FileIndexed) else self.removed).append(event.path)
            case update_events.FileRead():
                self.guessed += [event] if event.guessed is not None else []
            case update_events.Embedded():
                self.embedded = event.chunks
            case update_events.IndexUpdated():
                self.finished = event

    @property
    def lacks_path(self) -> bool:
        """Whether an entry of `paths` itself was left out or could not be read."""
        unread = {event.path for event in self.left_out} | {event.path for event in self.failed}
        return not unread.isdisjoint(self.paths)

    @property
    def denied(self) -> str | None:
        """The first folder that macOS privacy settings do not let this program read, if any."""
        return next((event.path for event in self.left_out if event.reason == file_systems.FORBIDDEN), None)


def bring_up_to_date(index: "Index", paths: Sequence[str], out: OutputOptions) -> list[str]:
    """Updates an index before a search. If another process is updating it, the index is searched as it is.

    A path that cannot be read is reported each time, because its passages are as old as the last update that could
    read it.

    Returns:
        The files that earlier updates could not read; none if the index was not updated.
    """
    from mlxbert.search.index_stores import canonical_paths, covers

    roots = index.about.roots
    if not roots and not paths:  # it has only records that were added, which no file brings up to date
        return []
    if not index.store.writable and covers(index.about, canonical_paths(paths)) is not None:
        console.say("note", "the index is read-only, so its present state is searched")
        return []
    try:
        done = update_index(index, paths or None)
    except BusyError:
        console.say("note", "another process is updating this index, so the present state of the index is searched")
        return []
    finally:  # even if the update is interrupted: the paths are already added
        say_added(index, roots)
    if done.changed or done.lacks_path or out.verbose:
        report(index, done, out)
    check_read(done, paths)
    return [views.near(event.path) for event in done.failed if event.path not in done.read]


def say_added(index: "Index", before: Sequence[str]) -> None:
    """Prints a note if an index covers more paths than before."""
    if before and (added := [root for root in index.about.roots if root not in before]):
        console.say("note", f"the index now covers {' and '.join(map(views.near, added))}, too")


def with_others(index: "Index", paths: Sequence[str]) -> list[str]:
    """Returns paths to update, and the other paths that the index covers; notes say what happens to these."""
    from mlxbert.search.index_stores import canonical_paths, is_under

    named = canonical_paths(paths)
    others = [root for root in index.about.roots if not is_under(root, named)]
    for root in others:
        does = "brings up to date, too" if os.path.exists(root) else "leaves as it was, because it is missing"
        console.say("note", f"the index also covers {views.near(root)}, which this {does}")
    return [*paths, *filter(os.path.exists, others)]


class PowerWatch:
    """Says, when it is called, whether an update has to wait because the machine runs on battery.

    Args:
        when: When to update: `plugged-in`, or `always`.
    """

    def __init__(self, when: When) -> None:
        self._when = when
        self._waits, self._next = False, -math.inf

    def __call__(self) -> bool:
        """Looks at the power supply now and then; prints a note when the update begins to wait."""
        if self._when == "plugged-in" and time.monotonic() >= self._next:
            waited = self._waits
            try:
                self._waits = on_battery()
            except MlxbertError:
                if self._next == -math.inf:  # later, the last answer stands until there is another
                    raise
            self._next = time.monotonic() + _POWER_SECONDS
            if self._waits and not waited:
                console.say("note", "this machine runs on battery, so the update waits until it is plugged in")
        return self._waits


def update_index(index: "Index", paths: Sequence[str] | None, waits: Callable[[], bool] = lambda: False) -> IndexUpdate:
    """Updates an index, with a progress bar if anything has changed. After an interrupt, prints what is kept.

    Args:
        paths: What to update; `None` for everything that the index covers.
        waits: Whether to end the update before it is finished; what it has done is kept.
    """
    from mlxbert.search.index_stores import canonical_paths

    done = IndexUpdate(index.about.roots if paths is None else canonical_paths(paths))
    show: Callable[[Event], None] | None = None
    try:
        with ExitStack() as drawn:
            for event in index.update(paths):
                done.add(event)
                if show is None and done.scanned is not None and done.scanned.changed:
                    show = drawn.enter_context(views.index_update(done.scanned))
                if show is not None:
                    show(event)
                if done.finished is None and waits():
                    break
    except KeyboardInterrupt:
        if done.scanned is not None and done.scanned.changed:
            files = f"{len(done.indexed):,} of {console.counted(done.scanned.changed, 'file')}"
            vectors = console.counted(done.embedded, "vector")
            console.say("note", f"interrupted: {files} and {vectors} are kept; the same command continues")
        raise
    return done


def report(index: "Index", done: IndexUpdate, out: OutputOptions) -> None:
    """Prints notes about guessed columns, files that were left out, and other problems."""
    if done.guessed:
        listed = done.guessed if out.verbose else done.guessed[:_SHOWN]
        description = ", ".join(f"{views.near(event.path)}: {event.guessed}" for event in listed)
        more = f" and {len(done.guessed) - len(listed):,} more" * (listed != done.guessed)
        console.say(
            "note",
            f"text columns were guessed ({description}{more}); to choose others, make a new index with --text-column",
        )
    if done.left_out:
        reasons = Counter(event.reason for event in done.left_out)
        description = views.counted_reasons(dict(reasons.most_common()))
        console.say("note", f"left out: {description}{'' if out.verbose else '; --verbose lists the paths'}")
        if file_systems.IN_THE_CLOUD in reasons:
            console.say("note", f"files in the cloud are not downloaded; {_DOWNLOAD}")
    if done.denied is not None and done.finished is not None and done.finished.files:
        console.say("note", f"{views.near(done.denied)}: cannot be read; {PRIVACY}")
    _report_problems(index, done)
    if out.verbose:
        for path, reason in [(event.path, event.reason) for events in (done.left_out, done.failed) for event in events]:
            console.say("note", f"{views.near(path)}: {reason}")


def _report_problems(index: "Index", done: IndexUpdate) -> None:
    """Prints a note that counts the problems of the updated files by reason, except those that other notes count."""
    from mlxbert.search import index_stores
    from mlxbert.search.documents.table_documents import COLUMN_OF_TEXT

    named = {*done.read, *done.paths} - {event.path for event in done.left_out}  # which another note counts
    problems = [
        problem
        for problem in index.problems()
        if problem.path in named and not problem.reason.startswith(COLUMN_OF_TEXT)
    ]
    if len(problems) == 1 and problems[0].path is not None and not problems[0].more:
        one, place = problems[0], f", {problems[0].place}" * bool(problems[0].place)
        console.say("note", f"{views.near(problems[0].path)}{place} was {one.kind}: {one.reason}")
    elif problems:
        groups = views.summarized(problems)
        counts = "; ".join(f"{group['kind']}: {group['reason']} ({group['count']:,})" for group in groups[:_SHOWN])
        more = f"; {console.counted(len(groups) - _SHOWN, 'other reason')}" * (len(groups) > _SHOWN)
        path = done.paths[0]
        name = views.near(path) if index_stores.find_index([path]) == Path(index.path) else str(index.path)
        command = f"mlxbert indexes show {shlex.quote(name)} --problems"
        console.say("note", f"problems: {counts}{more}. To list them:", command)


def check_read(done: IndexUpdate, paths: Sequence[str]) -> None:
    """Raises an error if no file could be read."""
    from mlxbert.search.documents.table_documents import NO_COLUMN

    if done.finished is not None and not done.finished.files:
        if len(done.failed) == 1 and not done.left_out:
            path, reason = views.near(done.failed[0].path), done.failed[0].reason
            hint = "--text-column names the column of the texts" if reason.startswith(NO_COLUMN) else None
            raise InputError(f"{path}: {reason}", hint=hint)
        if not done.left_out and not done.failed:
            raise InputError(f"{' and '.join(paths) or 'the index'}: there are no files")
        hint = "--verbose lists what was left out, and why"
        if done.denied is not None:
            hint = PRIVACY
        elif done.left_out and all(event.reason == file_systems.IN_THE_CLOUD for event in done.left_out):
            hint = f"all files are in the cloud; {_DOWNLOAD}"
        raise InputError(f"{' and '.join(paths) or 'the index'}: no file could be read", hint=hint)


def summarize(index: "Index", done: IndexUpdate, out: OutputOptions, *, briefly: bool = False) -> None:
    """Prints the result of an update, or `briefly` what it changed, in a terminal on a line."""
    if done.finished is None:
        return
    facts: dict[str, Any] = {"index": str(index.path)}
    if briefly:
        facts |= _changes(done)
    else:
        facts |= {**vars(done.finished), "problems": views.summarized(index.problems())}
        del facts["failed"]  # these files are among the problems
    session.show_object(facts, lambda: [_line(done)] if briefly else views.draw_index(facts), out)


def _changes(done: IndexUpdate) -> dict[str, list[str]]:
    failed = [event.path for event in done.failed if event.path in done.read]
    return {"read": done.indexed, "not_readable": failed, "removed": done.removed}


def _line(done: IndexUpdate) -> rich.Text:
    """Returns the line that says which files an update has read and removed, and when."""
    what = []
    for does, paths in _changes(done).items():
        more = f" and {len(paths) - _SHOWN:,} more" * (len(paths) > _SHOWN)
        what += [f"{', '.join(map(views.near, paths[:_SHOWN]))}{more} {does.replace('_', ' ')}"] if paths else []
    return rich.Text(console.visible(f"{time.strftime('%H:%M:%S')}  {'; '.join(what)}"))


def watch_files(index: "Index", paths: Sequence[str], when: When, out: OutputOptions) -> None:
    """Updates an index whenever its files change. Watching starts before the first update, so no change is lost."""
    import watchfiles

    from mlxbert.search.index_stores import canonical_paths

    due, first, waits, covered = True, True, PowerWatch(when), index.about.roots
    roots = canonical_paths(with_others(index, paths))
    own_paths = tuple(canonical_paths(index.store.own_paths))
    changes = watchfiles.watch(
        *roots, rust_timeout=_TICK, yield_on_timeout=True, ignore_permission_denied=True,
        watch_filter=lambda _, path: not path.startswith(own_paths) and not is_hidden(path, roots),
    )  # fmt: skip
    for changed in changes:
        due = due or bool(changed)
        if not due or waits():
            continue
        try:
            done = update_index(index, roots, waits)
        except BusyError:  # try again at the next tick
            continue
        if first:
            say_added(index, covered)
            covered = index.about.roots  # the battery may break off this update, and so others be the first
            report(index, done, out)
            summarize(index, done, out)
        elif done.changed:
            _report_problems(index, done)
            summarize(index, done, out, briefly=True)
        due = done.finished is None
        first = first and due


def is_hidden(path: str, roots: Sequence[str]) -> bool:
    """Whether updates of an index skip a path because it is hidden, or lies in a hidden or skipped folder.

    Only the part of the path below the closest of `roots` counts. `.gitignore` does not count as hidden. On a Mac,
    `~/Library` is a skipped folder, in which files change all the time.
    """
    from mlxbert.search.file_walk import reason_to_skip
    from mlxbert.search.index_stores import is_under

    root = max((root for root in roots if is_under(path, [root])), key=len, default="").rstrip(os.sep)
    *folders, name = path[len(root) :].split(os.sep)
    if any(folder.startswith(".") for folder in folders) or (name.startswith(".") and name != ".gitignore"):
        return True
    for count in range(2, len(folders) + 1):
        folder = root + os.sep.join(folders[:count])
        with suppress(OSError):
            if reason_to_skip(folder, os.lstat(folder)) is not None:
                return True
    return False
