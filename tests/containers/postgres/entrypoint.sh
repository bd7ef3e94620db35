# Make the data folder at the first start, then become the server.
set -euo pipefail

if [ ! -s "$PGDATA/PG_VERSION" ]; then
    # shellcheck disable=SC2086  # several arguments
    initdb --username="${POSTGRES_USER:=postgres}" --pwfile=<(echo "$POSTGRES_PASSWORD") \
        --auth-local=trust --auth-host=scram-sha-256 --no-sync ${POSTGRES_INITDB_ARGS:-}
    echo "listen_addresses = '*'" >>"$PGDATA/postgresql.conf"
    echo "host all all all scram-sha-256" >>"$PGDATA/pg_hba.conf"
    shopt -s nullglob
    scripts=(/docker-entrypoint-initdb.d/*.sh)
    if [ ${#scripts[@]} -gt 0 ]; then
        # With a server that only they can reach
        pg_ctl --wait --silent --options="-c listen_addresses=''" start
        for script in "${scripts[@]}"; do
            # shellcheck source=/dev/null
            . "$script"
        done
        pg_ctl --wait --silent --mode=fast stop
    fi
fi
exec "$@"
