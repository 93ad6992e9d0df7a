"""Reads which other model is to run a share of a batch's requests too, unseen by the customer."""

from typing import Annotated

from pydantic import Field
from sqlalchemy.orm import Session

from api.batches.reassigning import choose
from api.dependencies import Services
from api.errors import ConflictError, InvalidInputError, NotFoundError
from api.inputs.schema import NonEmptyText, Schema
from worker.contract.states import ExperimentMode
from worker.quality.comparison import RESOLUTION
from worker.store.batches.batches import NewBatch
from worker.store.experiments import experiments
from worker.store.experiments.experiments import NewExperiment, NothingToCompareError
from worker.store.requests import batch_models

PARAM, SHARE = "experiment.model", "experiment.share"
MOST_SPLIT = 0.5
Fraction = Annotated[float, Field(strict=False, allow_inf_nan=False)]


class ExperimentFields(Schema):
    """Another model that runs a share of the requests too, or in place of the batch's own."""

    model: Annotated[NonEmptyText, Field(max_length=512)] = Field(
        description="one that a live worker serves: its name, or name@ and the beginning of its revision"
    )
    mode: Annotated[ExperimentMode, Field(strict=False)] = Field(
        default=ExperimentMode.SHADOW,
        description="shadow: the other model's results are compared and never returned; ab: it runs them in"
        " place of the batch's model, and each result names the model that made it",
    )
    share: Annotated[Fraction, Field(gt=0, le=1)] = Field(
        default=0.1,
        description="of the requests; in mode ab at most 0.5, as each is compared with another one",
    )
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
    if len(batch_models.of_requests(batch.requests, batch.model)) > 1:
        raise several_models()
    longest = max(request.num_prompt_tokens + request.max_tokens for request in batch.requests)
    tokenizer = None if batch.model is None else batch.model.tokenizer
    with services.store.look() as session:
        return check_new(session, services, given, tokenizer, longest)


def check_new(
    session: Session, services: Services, given: ExperimentFields, tokenizer: str | None, longest: int
) -> NewExperiment:
    """Return the experiment that a new batch asks for; raises as `check_experiment` does."""
    if given.mode is ExperimentMode.AB and given.share > MOST_SPLIT:
        raise InvalidInputError(
            f"{SHARE}: must be at most {MOST_SPLIT} in mode ab", param=SHARE, code="invalid_value"
        )
    return check_experiment(session, services, given, tokenizer, longest, param=PARAM)


def check_experiment(
    session: Session,
    services: Services,
    given: ExperimentFields,
    tokenizer: str | None,
    longest: int,
    *,
    param: str = "model",
) -> NewExperiment:
    """Return an experiment on requests that `tokenizer` has counted, of at most `longest` tokens.

    `param` is the name by which a refusal calls the field of the other model.

    Raises:
        InvalidInputError: no such model is served, or it cannot run these requests.

    """
    try:
        target = choose(session, services.checkpoint, given.model)
    except (NotFoundError, ConflictError) as error:
        raise InvalidInputError(f"{param}{error.message.removeprefix('model')}", param=param) from error
    if target.model.tokenizer != tokenizer:
        raise InvalidInputError(
            f"{param}: {target.model.label} has another tokenizer or chat template than the batch's model",
            param=param,
            code="invalid_value",
        )
    if longest > target.context:
        raise InvalidInputError(
            f"{param}: a request may have {longest} tokens, but the context of {target.model.label} is"
            f" {target.context} tokens",
            param=param,
            code="context_length_exceeded",
        )
    return NewExperiment(target.model, given.share, given.allowed_loss, given.resolution, given.mode)


def start_experiment(session: Session, batch_id: str, new: NewExperiment, *, shard_size: int) -> None:
    """Start an experiment on a batch that this transaction has submitted.

    Raises:
        InvalidInputError: none of its requests can take part; the transaction must not be committed.

    """
    try:
        experiments.start(session, batch_id, new, shard_size=shard_size)
    except NothingToCompareError as error:
        raise nothing_to_compare() from error


def several_models() -> InvalidInputError:
    """Return the error for an experiment on a new batch whose requests name several models."""
    return InvalidInputError(
        f"{PARAM}: the requests name several models; an experiment is on a batch of one",
        param=PARAM,
        code="invalid_value",
    )


def nothing_to_compare() -> InvalidInputError:
    """Return the error for an experiment in which no request can take part."""
    return InvalidInputError(
        "experiment: too few requests generate a text without a tool endpoint, so there is nothing to"
        " compare; in mode ab, there must be two that differ",
        param="experiment",
    )
