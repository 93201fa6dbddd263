#!/bin/sh
# Sees to the programs that the demo, the tests and the build need on this
# machine, and installs what is missing where that can be done without asking:
# as root with apt. Elsewhere one sentence names the package, and the exit code
# is 1. It starts no service: the sandbox runs servers of its own on loopback.
#
# usage: setup.sh NEED...      needs: redis postgres pgbouncer make cc
set -eu

# The oldest servers that the product runs on.
redis_min=7
postgres_min=14

# major prints the first number in a line like "Redis server v=7.0.15 sha=…",
# or nothing.
major() { sed -n 's/^[^0-9]*\([0-9][0-9]*\).*/\1/p' | head -n 1; }

# A server of the user's own, named by its URL, is used instead of a program.
have_redis() {
	[ -z "${STOCKPIPE_REDIS_URL:-}" ] || return 0
	for server in redis-server valkey-server; do
		command -v "$server" >/dev/null 2>&1 || continue
		version=$("$server" --version 2>/dev/null | sed 's/.*v=//' | major)
		[ "${version:-0}" -ge "$redis_min" ] && return 0
	done
	return 1
}

have_postgres() {
	[ -z "${STOCKPIPE_POSTGRES_URL:-}" ] || return 0
	for folder in $(on_path) /usr/lib/postgresql/*/bin /usr/pgsql-*/bin /usr/local/pgsql*/bin /opt/homebrew/opt/postgresql@*/bin; do
		[ -x "$folder/initdb" ] && [ -x "$folder/postgres" ] || continue
		version=$("$folder/postgres" --version 2>/dev/null | major)
		[ "${version:-0}" -ge "$postgres_min" ] && return 0
	done
	return 1
}

# on_path prints the folder of initdb where PATH has one.
on_path() {
	initdb=$(command -v initdb 2>/dev/null) && dirname "$initdb" || :
}

# Only tests need it. Debian puts it where only root looks.
have_pgbouncer() { PATH="$PATH:/usr/sbin:/usr/local/sbin" command -v pgbouncer >/dev/null 2>&1; }

have_make() { command -v make >/dev/null 2>&1; }

# The race detector links with C, and needs its headers too.
have_cc() {
	command -v "${CC:-cc}" >/dev/null 2>&1 || command -v gcc >/dev/null 2>&1 || return 1
	[ "$(uname -s)" != Linux ] || [ -e /usr/include/stdlib.h ] || [ ! -e /etc/debian_version ]
}

package_of() {
	case $1 in
	redis) echo redis-server ;;
	postgres) echo postgresql ;;
	pgbouncer) echo pgbouncer ;;
	make) echo make ;;
	cc) echo gcc libc6-dev ;;
	esac
}

# remedy prints the one sentence for people who install by themselves.
remedy() {
	case $1 in
	redis) echo "redis-server (or valkey-server) $redis_min or newer is missing: install the package redis-server (Debian, Ubuntu), redis (Fedora, Alpine, Homebrew) or valkey." ;;
	postgres) echo "Postgres $postgres_min or newer is missing (initdb and postgres are needed): install the package postgresql (Debian, Ubuntu, Alpine), postgresql-server (Fedora) or postgresql@17 (Homebrew)." ;;
	pgbouncer) echo "pgbouncer is missing, which some tests need: install the package pgbouncer." ;;
	make) echo "make is missing: install the package make." ;;
	cc) echo "a C compiler is missing, which the race detector needs: install the package gcc (with libc6-dev on Debian, Ubuntu)." ;;
	esac
}

# A package that brings a server also starts it, and a server that nobody asked
# for would hold the usual port. While this script installs, the system is told
# not to start any; an answer that the system already had is left as it is.
policy=/usr/sbin/policy-rc.d
wrote_policy=

forbid_start() {
	[ -e "$policy" ] && return 0
	wrote_policy=yes
	printf '#!/bin/sh\nexit 101\n' >"$policy"
	chmod 755 "$policy"
}

allow_start() {
	[ -z "$wrote_policy" ] || rm -f "$policy"
	wrote_policy=
}

install_packages() {
	echo "setup: installing $*"
	trap allow_start EXIT
	trap 'exit 130' INT
	trap 'exit 143' TERM
	forbid_start
	apt-get update -q </dev/null
	DEBIAN_FRONTEND=noninteractive apt-get install -q -y --no-install-recommends "$@" </dev/null
	allow_start
}

missing=
packages=
for need in "$@"; do
	case $need in
	redis | postgres | pgbouncer | make | cc) ;;
	*)
		echo "setup: unknown need \"$need\"; known are redis, postgres, pgbouncer, make, cc" >&2
		exit 2
		;;
	esac
	if ! "have_$need"; then
		missing="$missing $need"
		packages="$packages $(package_of "$need")"
	fi
done
[ -n "$missing" ] || exit 0

if [ "$(id -u)" = 0 ] && [ -e /etc/debian_version ] && command -v apt-get >/dev/null 2>&1; then
	# shellcheck disable=SC2086 # a list of words is meant
	install_packages $packages
fi

# A package can be too old on an older system, so look again instead of
# trusting the installation.
lacking=0
for need in $missing; do
	"have_$need" && continue
	remedy "$need" >&2
	lacking=1
done
exit "$lacking"
