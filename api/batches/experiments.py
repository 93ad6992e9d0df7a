"""Reads which other model is to run a share of a batch's requests too, unseen by the customer."""

from typing import Annotated

from pydantic import Field
from sqlalchemy.orm import Session

from api.batches.reassigning import choose
from api.dependencies import Services
from api.errors import ConflictError, InvalidInputError, NotFoundError
from api.inputs.schema import NonEmptyText, Schema
from worker.quality.comparison import RESOLUTION
from worker.store.batches.batches import NewBatch
from worker.store.experiments import experiments
from worker.store.experiments.experiments import NewExperiment, NothingToCompareError

PARAM = "experiment.model"
Fraction = Annotated[float, Field(strict=False, allow_inf_nan=False)]


class ExperimentFields(Schema):
    """Another model that runs a share of the requests too. Its results are compared, and never returned."""

    model: Annotated[NonEmptyText, Field(max_length=512)] = Field(
        description="one that a live worker serves: its name, or name@ and the beginning of its revision"
    )
    share: Annotated[Fraction, Field(gt=0, le=1)] = Field(default=0.1, description="of the requests")
    allowed_loss: Annotated[Fraction, Field(ge=0, le=0.5)] = Field(
        default=0.0, description="the share of right outputs that the other model may have less"
    )
    resolution: Annotated[Fraction, Field(ge=0.001, le=0.5)] = Field(
        default=RESOLUTION, description="the loss beyond the allowed one that should be found"
    )


def to_experiment(
    services: Services, batch: NewBatch, given: ExperimentFields | None
) -> NewExperiment | None:
    """Return the experiment to start with a batch; None if none is asked for.

    Raises:
        InvalidInputError: no such model is served, or it cannot run these requests.

    """
    if given is None:
        return None
    with services.store.look() as session:
        try:
            target = choose(session, services.checkpoint, given.model)
        except (NotFoundError, ConflictError) as error:
            raise InvalidInputError(f"experiment.{error.message}", param=PARAM) from error
    if batch.model is None or target.model.tokenizer != batch.model.tokenizer:
        raise InvalidInputError(
            f"{PARAM}: {target.model.label} has another tokenizer or chat template than the batch's model",
            param=PARAM,
            code="invalid_value",
        )
    longest = max(request.num_prompt_tokens + request.max_tokens for request in batch.requests)
    if longest > target.context:
        raise InvalidInputError(
            f"{PARAM}: a request may have {longest} tokens, but the context of {target.model.label} is"
            f" {target.context} tokens",
            param=PARAM,
            code="context_length_exceeded",
        )
    return NewExperiment(target.model, given.share, given.allowed_loss, given.resolution)


def start_experiment(session: Session, batch_id: str, new: NewExperiment, *, shard_size: int) -> None:
    """Start an experiment on a batch that this transaction has submitted.

    Raises:
        InvalidInputError: none of its requests can take part; the transaction must not be committed.

    """
    try:
        experiments.start(session, batch_id, new, shard_size=shard_size)
    except NothingToCompareError as error:
        raise InvalidInputError(
            "experiment: no request generates a text without a tool endpoint, so there is nothing to compare",
            param="experiment",
        ) from error
