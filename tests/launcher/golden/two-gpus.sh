#!/usr/bin/env bash
# Run 20260102-030405-calm-fox: mnist in torch at o1 (autocast), float16, dynamic loss scale, TF32 off, batch 256.
# Asked for: amp=o1 batch=256 'amp.deny=[softmax,conv2d]' loss_scale=tf compile=true; plan.json has every setting.
# Written by the launcher. supervise.sh beside it has the functions that it calls.

set -u
umask 077
LAUNCHER_RUN=/home/mei/launcher-runs/20260102-030405-calm-fox
LAUNCHER_CODE=/home/mei/launcher-runs/.code/e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855

trainer() {
  cd "$LAUNCHER_CODE" || exit 1
  /opt/venv/bin/python -m torch.distributed.run --standalone --nproc-per-node=2 \
    -m recipes.torch_.mnist \
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
export CUDA_VISIBLE_DEVICES=0,1
export PYTHONPATH="$LAUNCHER_CODE" PYTHONUNBUFFERED=1
export LAUNCHER_RUN_ID=20260102-030405-calm-fox LAUNCHER_ATTEMPT LAUNCHER_SPEC

take_gpus 2 'GPU-0000-0 GPU-0000-1' 20260102-030405-calm-fox ''
report_running
supervise trainer
gpu_release
end_attempt
