#!/bin/sh
# Installs what the producers' tests run: PHP, Python and Node with their MySQL drivers.
# Does nothing where all of it is there.
set -eu

mysql2=3.24.6
home=${QUEUED_PRODUCERS_HOME:-${XDG_CACHE_HOME:-$HOME/.cache}/queued/producers}

as_root() {
  if [ "$(id -u)" = 0 ]; then "$@"; else sudo "$@"; fi
}

missing=
command -v php >/dev/null && php -r 'exit(extension_loaded("pdo_mysql") ? 0 : 1);' || missing="$missing php-cli php-mysql"
# Debian's own python3, which is the one that Debian's modules are for. Without
# cryptography PyMySQL can't log in to MySQL's caching_sha2_password.
/usr/bin/python3 -c 'import pymysql, cryptography' 2>/dev/null || missing="$missing python3 python3-pymysql python3-cryptography"
command -v node >/dev/null || missing="$missing nodejs"
command -v npm >/dev/null || missing="$missing npm"
if [ -n "$missing" ]; then
  echo "producers: installing$missing"
  as_root apt-get -qy update
  # shellcheck disable=SC2086 # a list
  as_root env DEBIAN_FRONTEND=noninteractive apt-get -qy -o DPkg::Lock::Timeout=300 install --no-install-recommends $missing
fi

# Debian's node-mysql can't log in to MySQL 9.
if [ ! -e "$home/mysql2-$mysql2" ]; then
  echo "producers: installing mysql2 $mysql2 for Node"
  mkdir -p "$home"
  (cd "$home" && npm install --silent --no-audit --no-fund --ignore-scripts --prefix "$home" "mysql2@$mysql2")
  touch "$home/mysql2-$mysql2"
fi
