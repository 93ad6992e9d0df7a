"""Says which Results of a batch are new since a number, so that Postgres finds them without the others."""

from sqlalchemy import BigInteger, bindparam, literal

from worker.store.rows.requests import ResultRow

IS_OF_BATCH = ResultRow.batch_id == bindparam("of_batch")
# Postgres makes one plan for all numbers of a statement that runs often. Without an upper bound, it expects
# a third of the batch after any number, and reads all of it. This one leaves nothing out.
IS_NEW = (
    IS_OF_BATCH
    & (ResultRow.sequence > bindparam("num_before"))
    & (ResultRow.sequence <= literal(2**62, BigInteger))
)
