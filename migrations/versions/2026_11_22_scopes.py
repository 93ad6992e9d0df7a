"""The scope `deployment`, apart from a tenant's `admin`; whose key or tenant an audited act concerns.

Keys with `admin` keep what they could do where they are the operator's own, of the tenant `default`. Those of
other tenants can administer their tenant from now on, and no longer all.
"""

import sqlalchemy as sa
from alembic import op

revision = "0010_scopes"
down_revision = "0009_models"
branch_labels = None
depends_on = None


def upgrade() -> None:
    # A migration that waits for a lock makes everyone behind it wait: give up early and run it again.
    op.execute("SET LOCAL lock_timeout = '5s'")
    op.execute("""
        UPDATE api_keys SET scopes = scopes || 'deployment'::text
        WHERE 'admin' = ANY (scopes) AND tenant_id = 'default'
    """)
    op.add_column("audit_log", sa.Column("tenant_id", sa.Text(), server_default="default", nullable=False))
    # What names no tenant, and a key that nobody knows any more, is no tenant's to see.
    op.execute("""
        UPDATE audit_log SET tenant_id = CASE
            WHEN act LIKE 'tenant.%' THEN target
            ELSE coalesce(
                details ->> 'tenant',
                (SELECT tenant_id FROM api_keys WHERE prefix = audit_log.target),
                (SELECT tenant_id FROM batches WHERE id = audit_log.target),
                ''
            )
        END
    """)
    op.create_index(op.f("audit_log_tenant_id_id_index"), "audit_log", ["tenant_id", "id"])


def downgrade() -> None:
    op.execute("SET LOCAL lock_timeout = '5s'")
    op.drop_index(op.f("audit_log_tenant_id_id_index"), table_name="audit_log")
    op.drop_column("audit_log", "tenant_id")
    # To the release before `admin` means the deployment: only keys that may have that keep it.
    op.execute("""
        UPDATE api_keys SET scopes = array_remove(array_remove(scopes, 'admin'), 'deployment')
            || CASE WHEN 'deployment' = ANY (scopes) THEN ARRAY['admin'] ELSE ARRAY[]::text[] END
        WHERE scopes && ARRAY['admin', 'deployment']
    """)
