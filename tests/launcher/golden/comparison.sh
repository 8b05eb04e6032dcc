#!/usr/bin/env bash
# Comparison 20260102-030405-brave-otter of 2 arms, each with its own run.sh in RUN/arms.
# Written by the launcher. supervise.sh beside it has the functions that it calls.

set -u
umask 077
LAUNCHER_RUN=/home/mei/launcher-runs/20260102-030405-brave-otter
LAUNCHER_CODE=/home/mei/launcher-runs/.code/e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855

conclude() {
  cd "$LAUNCHER_RUN" || exit 1
  PYTHONPATH="$LAUNCHER_RUN/launcher.zip" /opt/venv/bin/python -m launcher.compare.conclusion "$LAUNCHER_RUN" "$LAUNCHER_OUTCOME" "$LAUNCHER_ATTEMPT"
}

LAUNCHER_WHO=comparison LAUNCHER_RESULT=''
LAUNCHER_ENGINE='' LAUNCHER_SECRETS=''
LAUNCHER_QUEUE=direct LAUNCHER_SHARED=''
LAUNCHER_TELEMETRY_EVERY='' LAUNCHER_TELEMETRY_GPUS=''
LAUNCHER_ORDER='00 01 01 00 00 01'
LAUNCHER_ARMS='00 01' LAUNCHER_COOL_DOWN=2
[ -e "$LAUNCHER_RUN/supervise.sh" ] || { echo "the run folder $LAUNCHER_RUN is gone" >&2; exit 1; }
# shellcheck source=/dev/null
. "$LAUNCHER_RUN/supervise.sh" || exit 1

begin_attempt
end_if_unwanted
report_running

export PYTHONPATH="$LAUNCHER_CODE" PYTHONUNBUFFERED=1
export LAUNCHER_RUN_ID=20260102-030405-brave-otter LAUNCHER_ATTEMPT LAUNCHER_SPEC

supervise run_arms
end_attempt
