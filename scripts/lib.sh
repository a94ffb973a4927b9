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

# The oldest Node that builds the dashboard.
NODE_MIN=20.19

# Whether a Node is new enough, and has npm beside it on the PATH.
node_fits() {
  local version
  version=$(node --version 2>/dev/null) && command -v npm >/dev/null || return 1
  printf '%s\n' "$NODE_MIN" "${version#v}" | sort -V -C
}

# Puts the Node that scripts/setup has installed on the PATH, where the machine's own does not fit.
use_node() {
  node_fits && return
  local own=$PWD/target/node/node_modules/.bin
  [ -x "$own/node" ] && PATH=$own:$PATH
  node_fits
}
