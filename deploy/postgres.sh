#!/bin/sh
# Run once by the image of PostgreSQL, on an empty volume: a plain role, since lamina refuses one that passes by
# row-level security, and a database of its own.
set -eu
psql -v ON_ERROR_STOP=1 -v password="$DATABASE_PASSWORD" --username "$POSTGRES_USER" <<'SQL'
CREATE ROLE lamina LOGIN NOSUPERUSER NOBYPASSRLS PASSWORD :'password';
CREATE DATABASE lamina OWNER lamina;
SQL
