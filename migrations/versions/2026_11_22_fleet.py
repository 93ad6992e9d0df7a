"""A result may wait for its number, so that a save does not wait for its batch's lock.

Numbers that exist stay. There is no way back while a result waits.
"""

import sqlalchemy as sa
from alembic import op

revision = "0020_fleet"
down_revision = "0023_reasoning"
branch_labels = None
depends_on = None


def upgrade() -> None:
    # A migration that waits for a lock makes everyone behind it wait: give up early and run it again.
    op.execute("SET LOCAL lock_timeout = '5s'")
    op.alter_column("results", "sequence", existing_type=sa.BigInteger(), nullable=True)
    op.create_index(
        "results_uncounted_index", "results", ["batch_id"], postgresql_where=sa.text("sequence IS NULL")
    )


def downgrade() -> None:
    op.execute("SET LOCAL lock_timeout = '5s'")
    # The release before cannot count a result that is stored already.
    op.execute("""
        DO $$ BEGIN
            IF EXISTS (SELECT FROM results WHERE sequence IS NULL) THEN
                RAISE EXCEPTION 'some results are not counted yet'
                    USING HINT = 'Stop the workers, let a dispatcher run for a few seconds, and try again.';
            END IF;
        END $$
    """)
    op.drop_index("results_uncounted_index", table_name="results")
    op.alter_column("results", "sequence", existing_type=sa.BigInteger(), nullable=False)
