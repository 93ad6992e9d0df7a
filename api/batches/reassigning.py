"""Reassigns an unfinished batch to another model, if its requests keep their meaning and fit there."""

from dataclasses import dataclass, replace

from pydantic import BaseModel, ConfigDict, Field
from sqlalchemy.orm import Session

from api.dependencies import Services
from api.errors import ConflictError, InvalidInputError, NotFoundError
from api.inputs.checkpoint import Checkpoint
from api.inputs.prompts import fit
from worker.contract.messages import GPU_QUEUE
from worker.contract.models import Model
from worker.store.shards import reassigning
from worker.store.shards.reassigning import Fitted
from worker.store.tenants import audit
from worker.store.watching import workers
from worker.values.sampling import SamplingParams

AT_ONCE = 500
SHARED = SamplingParams()  # requests read from a batch carry their own parameters


class Reassignment(BaseModel):
    """The model that is to run a batch."""

    model_config = ConfigDict(extra="forbid")

    model: str = Field(
        min_length=1,
        max_length=512,
        description="one that this API or a live worker serves: its name, or name@ and the beginning of its"
        " revision",
    )


@dataclass(frozen=True, slots=True)
class Target:
    """A model that a batch may be reassigned to, with its context in tokens."""

    model: Model
    context: int


def reassign(services: Services, batch_id: str, wanted: str, *, actor: str) -> None:
    """Have the model `wanted`, as `name` or `name@fingerprint`, run a batch's requests without a result.

    Raises:
        NotFoundError: no such batch, or no such model is served.
        ConflictError: the batch has ended, several models have this name, or the requests mean something
            else to the model.
        InvalidInputError: a request does not fit the model's context; nothing was changed.

    """
    with services.store.transaction() as session:
        reassign_in(session, services, batch_id, wanted, actor=actor)


def reassign_in(session: Session, services: Services, batch_id: str, wanted: str, *, actor: str) -> None:
    """Do the same in an open transaction."""
    bound = reassigning.lock(session, batch_id)
    if bound is None:
        raise NotFoundError(f"There is no batch {batch_id}.", param="batch_id")
    if bound.is_over:
        raise ConflictError(f"{batch_id} has ended, or is about to end.")
    if bound.is_mixed and bound.is_unread:
        raise ConflictError(f"{batch_id} names several models, and its file is still being read. Try again.")
    target = choose(session, services.checkpoint, wanted)
    checkpoint = services.checkpoint.of(target.model.fingerprint)
    more = 0
    if checkpoint is not None:
        if bound.tokenizers != {target.model.tokenizer}:
            _check_meaning(session, batch_id, target)
        more = _recount(session, services, checkpoint, batch_id)
    elif bound.tokenizers != {target.model.tokenizer}:
        raise ConflictError(
            f"{target.model.label} has another tokenizer, so the prompts of {batch_id} must be counted"
            " again. Ask an API that serves this model.",
            code="other_tokenizer",
        )
    elif (longest := reassigning.longest(session, batch_id)) > target.context:
        raise InvalidInputError(
            f"model: a request of {batch_id} may have {longest} tokens, but the context of"
            f" {target.model.label} is {target.context} tokens",
            param="model",
            code="context_length_exceeded",
        )
    reassigning.rebind(session, batch_id, target.model, more_output_tokens=more)
    details = {"from": bound.label, "to": target.model.label}
    audit.record(session, actor, "batch.reassign", batch_id, details, tenant_id=bound.tenant_id)


def choose(session: Session, checkpoint: Checkpoint, wanted: str) -> Target:
    """Return the one model that `wanted` names and that this API or a live worker serves."""
    targets = {one.model.fingerprint: Target(one.model, one.max_model_len) for one in checkpoint.served}
    for info in workers.infos(session, GPU_QUEUE):
        if "model_fingerprint" in info:
            model = Model(info["name"], info["model_fingerprint"], info["model_tokenizer"])
            targets.setdefault(model.fingerprint, Target(model, info["max_model_len"]))
    name, _, digits = wanted.partition("@")
    found = [
        target
        for fingerprint, target in targets.items()
        if target.model.name == name and fingerprint.startswith(digits)
    ]
    served = ", ".join(sorted(target.model.label for target in targets.values()))
    if not found:
        raise NotFoundError(
            f"model: no worker serves {wanted!r}. These models are served: {served}.", param="model"
        )
    if len(found) > 1:
        raise ConflictError(
            f"model: {wanted!r} may mean any of {served}. Add more of the revision after `@`.", param="model"
        )
    return found[0]


def _check_meaning(session: Session, batch_id: str, target: Target) -> None:
    reason = reassigning.bound_to_tokens(session, batch_id)
    if reason is not None:
        raise ConflictError(
            f"{batch_id} has {reason}: {target.model.label} has another tokenizer or chat template",
            code="other_tokenizer",
        )


def _recount(session: Session, services: Services, checkpoint: Checkpoint, batch_id: str) -> int:
    """Count prompts by a served model's tokenizer; return how many more tokens the batch may generate."""
    reassigning.cut_uncounted(session, batch_id, most=checkpoint.max_model_len - 1)
    more, after = 0, -1
    while found := reassigning.counted(session, batch_id, after=after, limit=AT_ONCE):
        positions = [one.position for one in found]
        fitted = fit(
            checkpoint,
            [one.request for one in found],
            default=SHARED,
            max_prompt_bytes=services.settings.max_prompt_bytes,
            name=lambda i, positions=positions: f"request {positions[i]}",  # type: ignore[misc]
        )
        for old, new in zip(found, fitted, strict=True):
            before = replace(new, max_tokens=old.max_tokens)
            more += new.max_output_tokens(SHARED) - before.max_output_tokens(SHARED)
        reassigning.fit(
            session,
            [
                Fitted(old.id, new.num_prompt_tokens, new.max_tokens)
                for old, new in zip(found, fitted, strict=True)
            ],
        )
        after = positions[-1]
    return more
