"""`mlxbert models upload`: sends the folder of a model to the Hugging Face hub."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from mlxbert.cli import session
from mlxbert.cli.shared_options import OutputOptions
from mlxbert.cli.views import console, progress
from mlxbert.errors import ArgumentError
from mlxbert.export import views
from mlxbert.option_declarations import Option

if TYPE_CHECKING:
    from mlxbert.export.upload import Upload


def models_upload(
    out: OutputOptions,
    folder: Annotated[
        Path, typer.Argument(metavar="FOLDER", help="Folder of a model or an adapter.", show_default=False)
    ],
    name: Annotated[
        str,
        typer.Argument(
            metavar="NAME", help="Name on the hub: NAMESPACE/NAME, or NAME in your own namespace.", show_default=False
        ),
    ],
    public: Annotated[bool, Option("Let everybody read it. Asks first, unless --yes is given.")] = False,
    revision: Annotated[str | None, Option("Branch, by default main. It is created if it does not exist.")] = None,
    message: Annotated[str | None, Option("Message of the commit.", "TEXT")] = None,
    dry_run: Annotated[bool, Option("List what would be sent, and send nothing.")] = False,
    yes: Annotated[bool, Option("Make it public without asking.", short="-y")] = False,
) -> None:
    """Upload a model folder to the Hugging Face hub, in one commit.

    Only the files that the model needs are sent, with README.md and licenses. They are listed first, and compared with
    the hub's hashes afterwards. A new repository is private. An existing one gets a new commit; its other files remain.
    Set HF_TOKEN or run `hf auth login` before.

    Example: mlxbert models upload my-model my-name/my-model
    """
    from mlxbert.export.upload import plan_upload

    plan = plan_upload(folder, name, public=public, revision=revision, message=message)
    for note in plan.upload.notes:
        console.say("note", note)
    done = plan.upload
    if not dry_run:
        _show_files(done)
        _confirm(done, yes)
        with progress.upload(done.name) as update:
            done = plan.execute(None if console.may_draw() else update)  # huggingface_hub draws bars
    facts = done.to_dict()
    session.show_object(facts, lambda: views.draw_upload(facts, listed=dry_run), out)


def _show_files(upload: "Upload") -> None:
    """Lists on stderr what will be sent and what not: as a table in a terminal, otherwise in a note."""
    facts = upload.to_dict()
    if not console.may_draw():
        console.say("note", views.summary_of(facts))
        return
    screen = console.stderr()
    for part in views.draw_files(facts):
        screen.print(part)


def _confirm(upload: "Upload", yes: bool) -> None:
    """Asks the user before something becomes public; ends the command if the answer is no."""
    if not upload.public or yes:
        return
    if not console.can_ask():
        raise ArgumentError(
            f"{upload.name}: making {console.size(upload.bytes)} public needs a confirmation in a terminal",
            hint="--yes makes it public without asking",
        )
    if not console.ask(f"let everybody read {upload.url}?"):
        console.say("note", "nothing was sent")
        raise typer.Exit(0)
