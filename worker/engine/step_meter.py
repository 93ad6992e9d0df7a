"""What each Step took, split over the tokens in it. Knows no tensors."""

from worker.engine.step import EngineStats, StepPlan


def charge(plan: StepPlan, stats: EngineStats, *, seconds: float, num_padding: int, num_rows: int) -> None:
    """Divide a Step's `seconds` evenly over its tokens and `num_padding` rows, and count both.

    A Sequence pays for its own tokens and, by their number, for a share of the padding. A token of the prompt
    is prefill also when it is computed again. `num_rows`: Sequences a Step has room for.
    """
    num_tokens = plan.num_tokens
    each = seconds / (num_tokens + num_padding)
    padding = each * num_padding / num_tokens
    for entry in plan.entries:
        sequence, count = entry.sequence, entry.num_tokens
        num_prefill = min(max(sequence.num_prompt_tokens - entry.start, 0), count)
        sequence.prefill_seconds += num_prefill * each
        sequence.decode_seconds += (count - num_prefill) * each
        sequence.padding_seconds += count * padding
        stats.prefill_seconds += num_prefill * each
        stats.decode_seconds += (count - num_prefill) * each
    stats.padding_seconds += num_padding * each
    stats.padding_tokens += num_padding
    stats.computed_tokens += num_tokens
    stats.scheduled_sequences += len(plan.entries)
    stats.sequence_rows += num_rows
