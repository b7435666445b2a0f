"""An interactive search in a terminal: it searches while the user types, and opens passages in an editor."""

import asyncio
import logging
import os
import shlex
import subprocess
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any

from mlxbert.cli.views import console
from mlxbert.cli.views.option_spelling import to_options
from mlxbert.errors import MlxbertError
from mlxbert.other_libraries import install_command
from mlxbert.search.views import HitList, near

if TYPE_CHECKING:
    from prompt_toolkit.application import Application
    from prompt_toolkit.formatted_text import StyleAndTextTuples

    from mlxbert.search.hit import Hit
    from mlxbert.search.index import Index

_PAUSE = 0.12  # seconds without a key after which a search begins
_ESCAPE = 0.05  # seconds after which Esc is not the beginning of another key
_KEYS = ("↑↓ Enter opens · Esc leaves", "Enter opens · Esc leaves", "Esc leaves", "Esc")  # as many as there is room for
_PLUS = ("vi", "vim", "nvim", "view", "nano", "pico", "emacs", "emacsclient", "kak", "joe", "micro")
_GOTO = ("code", "code-insiders", "codium", "cursor", "windsurf")


class SearchThread:
    """Searches on a thread of its own, so that typing never waits; an index and its model belong to one thread.

    Args:
        open_index: Opens the index; called on the thread.
    """

    def __init__(self, open_index: "Callable[[], Index]", find: "Callable[[Index, str], list[Hit]]") -> None:
        self._open, self._find = open_index, find
        self._index: Index | None = None
        self._latest = ""
        self._thread = ThreadPoolExecutor(1, "mlxbert-search")

    def warm_up(self) -> None:
        """Opens the index and loads its model in advance; a search reports what fails."""
        self._thread.submit(lambda: self._opened().model)

    async def search(self, query: str) -> "list[Hit] | None":
        """Returns the hits; `None` if another query came before the search began.

        Raises:
            MlxbertError: The search failed.
        """
        self._latest = query
        return await asyncio.get_running_loop().run_in_executor(self._thread, self._search, query)

    def _search(self, query: str) -> "list[Hit] | None":
        if query != self._latest:
            return None
        return self._find(self._opened(), query)

    def _opened(self) -> "Index":
        if self._index is None:
            self._index = self._open()
        return self._index

    def close(self) -> None:
        """Closes the index when the current search is finished."""
        self._latest = ""
        if self._index is not None:
            self._thread.submit(self._index.close)
        self._thread.shutdown()


