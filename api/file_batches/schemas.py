"""Defines the bodies of /v1/batches in OpenAI's format. Times are Unix seconds."""

from datetime import datetime
from typing import Annotated, Literal, Self

from pydantic import BaseModel, BeforeValidator, Field, model_validator

from api.batches.experiments import ExperimentFields
from api.batches.schemas import (
    Counts,
    InputTokensDetails,
    MaxFailed,
    MaxTotalTokens,
    Window,
)
from api.batches.starts import StartAfter
from api.buckets.locations import MAX_URI_CHARACTERS
from api.errors import LineError
from api.files.lines import to_path
from api.files.schemas import ExpiresAfter
from api.inputs.caching import Cache, CacheTtl, Similarity
from api.inputs.labels import Metadata, Name
from api.inputs.schema import JsonObject, NonEmptyText, Priority, Schema, Text
from worker.contract.states import BatchStatus, FilesStage
from worker.store.batches.batch_views import BatchView
from worker.store.files.file_batch_views import BatchFilesView, FileBatchView

Uri = Annotated[NonEmptyText, Field(max_length=MAX_URI_CHARACTERS)]
Status = Literal[
    "validating", "failed", "in_progress", "finalizing", "completed", "expired", "cancelling", "cancelled"
]


class TableFields(Schema):
    """How the rows of a table become requests."""

    prompt: NonEmptyText = Field(
        description="With names of columns in braces: `Label: {text}`. `{*}` stands for all columns that are"
        " used nowhere else, as a JSON object."
    )
    reorder_fields: bool = Field(
        default=False,
        description="Lets the fields of `{*}` come in any order, another one in each row, so that prompts"
        " begin alike and are computed faster.",
    )
    custom_id: NonEmptyText | None = Field(
        default=None, description="The column of unique ids. Default: row-0, row-1, and so on."
    )
    keep: Annotated[list[NonEmptyText], Field(max_length=1000)] | None = Field(
        default=None,
        description="Columns that come back as metadata beside the results. Default: every column that no"
        " prompt has.",
    )
    system: Text | None = Field(default=None, description="The system message, for chats.")
    body: JsonObject = Field(
        default_factory=dict, description="What every request has beside its prompt, such as max_tokens."
    )


class FileBatchSubmission(Schema):
    """A batch to make from an uploaded file, or from an object in a bucket."""

    input_file_id: Annotated[NonEmptyText, Field(max_length=64)] | None = None
    input_uri: Uri | None = Field(
        default=None,
        description="Instead of input_file_id: an object in a bucket that the operator allows, such as"
        " s3://BUCKET/rows.jsonl. It is read before the answer. `.csv` and `.parquet` are tables.",
    )
    table: TableFields | None = None
    output_uri: Uri | None = Field(
        default=None,
        description="Where the results are written too, in the order of the requests, before the batch has"
        " ended: an object in such a bucket, as JSON lines, CSV or Parquet by its suffix. `{batch_id}` stands"
        " for the batch's id.",
    )
    endpoint: Annotated[
        Literal["/v1/chat/completions", "/v1/completions", "/v1/embeddings", "/v1/responses"],
        BeforeValidator(to_path),
        Field(description="Of all lines. In a file that mixes endpoints, each line goes to its own `url`."),
    ]
    completion_window: Window
    name: Name | None = Field(default=None, description="Default: the `name` in `metadata`.")
    metadata: Metadata | None = None
    start_after: StartAfter | None = None
    output_expires_after: ExpiresAfter | None = None
    callback_url: NonEmptyText | None = Field(
        default=None, description="Called once when the batch has ended."
    )
    priority: Priority = 0
    max_failed: MaxFailed | None = None
    max_total_tokens: MaxTotalTokens | None = None
    cache: Cache | None = None
    cache_similarity: Similarity | None = None
    cache_ttl_seconds: CacheTtl | None = None
    experiment: ExperimentFields | None = Field(
        default=None,
        description="It begins when the file is read, and ends then if no line can take part.",
    )

    @model_validator(mode="after")
    def _has_one_input(self) -> Self:
        if (self.input_file_id is None) == (self.input_uri is None):
            raise ValueError("must have either input_file_id or input_uri")
        if self.table is not None and self.input_uri is None:
            raise ValueError("must have input_uri to have table")
        return self


class Errors(BaseModel):
    """The errors that made a batch fail, line by line."""

    object: Literal["list"] = "list"
    data: list[LineError]


class OutputTokensDetails(BaseModel):
    """Details of the output tokens."""

    reasoning_tokens: int


class BatchUsage(BaseModel):
    """Tokens of the requests that have a result, by the model's tokenizer."""

    input_tokens: int
    input_tokens_details: InputTokensDetails
    output_tokens: int
    output_tokens_details: OutputTokensDetails
    total_tokens: int


