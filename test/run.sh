#!/usr/bin/env bash
#
# run.sh [ARGUMENT...] - what `make test` does: installs and starts all that the
# tests need, runs them with the race detector and ends with what was covered.
#
# The arguments go to `go test`; without any, it tests all packages:
#
#   test/run.sh
#   test/run.sh -run TestStore ./internal/store/...
#
# Needs git, make and Go on Debian 12 or later. What else is missing is installed:
# a C compiler for the race detector, PHP, Python and Node for the producers' tests,
# and the four database servers, which stay up for the next run (`make servers-down`
# stops them). Without root, sudo is used for Debian's packages, and for nothing else.

set -euo pipefail
cd "$(dirname "$0")/.."

as_root() {
  if [ "$(id -u)" = 0 ]; then "$@"; else sudo "$@"; fi
}

# can_compile says whether there is a C compiler with its headers.
can_compile() {
  # shellcheck disable=SC2046 # a command with its arguments
  printf '#include <stdlib.h>\nint main(void) { return 0; }\n' | $(go env CC) -x c -o /dev/null - 2>/dev/null
}

if ! can_compile; then
  echo 'installing a C compiler, which the race detector needs'
  as_root apt-get -qy update
  as_root env DEBIAN_FRONTEND=noninteractive apt-get -qy -o DPkg::Lock::Timeout=300 \
    install --no-install-recommends gcc libc6-dev
fi
if [ -e test/producers/install.sh ]; then
  sh test/producers/install.sh
fi
test/servers/servers.sh up
env=$(test/servers/servers.sh env)
eval "$env"

[ $# -gt 0 ] || set -- ./...
# -count=1: a cached result says nothing about the servers of today.
CGO_ENABLED=1 go test -race -count=1 -timeout 20m -json "$@" | go run ./test/summary
