#!/usr/bin/env bash
# Run 20260102-030405-calm-fox: mnist in torch at o1 (autocast), bfloat16, TF32 on, batch 128.
# Asked for: amp=o1 batch=128; plan.json has every setting.
# Written by the launcher. supervise.sh beside it has the functions that it calls.

set -u
umask 077
LAUNCHER_RUN=/home/mei/launcher-runs/20260102-030405-calm-fox
LAUNCHER_CODE=/home/mei/launcher-runs/.code/e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855

trainer() {
  [ -d /home/mei/launcher-runs/.cache ] || mkdir -p -m 700 /home/mei/launcher-runs/.cache || exit 1
  [ -d /home/mei/launcher-runs/.cache/home ] || mkdir -p -m 700 /home/mei/launcher-runs/.cache/home || exit 1
  export APPTAINERENV_LANG=C.UTF-8
  export APPTAINERENV_PYTHONNOUSERSITE=1
  export APPTAINERENV_XDG_CACHE_HOME=/home/mei/launcher-runs/.cache
  export APPTAINERENV_TORCHINDUCTOR_CACHE_DIR=/home/mei/launcher-runs/.cache/torchinductor
  export APPTAINERENV_TRITON_CACHE_DIR=/home/mei/launcher-runs/.cache/triton
  export APPTAINERENV_CUDA_CACHE_PATH=/home/mei/launcher-runs/.cache/cuda
  export APPTAINERENV_USER=mei
  export APPTAINERENV_LOGNAME=mei
  export APPTAINERENV_A='it'"'"'s $(id), a=b'
  export APPTAINERENV_CUDA_DEVICE_ORDER=PCI_BUS_ID
  export APPTAINERENV_LAUNCHER_RUN_ID=20260102-030405-calm-fox
  export APPTAINERENV_PYTHONPATH=/home/mei/launcher-runs/.code/e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855
  export APPTAINERENV_PYTHONUNBUFFERED=1
  export APPTAINERENV_CUDA_VISIBLE_DEVICES="$CUDA_VISIBLE_DEVICES"
  export APPTAINERENV_LAUNCHER_ATTEMPT="$LAUNCHER_ATTEMPT"
  export APPTAINERENV_LAUNCHER_SPEC="$LAUNCHER_SPEC"
  apptainer \
    exec \
    --cleanenv \
    --no-eval \
    --no-home \
    --home=/home/mei/launcher-runs/.cache/home \
    --nv \
    --bind=/home/mei/.key:/run/launcher/KEY:ro \
    --bind=/home/mei/launcher-runs/20260102-030405-calm-fox:/home/mei/launcher-runs/20260102-030405-calm-fox \
    --bind=/home/mei/launcher-runs/.cache:/home/mei/launcher-runs/.cache \
    --bind=/home/mei/launcher-runs/.code/e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855:/home/mei/launcher-runs/.code/e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855:ro \
    --pwd=/home/mei/launcher-runs/.code/e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855 \
    /images/torch.sif \
    /bin/sh \
    -c \
    'KEY=$(cat "$1") && export KEY || exit 1; shift; exec "$@"' \
    sh \
    /run/launcher/KEY \
    python3 \
    -m \
    recipes.torch_.mnist \
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

export LAUNCHER_RUN_ID=20260102-030405-calm-fox LAUNCHER_ATTEMPT LAUNCHER_SPEC

take_gpus 1 'GPU-0000-0 GPU-0000-1' 20260102-030405-calm-fox ''
export LAUNCHER_GPUS CUDA_VISIBLE_DEVICES=$LAUNCHER_GPUS
report_running
supervise trainer
gpu_release
end_attempt