class FileBatch(BaseModel):
    """The current state of a batch made from a file."""

    id: str
    object: Literal["batch"] = "batch"
    endpoint: str
    model: str | None
    errors: Errors | None
    input_file_id: str
    input_uri: str | None = None
    input_etag: str | None = Field(default=None, description="of the object at input_uri, as it was read")
    output_uri: str | None = None
    output_error: str | None = Field(
        default=None, description="why the last try to write to output_uri failed; it is tried for an hour"
    )
    completion_window: str
    status: Status
    output_file_id: str | None
    error_file_id: str | None
    created_at: int
    in_progress_at: int | None
    expires_at: int | None
    finalizing_at: int | None
    completed_at: int | None
    failed_at: int | None
    expired_at: int | None
    cancelling_at: int | None
    cancelled_at: int | None
    request_counts: Counts
    usage: BatchUsage
    name: str | None = None
    start_after: int | None = None
    experiment_id: str | None = Field(default=None, description="of its report, at /v1/experiments/{id}")
    metadata: dict[str, str] | None


class FileBatchList(BaseModel):
    """Batches, the newest first. Pass `last_id` as `after` to read on."""

    object: Literal["list"] = "list"
    data: list[FileBatch]
    first_id: str | None
    last_id: str | None
    has_more: bool


def to_file_batch(found: FileBatchView) -> FileBatch:
    """Return a batch as the client sees it."""
    view, its = found.batch, found.files
    status = _status(view, its)
    ended_at = {status: its.written_at or view.finished_at}
    return FileBatch(
        id=view.id,
        endpoint=its.endpoint,
        model=view.model_name,
        errors=_errors(view, its),
        input_file_id=its.input_file_id,
        input_uri=its.input_uri,
        input_etag=its.input_etag,
        output_uri=its.output_uri,
        output_error=its.output_error,
        completion_window=its.completion_window,
        status=status,
        output_file_id=its.output_file_id,
        error_file_id=its.error_file_id,
        created_at=int(view.created_at.timestamp()),
        in_progress_at=_seconds(min(filter(None, (view.started_at, its.read_at)), default=None)),
        expires_at=_seconds(view.expires_at),
        finalizing_at=None if _was_never_run(view, its) else _seconds(view.finished_at),
        completed_at=_seconds(ended_at.get("completed")),
        failed_at=_seconds(ended_at.get("failed")),
        expired_at=_seconds(ended_at.get("expired")),
        cancelling_at=_seconds(its.cancelled_at),
        cancelled_at=_seconds(ended_at.get("cancelled")),
        request_counts=Counts.model_validate(view),
        usage=BatchUsage(
            input_tokens=view.input_tokens,
            input_tokens_details=InputTokensDetails(cached_tokens=view.cached_tokens),
            output_tokens=view.output_tokens,
            output_tokens_details=OutputTokensDetails(reasoning_tokens=view.reasoning_tokens),
            total_tokens=view.input_tokens + view.output_tokens,
        ),
        name=view.name,
        start_after=_seconds(view.start_after),
        experiment_id=view.experiment_id,
        metadata=view.metadata or None,
    )


def _status(view: BatchView, its: BatchFilesView) -> Status:
    """Return OpenAI's name of the status. For its customer, a batch has ended when its files exist."""
    match view.status:
        case BatchStatus.PENDING:
            return "validating" if its.stage is FilesStage.READING else "in_progress"
        case BatchStatus.PROCESSING:
            return "in_progress"
        case BatchStatus.CANCELLING:
            return "cancelling"
        case BatchStatus.COMPLETED:
            return "completed" if its.stage is FilesStage.DONE else "finalizing"
        case BatchStatus.EXPIRED:
            return "expired" if its.stage is FilesStage.DONE else "finalizing"
        case BatchStatus.CANCELLED:
            return "cancelled" if its.stage is FilesStage.DONE else "cancelling"
        case BatchStatus.FAILED:
            return "failed" if its.stage is FilesStage.DONE else "finalizing"


def _errors(view: BatchView, its: BatchFilesView) -> Errors | None:
    if its.errors is not None:
        return Errors(data=[LineError(**error) for error in its.errors])
    if view.error_code is None:
        return None
    return Errors(data=[LineError(code=view.error_code, message=view.error_message or "")])


def _was_never_run(view: BatchView, its: BatchFilesView) -> bool:
    return view.status is BatchStatus.FAILED and its.stage is FilesStage.DONE and its.written_at is None


def _seconds(time: datetime | None) -> int | None:
    return None if time is None else int(time.timestamp())