class SearchScreen:
    """The line to type in, the list of hits, and a line about the keys.

    Args:
        options: Options of the application, such as its input and output; by default, the terminal.
    """

    def __init__(self, thread: SearchThread, **options: Any) -> None:
        self.list, self._thread = HitList(message="type to search"), thread
        self.app = self._make_app(options)
        self._waiting: asyncio.Task[None] | None = None

    def run(self) -> "Hit | None":
        """Shows the screen until the user leaves; returns the hit whose place is to be printed, if any."""
        self._thread.warm_up()
        with _log_into(self.list), suppress(EOFError):  # the terminal is gone
            return self.app.run()
        return None

    def _make_app(self, options: dict[str, Any]) -> "Application[Hit | None]":
        from prompt_toolkit.application import Application
        from prompt_toolkit.buffer import Buffer
        from prompt_toolkit.layout import BufferControl, FormattedTextControl, HSplit, Layout, Window
        from prompt_toolkit.layout.processors import BeforeInput

        self._buffer = Buffer(multiline=False, on_text_changed=lambda _: self._typed())
        field = BufferControl(self._buffer, input_processors=[BeforeInput("search: ", "bold")])
        layout = HSplit([
            Window(field, height=1),
            Window(FormattedTextControl(self._listed), wrap_lines=False, always_hide_cursor=True),
            Window(FormattedTextControl(self._status), height=1),
        ])  # fmt: skip
        app: Application[Hit | None] = Application(
            layout=Layout(layout), key_bindings=self._keys(), full_screen=True, **options
        )
        app.ttimeoutlen = app.timeoutlen = _ESCAPE
        return app

    def _keys(self) -> Any:
        from prompt_toolkit.key_binding import KeyBindings
        from prompt_toolkit.keys import Keys

        keys = KeyBindings()
        steps = {"up": -1, "c-p": -1, "down": 1, "c-n": 1, "pageup": -5, "pagedown": 5}
        for key, step in steps.items():
            keys.add(key)(lambda _, step=step: self.list.move(step))
        keys.add("enter")(lambda _: self._chosen())
        keys.add(Keys.BracketedPaste)(lambda event: self._buffer.insert_text(" ".join(event.data.split())))
        for key in ("escape", "c-c", "c-d"):
            keys.add(key)(lambda _: self._leave(None))
        return keys

    def _leave(self, hit: "Hit | None") -> None:
        if not self.app.is_done:  # several keys may come together
            self.app.exit(result=hit)

    def _listed(self) -> "StyleAndTextTuples":
        size = self.app.output.get_size()
        lines = self.list.lines(size.columns, max(size.rows - 2, 1))
        return [fragment for line in lines for fragment in (*line, ("", "\n"))]

    def _status(self) -> "StyleAndTextTuples":
        columns = self.app.output.get_size().columns
        message = console.line(self.list.message)
        keys = next((keys for keys in _KEYS if len(message) + len(keys) + 2 <= columns), _KEYS[-1])
        return [("dim", f"{message[: max(columns - len(keys) - 2, 0)]}  {keys}")]

    def _typed(self) -> None:
        if self._waiting is not None:
            self._waiting.cancel()
        self._waiting = self.app.create_background_task(self._search(self._buffer.text))

    async def _search(self, query: str) -> None:
        await asyncio.sleep(_PAUSE)
        if not self.list.hits:
            self.list.message = "searching …" if query.strip() else ""
            self.app.invalidate()
        try:
            hits = await self._thread.search(query) if query.strip() else []
        except MlxbertError as problem:
            hits, self.list.message = None, to_options(problem.message)
        if hits is not None and query == self._buffer.text:
            self.list.show(query, hits)
        self.app.invalidate()

    def _chosen(self) -> None:
        """Opens the selected hit in the user's editor; without an editor or a file, leaves with the hit."""
        if not self.list.hits:
            return
        hit = self.list.hits[self.list.selected]
        if hit.path is None or not os.environ.get("EDITOR", "").strip():
            self._leave(hit)
        else:
            self.app.create_background_task(self._edit(hit.path, self.list.line_of(hit)))

    async def _edit(self, path: str, line: int | None) -> None:
        from prompt_toolkit.application import run_in_terminal

        problem = await run_in_terminal(lambda: open_in_editor(os.environ["EDITOR"], path, line))
        self.list.message = problem or self.list.message


def open_in_editor(editor: str, path: str, line: int | None) -> str:
    """Opens a file in an editor, and waits until the editor ends; returns what went wrong, if anything.

    Args:
        editor: The command of the editor, perhaps with options.
        line: The line to show, for editors that are known to take one.
    """
    if not os.path.exists(path):
        return f"{near(path)}: the file is gone"
    try:
        status = subprocess.run(editor_command(editor, path, line), check=False).returncode
    except (OSError, ValueError) as problem:
        return f"EDITOR is {editor!r}, which cannot be started ({problem})"
    return f"{editor} ended with status {status}" if status else ""


def editor_command(editor: str, path: str, line: int | None) -> list[str]:
    """Returns the command that opens a file in an editor; raises ValueError if the editor's quotes are unbalanced."""
    words = shlex.split(editor)
    name = Path(words[0]).stem
    if line is not None and name in _PLUS:
        return [*words, f"+{line}", path]
    if line is not None and name in _GOTO:
        return [*words, "--goto", f"{path}:{line}"]
    return [*words, path]


@contextmanager
def _log_into(hits: HitList) -> Iterator[None]:
    """Shows the library's log in the list's message, since lines on stderr would destroy the screen."""

    class Messages(logging.Handler):
        def emit(self, record: logging.LogRecord) -> None:
            hits.message = to_options(record.getMessage())

    log = logging.getLogger("mlxbert")
    before, log.handlers = log.handlers, [Messages()]
    try:
        yield
    finally:
        log.handlers = before


def require_package() -> None:
    """Raises an error if the package that draws the screen is not installed."""
    try:
        import prompt_toolkit  # noqa: F401
    except ImportError:
        hint = f"{install_command('interactive')}, or give a query: mlxbert search QUERY PATH"
        raise MlxbertError("the package prompt_toolkit is not installed", hint=hint) from None
