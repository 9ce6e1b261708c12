#!/usr/bin/env bash
#
# bench.sh - `queued bench` on durable servers of its own, one case after another
#
#   test/bench/bench.sh [JOBS]       default 200000
#
# Prints a table for docs/performance.md. Ratios hold, rates don't: compare figures
# of one run only, and run it on a machine that does nothing else.

set -euo pipefail
cd "$(dirname "$0")/../.."

jobs=${1:-200000}
work=$(mktemp -d)
pids=()
stop() {
  for pid in "${pids[@]}"; do kill "$pid" 2>/dev/null || true; done
  wait
  rm -rf "$work"
}
trap stop EXIT

go build -o "$work/queued" ./cmd/queued
test/servers/servers.sh install mysql97 mysql56 mariadb1011 >&2

field() { sed -n "s/^ *\"$1\": \([0-9.e+-]*\),*$/\1/p" "$2" | head -1; }

# run NAME CASE ARGUMENT... prints one row of the table.
run() {
  local name=$1 case=$2 out=$work/out.json
  shift 2
  "$work/queued" --config "$work/$name.yaml" bench --jobs "$jobs" --json "$@" >"$out" 2>"$work/err" || { cat "$work/err" >&2; exit 1; }
  local p99
  mapfile -t p99 < <(sed -n 's/^ *"p99": \([0-9.e+-]*\),*$/\1/p' "$out") # claim, pick-up, empty poll
  printf '| %s | %s | %.0f | %.1f | %.2f | %.4f | %.1f | %.1f | %.2f | %.1f | %.0f |\n' "$name" "$case" \
    "$(field jobs_per_s "$out")" "$(field times_naive "$out" || true)" "$(field share_of_limit "$out" || true)" \
    "$(field round_trips_per_job "$out")" "$(bc_ms "${p99[0]}")" "$(bc_ms "${p99[1]}")" "$(bc_ms "${p99[2]}")" \
    "$(field idle_requests_per_s "$out")" "$(awk -v b="$(field max_rss_bytes "$out")" 'BEGIN { print b / 1048576 }')"
}
bc_ms() { awk -v s="$1" 'BEGIN { print s * 1000 }'; }

printf '| server | case | jobs/s | times naive | of limit | trips/job | claim p99 ms | pick-up p99 ms | empty poll p99 ms | idle requests/s | RSS MiB |\n'
printf '|---|---|---|---|---|---|---|---|---|---|---|\n'

for name in mysql97 mysql56 mariadb1011; do
  read -r dir port < <(test/servers/servers.sh new "$name" disk $$)
  test/servers/servers.sh start "$name" "$dir/data" "$port" "$dir/socket" \
    --innodb-flush-log-at-trx-commit=1 --sync-binlog=1 >"$work/$name.log" 2>&1 &
  pids+=($!)
  printf 'database: {dsn: "root@tcp(127.0.0.1:%s)/mysql", table_prefix: bench_}\nkinds: [{name: none, handler: log}]\n' "$port" >"$work/$name.yaml"
  for try in $(seq 60); do
    "$work/queued" --config "$work/$name.yaml" migrate up >"$work/err" 2>&1 && break
    [ "$try" -lt 60 ] || { cat "$work/err" >&2; exit 1; }
    sleep 1
  done
  run "$name" 'one daemon'
  run "$name" 'old snapshot held' --old-snapshot
  run "$name" 'four daemons' --daemons 4
  [ "$name" != mysql97 ] || run "$name" '2,000,000 done rows' --done-rows 2000000
  kill "${pids[-1]}"
  wait "${pids[-1]}" || true
  unset 'pids[-1]'
done
printf 'database: {path: %s/queued.db}\nkinds: [{name: none, handler: log}]\n' "$work" >"$work/sqlite.yaml"
run sqlite 'one daemon'
