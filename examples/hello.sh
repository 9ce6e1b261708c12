#!/bin/sh
# The script of kind "hello" in configs/example.yaml. The payload comes on standard
# input, what there is to know of the job in variables. What is printed becomes the
# job's result; an exit code other than 0 makes the job run again later.
payload=$(cat)
case $payload in
*fail-once*)
	if [ "$QUEUED_ATTEMPT" = 1 ]; then
		echo "attempt 1 fails on purpose" >&2
		exit 75
	fi
	;;
esac
echo "Hello! Job $QUEUED_JOB_ID, attempt $QUEUED_ATTEMPT of $QUEUED_MAX_ATTEMPTS, payload $payload"
