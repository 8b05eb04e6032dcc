#!/usr/bin/env bash
# Run 20260102-030405-calm-fox: mnist in torch at o2 (half_model_fp32_masters), bfloat16, TF32 on, batch 128.
# Asked for: amp=o2 batch=128; plan.json has every setting.
# Written by the launcher. supervise.sh beside it has the functions that it calls.

set -u
umask 077
LAUNCHER_RUN=/home/mei/launcher-runs/20260102-030405-calm-fox
LAUNCHER_CODE=/home/mei/launcher-runs/.code/e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855

trainer() {
  cd "$LAUNCHER_CODE" || exit 1
  /opt/venv/bin/python -m recipes.torch_.mnist \
    run=/home/mei/launcher-runs/20260102-030405-calm-fox
}

LAUNCHER_WHO=trainer LAUNCHER_RESULT=required
LAUNCHER_ENGINE='' LAUNCHER_SECRETS=''
LAUNCHER_QUEUE=direct LAUNCHER_SHARED=''
LAUNCHER_TELEMETRY_EVERY=10 LAUNCHER_TELEMETRY_GPUS=taken
[ -e "$LAUNCHER_RUN/supervise.sh" ] || { echo "the run folder $LAUNCHER_RUN is gone" >&2; exit 1; }
# shellcheck source=/dev/null
. "$LAUNCHER_RUN/supervise.sh" || exit 1

begin_attempt
end_if_unwanted

export CUDA_DEVICE_ORDER=PCI_BUS_ID
export PYTHONPATH="$LAUNCHER_CODE" PYTHONUNBUFFERED=1
export LAUNCHER_RUN_ID=20260102-030405-calm-fox LAUNCHER_ATTEMPT LAUNCHER_SPEC

take_gpus 1 'GPU-0000-0 GPU-0000-1' 20260102-030405-calm-fox yes
export LAUNCHER_GPUS CUDA_VISIBLE_DEVICES=$LAUNCHER_GPUS
report_running
supervise trainer
gpu_release
end_attempt
