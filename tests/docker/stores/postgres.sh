# The first start makes the cluster and its database from POSTGRES_USER, POSTGRES_PASSWORD and POSTGRES_DB.
set -eu
bin=$(echo /usr/lib/postgresql/*/bin)
data=/var/lib/postgresql/data
as_postgres="setpriv --reuid=postgres --regid=postgres --clear-groups"
chown postgres:postgres /var/lib/postgresql
mkdir -p /var/run/postgresql && chown postgres:postgres /var/run/postgresql
shift  # the word "postgres"
if [ ! -e "$data/made" ]; then
    rm -rf "$data"
    password=$(mktemp)
    printf %s "$POSTGRES_PASSWORD" > "$password"
    chown postgres "$password"
    $as_postgres "$bin/initdb" --pgdata="$data" --username="$POSTGRES_USER" --pwfile="$password" \
        --encoding=UTF8 --auth-host=scram-sha-256 --auth-local=trust
    rm "$password"
    echo "host all all all scram-sha-256" >> "$data/pg_hba.conf"
    echo "CREATE DATABASE $POSTGRES_DB" | $as_postgres "$bin/postgres" --single -D "$data" postgres
    $as_postgres touch "$data/made"
fi
exec $as_postgres "$bin/postgres" -D "$data" -c listen_addresses='*' "$@"
