"""Triggers in the harness's own database that write down what must never happen, and every claim."""

from tests.faults.harness.services import Postgres

SQL = """
CREATE TABLE audit_claims (
    id bigserial PRIMARY KEY, at timestamptz DEFAULT clock_timestamp(),
    shard_id bigint, fence int, worker text, lane text
);
CREATE TABLE audit_breaches (id bigserial PRIMARY KEY, at timestamptz DEFAULT clock_timestamp(), what text);

CREATE FUNCTION audit_shard() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN
    IF NEW.fence > OLD.fence THEN
        INSERT INTO audit_claims (shard_id, fence, worker, lane)
        VALUES (NEW.id, NEW.fence, NEW.worker, NEW.lane);
    ELSIF NEW.fence < OLD.fence THEN
        INSERT INTO audit_breaches (what) VALUES (format('the fence of shard %s fell', NEW.id));
    END IF;
    IF OLD.state IN ('finished', 'dropped') AND NEW.state <> OLD.state THEN
        INSERT INTO audit_breaches (what) VALUES (format('shard %s left %s', NEW.id, OLD.state));
    END IF;
    RETURN NULL;
END $$;
CREATE TRIGGER audit AFTER UPDATE ON shards FOR EACH ROW EXECUTE FUNCTION audit_shard();

CREATE FUNCTION audit_batch() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN
    IF OLD.status NOT IN ('pending', 'processing', 'cancelling')
        AND (NEW.status, NEW.finished_at, NEW.num_completed, NEW.num_failed, NEW.num_cancelled)
            IS DISTINCT FROM
            (OLD.status, OLD.finished_at, OLD.num_completed, OLD.num_failed, OLD.num_cancelled)
    THEN
        INSERT INTO audit_breaches (what)
        VALUES (format('batch %s changed after it was %s', NEW.id, OLD.status));
    END IF;
    RETURN NULL;
END $$;
CREATE TRIGGER audit AFTER UPDATE ON batches FOR EACH ROW EXECUTE FUNCTION audit_batch();

CREATE FUNCTION audit_kept() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN
    INSERT INTO audit_breaches (what) VALUES (format('a row of %s: %s', TG_TABLE_NAME, TG_OP));
    RETURN NULL;
END $$;
CREATE TRIGGER audit_kept AFTER DELETE ON results FOR EACH ROW EXECUTE FUNCTION audit_kept();
-- A result gets its number once, and changes in nothing else.
CREATE FUNCTION audit_result() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN
    IF OLD.sequence IS NOT NULL OR to_jsonb(NEW) - 'sequence' <> to_jsonb(OLD) - 'sequence' THEN
        INSERT INTO audit_breaches (what) VALUES (format('the result of request %s changed', OLD.request_id));
    END IF;
    RETURN NULL;
END $$;
CREATE TRIGGER audit AFTER UPDATE ON results FOR EACH ROW EXECUTE FUNCTION audit_result();
CREATE TRIGGER audit_kept AFTER DELETE ON requests FOR EACH ROW EXECUTE FUNCTION audit_kept();
CREATE TRIGGER audit_kept AFTER DELETE ON batches FOR EACH ROW EXECUTE FUNCTION audit_kept();
CREATE TRIGGER audit_kept AFTER DELETE ON webhook_events FOR EACH ROW EXECUTE FUNCTION audit_kept();
"""


def install(postgres: Postgres) -> None:
    """Watch the tables of a migrated database."""
    postgres.query(SQL)
