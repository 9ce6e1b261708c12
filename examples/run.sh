#!/bin/sh
# What `make run` does: the daemon in the foreground, and beside it, once it is
# ready, some jobs that are put in.
set -eu
cd "$(dirname "$0")/.."
export QUEUED_CONFIG=configs/example.yaml

say() { printf '\n==> %s\n' "$*"; }

put_jobs_in() {
	bin/queued health --wait 30s >/dev/null || return 0 # the daemon has said why
	say "The daemon is ready. In its database are:"
	bin/queued stats
	say "Some jobs are put in: two notes, a script, one that fails once, one for later."
	bin/queued enqueue note '{"text": "first"}'
	bin/queued enqueue note '{"text": "first things first"}' --priority 9
	bin/queued enqueue hello '{"name": "world"}'
	bin/queued enqueue hello '{"do": "fail-once"}'
	bin/queued enqueue note '{"text": "later"}' --delay 1h
	sleep 3 # so that what follows stands below what the jobs say
	say "They were run, but for the one that waits:"
	bin/queued jobs list --limit 5
	cat <<END

==> Metrics   http://127.0.0.1:9464/metrics
    Database  var/queued.db
    More      bin/queued --config configs/example.yaml enqueue hello '{"name": "you"}'
    Stop      Ctrl-C; the next start finds what this one leaves
END
}

put_jobs_in &
exec bin/queued run
