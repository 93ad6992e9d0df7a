"""Defines `headrace training-text`: what a tenant lets drafts be trained on."""

import json
from typing import Annotated

import typer

from api.cli.commands.administration import administration, note
from api.cli.show import fail
from worker.store.requests import training_texts

PAGE = 500


def training_text(
    batches: Annotated[list[str], typer.Argument(metavar="BATCH...", help="Batches of one tenant.")],
) -> None:
    """Print the prompts of batches with their outputs, as text that a draft model can be trained on.

    Each line is JSON with a `text`. The tenant must allow it: `headrace tenants set NAME --reuse`. Works
    on the database of this machine.
    """
    try:
        with administration() as session:
            tenant = training_texts.owner(session, batches)
            for batch_id in batches:
                note(session, "training.export", batch_id, tenant=tenant)
    except training_texts.TrainingError as error:
        fail(str(error))
    for batch_id in batches:
        after = -1
        while True:
            with administration() as session:
                found = training_texts.page(session, batch_id, after=after, limit=PAGE)
            for position, texts in found:
                after = position
                for text in texts:
                    typer.echo(json.dumps({"text": text}))
            if not found:
                break
