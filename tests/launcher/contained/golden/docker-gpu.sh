#!/usr/bin/env bash
# Run 20260102-030405-calm-fox: mnist in torch at o1 (autocast), bfloat16, TF32 on, batch 256.
# Asked for: amp=o1 batch=256; plan.json has every setting.
# Written by the launcher. supervise.sh beside it has the functions that it calls.

set -u
umask 077
LAUNCHER_RUN=/home/mei/launcher-runs/20260102-030405-calm-fox
LAUNCHER_CODE=/home/mei/launcher-runs/.code/e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855

trainer() {
  [ -d /home/mei/launcher-runs/.cache ] || mkdir -p -m 700 /home/mei/launcher-runs/.cache || exit 1
  [ -d /home/mei/launcher-runs/.cache/home ] || mkdir -p -m 700 /home/mei/launcher-runs/.cache/home || exit 1
  remove_stale_container
  docker \
    run \
    --rm \
    --init \
    --pull=never \
    --log-driver=none \
    --name=20260102-030405-calm-fox \
    --network=host \
    --ipc=host \
    --ulimit=memlock=-1 \
    --ulimit=stack=67108864 \
    --user=1000:1000 \
    --group-add=1000 \
    --group-add=27 \
    '--gpus="device=1"' \
    --workdir=/home/mei/launcher-runs/.code/e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855 \
    --mount=type=bind,source=/data/imagenet,target=/data,readonly \
    --mount=type=bind,source=/home/mei/.key,target=/run/launcher/KEY,readonly \
    --mount=type=bind,source=/home/mei/launcher-runs/20260102-030405-calm-fox,target=/home/mei/launcher-runs/20260102-030405-calm-fox \
    --mount=type=bind,source=/home/mei/launcher-runs/.cache,target=/home/mei/launcher-runs/.cache \
    --mount=type=bind,source=/home/mei/launcher-runs/.code/e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855,target=/home/mei/launcher-runs/.code/e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855,readonly \
    --env=HOME=/home/mei/launcher-runs/.cache/home \
    --env=LANG=C.UTF-8 \
    --env=PYTHONNOUSERSITE=1 \
    --env=XDG_CACHE_HOME=/home/mei/launcher-runs/.cache \
    --env=TORCHINDUCTOR_CACHE_DIR=/home/mei/launcher-runs/.cache/torchinductor \
    --env=TRITON_CACHE_DIR=/home/mei/launcher-runs/.cache/triton \
    --env=CUDA_CACHE_PATH=/home/mei/launcher-runs/.cache/cuda \
    --env=USER=mei \
    --env=LOGNAME=mei \
    '--env=A=it'"'"'s $(id), a=b' \
    --env=CUDA_DEVICE_ORDER=PCI_BUS_ID \
    --env=LAUNCHER_RUN_ID=20260102-030405-calm-fox \
    --env=PYTHONPATH=/home/mei/launcher-runs/.code/e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855 \
    --env=PYTHONUNBUFFERED=1 \
    --env=LAUNCHER_ATTEMPT \
    --env=LAUNCHER_SPEC \
    --entrypoint= \
    nvcr.io/nvidia/pytorch:25.06-py3 \
    /bin/sh \
    -c \
    'ulimit -S -c 0; KEY=$(cat "$1") && export KEY || exit 1; shift; exec "$@"' \
    sh \
    /run/launcher/KEY \
    python3 \
    -m \
    amp_launcher.recipes.mnist.train_torch \
    run=/home/mei/launcher-runs/20260102-030405-calm-fox
}

remove_container() {
  docker rm --force 20260102-030405-calm-fox
}

LAUNCHER_WHO=trainer LAUNCHER_RESULT=required
LAUNCHER_ENGINE=docker LAUNCHER_SECRETS=''
LAUNCHER_QUEUE=direct LAUNCHER_SHARED=''
LAUNCHER_TELEMETRY_EVERY=10 LAUNCHER_TELEMETRY_GPUS=taken
[ -e "$LAUNCHER_RUN/supervise.sh" ] || { echo "the run folder $LAUNCHER_RUN is gone" >&2; exit 1; }
# shellcheck source=/dev/null
. "$LAUNCHER_RUN/supervise.sh" || exit 1

begin_attempt
end_if_unwanted

export LAUNCHER_RUN_ID=20260102-030405-calm-fox LAUNCHER_ATTEMPT LAUNCHER_SPEC

take_gpus 1 GPU-0000-1 20260102-030405-calm-fox ''
report_running
supervise trainer
gpu_release
end_attempt
