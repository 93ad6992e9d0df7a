"""Files, uploads, and the files of batches."""

import sqlalchemy as sa
from alembic import op
from sqlalchemy.dialects import postgresql

revision = "0003_files"
down_revision = "0002_request_kinds"
branch_labels = None
depends_on = None


def upgrade() -> None:
    # See 0001: give up early and run it again.
    op.execute("SET LOCAL lock_timeout = '5s'")
    op.create_table(
        "files",
        sa.Column("id", sa.Text(), nullable=False),
        sa.Column("tenant_id", sa.Text(), server_default="default", nullable=False),
        sa.Column("purpose", sa.Text(), nullable=False),
        sa.Column("filename", sa.Text(), nullable=False),
        sa.Column("sha256", sa.Text(), nullable=False),
        sa.Column("num_bytes", sa.BigInteger(), nullable=False),
        sa.Column("num_lines", sa.BigInteger(), nullable=True),
        sa.Column("endpoint", sa.Text(), nullable=True),
        sa.Column("model", sa.Text(), nullable=True),
        sa.Column("created_at", sa.DateTime(timezone=True), server_default=sa.text("now()"), nullable=False),
        sa.Column("expires_at", sa.DateTime(timezone=True), nullable=True),
        sa.PrimaryKeyConstraint("id", name=op.f("files_pkey")),
    )
    op.create_index(
        op.f("files_tenant_id_created_at_id_index"), "files", ["tenant_id", "created_at", "id"], unique=False
    )
    op.create_index(
        "files_expiring_index",
        "files",
        ["expires_at"],
        unique=False,
        postgresql_where=sa.text("expires_at IS NOT NULL"),
    )
    op.create_index(op.f("files_sha256_index"), "files", ["sha256"], unique=False)
    op.create_table(
        "uploads",
        sa.Column("id", sa.Text(), nullable=False),
        sa.Column("tenant_id", sa.Text(), server_default="default", nullable=False),
        sa.Column(
            "status",
            sa.Enum(
                "pending",
                "completed",
                "cancelled",
                "expired",
                name="status",
                native_enum=False,
                create_constraint=True,
                length=32,
            ),
            nullable=False,
        ),
        sa.Column("purpose", sa.Text(), nullable=False),
        sa.Column("filename", sa.Text(), nullable=False),
        sa.Column("mime_type", sa.Text(), nullable=False),
        sa.Column("num_bytes", sa.BigInteger(), nullable=False),
        sa.Column("file_lifetime_seconds", sa.BigInteger(), nullable=True),
        sa.Column("file_id", sa.Text(), nullable=True),
        sa.Column("created_at", sa.DateTime(timezone=True), server_default=sa.text("now()"), nullable=False),
        sa.Column("expires_at", sa.DateTime(timezone=True), nullable=False),
        sa.PrimaryKeyConstraint("id", name=op.f("uploads_pkey")),
    )
    op.create_index(
        "uploads_pending_index",
        "uploads",
        ["expires_at"],
        unique=False,
        postgresql_where=sa.text("status IN ('pending')"),
    )
    op.create_table(
        "batch_files",
        sa.Column("batch_id", sa.Text(), nullable=False),
        sa.Column(
            "stage",
            sa.Enum(
                "reading",
                "running",
                "done",
                name="stage",
                native_enum=False,
                create_constraint=True,
                length=32,
            ),
            nullable=False,
        ),
        sa.Column("endpoint", sa.Text(), nullable=False),
        sa.Column("input_file_id", sa.Text(), nullable=False),
        sa.Column("completion_window", sa.Text(), nullable=False),
        sa.Column("output_lifetime_seconds", sa.BigInteger(), nullable=True),
        sa.Column("output_file_id", sa.Text(), nullable=True),
        sa.Column("error_file_id", sa.Text(), nullable=True),
        sa.Column("errors", postgresql.JSONB(astext_type=sa.Text()), nullable=True),
        sa.Column("fence", sa.BigInteger(), server_default="0", nullable=False),
        sa.Column("read_offset", sa.BigInteger(), server_default="0", nullable=False),
        sa.Column("due_at", sa.DateTime(timezone=True), server_default=sa.text("now()"), nullable=False),
        sa.Column("read_at", sa.DateTime(timezone=True), nullable=True),
        sa.Column("written_at", sa.DateTime(timezone=True), nullable=True),
        sa.ForeignKeyConstraint(
            ["batch_id"], ["batches.id"], name=op.f("batch_files_batch_id_batches_fkey"), ondelete="CASCADE"
        ),
        sa.PrimaryKeyConstraint("batch_id", name=op.f("batch_files_pkey")),
    )
    op.create_index(op.f("batch_files_input_file_id_index"), "batch_files", ["input_file_id"], unique=False)
    op.create_index(
        "batch_files_open_index",
        "batch_files",
        ["due_at"],
        unique=False,
        postgresql_where=sa.text("stage IN ('reading', 'running')"),
    )
    op.create_table(
        "upload_parts",
        sa.Column("id", sa.Text(), nullable=False),
        sa.Column("upload_id", sa.Text(), nullable=False),
        sa.Column("sha256", sa.Text(), nullable=False),
        sa.Column("num_bytes", sa.BigInteger(), nullable=False),
        sa.Column("created_at", sa.DateTime(timezone=True), server_default=sa.text("now()"), nullable=False),
        sa.ForeignKeyConstraint(
            ["upload_id"],
            ["uploads.id"],
            name=op.f("upload_parts_upload_id_uploads_fkey"),
            ondelete="CASCADE",
        ),
        sa.PrimaryKeyConstraint("id", name=op.f("upload_parts_pkey")),
    )
    op.create_index(op.f("upload_parts_sha256_index"), "upload_parts", ["sha256"], unique=False)
    op.create_index(op.f("upload_parts_upload_id_index"), "upload_parts", ["upload_id"], unique=False)
    op.add_column("batches", sa.Column("input_file_id", sa.Text(), nullable=True))
    op.add_column("batches", sa.Column("num_unread", sa.BigInteger(), server_default="0", nullable=False))


def downgrade() -> None:
    op.execute("SET LOCAL lock_timeout = '5s'")
    op.drop_column("batches", "num_unread")
    op.drop_column("batches", "input_file_id")
    op.drop_index(op.f("upload_parts_upload_id_index"), table_name="upload_parts")
    op.drop_index(op.f("upload_parts_sha256_index"), table_name="upload_parts")
    op.drop_table("upload_parts")
    op.drop_index(
        "batch_files_open_index",
        table_name="batch_files",
        postgresql_where=sa.text("stage IN ('reading', 'running')"),
    )
    op.drop_index(op.f("batch_files_input_file_id_index"), table_name="batch_files")
    op.drop_table("batch_files")
    op.drop_index(
        "uploads_pending_index", table_name="uploads", postgresql_where=sa.text("status IN ('pending')")
    )
    op.drop_table("uploads")
    op.drop_index(op.f("files_sha256_index"), table_name="files")
    op.drop_index(
        "files_expiring_index", table_name="files", postgresql_where=sa.text("expires_at IS NOT NULL")
    )
    op.drop_index(op.f("files_tenant_id_created_at_id_index"), table_name="files")
    op.drop_table("files")
