"""Turns prompts into interactive work, and reads what workers report of their engine."""

from collections.abc import Sequence

from api.batches.caching import default_cache
from api.dependencies import Services
from api.errors import NoWorkerError
from api.generate.schemas import GenerateBody, ModelInfoAnswer, PromptsBody
from api.inputs.prompts import fit
from api.inputs.sampling import to_params
from worker.contract.messages import GPU_QUEUE
from worker.store.batches.batches import NewBatch
from worker.store.requests.requests import NewRequest
from worker.store.watching import workers
from worker.values.caching import CacheMode
from worker.values.sampling import Optimization, SamplingParams


def to_batch(
    services: Services,
    fields: GenerateBody | PromptsBody,
    prompts: Sequence[str],
    *,
    max_tokens: int,
    optimization: Optimization = Optimization.FULL,
    cache: CacheMode | None = None,
) -> NewBatch:
    """Return a batch that continues the prompts; `cache=None` means the deployment's default.

    Raises:
        InvalidInputError: a field is wrong; `param` names it.

    """
    defaults = SamplingParams(max_tokens=max_tokens, optimization=optimization)
    params = to_params(fields, defaults, services.checkpoint)
    is_streamed = bool(getattr(fields, "stream", False))
    found = [
        NewRequest(
            prompt=prompt,
            max_tokens=params.max_tokens,
            is_streamed=is_streamed,
            timeout_seconds=fields.timeout_seconds,
        )
        for prompt in prompts
    ]
    fitted = fit(
        services.checkpoint,
        found,
        default=params,
        max_prompt_bytes=services.settings.max_prompt_bytes,
        name=lambda i: "prompt" if hasattr(fields, "prompt") else f"prompts[{i}]",
    )
    return NewBatch(
        params=params,
        requests=fitted,
        cache=cache or default_cache(services),
        model=services.checkpoint.model,
    )


def cache_of(optimization: Optimization) -> CacheMode:
    """Return the cache mode of an optimization level."""
    return CacheMode.EXACT if optimization is Optimization.FULL else CacheMode.OFF


def model_info(services: Services) -> ModelInfoAnswer:
    """Return the engine that runs, as live gpu workers report it.

    Raises:
        NoWorkerError: no gpu worker of this model is alive.

    """
    with services.store.transaction() as session:
        model = services.checkpoint.model
        found = workers.infos(session, GPU_QUEUE, model=model.fingerprint)
    if not found:
        raise NoWorkerError(f"No worker serves {model.label} now, so no engine runs.")
    info = found[0]
    return ModelInfoAnswer(
        model_name=info["name"],
        architecture=info["architecture"],
        # A worker of an older release reports its dtype only.
        quantization=", ".join(sorted({one.get("quantization", one["dtype"]) for one in found})),
        device=info["device"],
        batch_size=info["max_num_sequences"] * info.get("steps_at_once", 1),
        max_sequence_length=info["max_model_len"],
        num_parameters=info["num_parameters"],
        workers=len(found),
        details=info,
    )
