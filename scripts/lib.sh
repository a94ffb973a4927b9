# Functions of the scripts: find the Postgres binaries, and run them as an ordinary user.

say() { printf '%s\n' "$*" >&2; }
die() { say "error: $*"; exit 1; }

# The newest installed server binaries, 15 or newer.
pg_bin() {
  local dir best=
  for dir in $(ls -d /usr/lib/postgresql/*/bin /usr/pgsql-*/bin 2>/dev/null | sort -V) "$(dirname "$(command -v postgres 2>/dev/null || echo /nowhere/x)")"; do
    [ -x "$dir/postgres" ] && [ -x "$dir/initdb" ] || continue
    [ "$("$dir/postgres" --version | sed -E 's/[^0-9]*([0-9]+).*/\1/')" -ge 15 ] && best=$dir
  done
  [ -n "$best" ] && printf '%s\n' "$best"
}

# Postgres refuses to run as root.
as_server() {
  if [ "$(id -u)" -ne 0 ]; then "$@"; return; fi
  local user=nobody
  getent passwd postgres >/dev/null && user=postgres
  setpriv --reuid "$user" --regid "$(id -g "$user")" --clear-groups env HOME=/tmp "$@"
}
