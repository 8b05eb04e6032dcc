#!/usr/bin/env bash
#SBATCH --job-name=mnist-o1
#SBATCH --nodes=1
#SBATCH --ntasks-per-node=1
#SBATCH --gpus-per-node=2
#SBATCH --signal=B:USR1@120
#SBATCH --requeue
#SBATCH --open-mode=append
#SBATCH --output=/home/mei/launcher-runs/20260102-030405-calm-fox/launch.log
#SBATCH --export=NIL
# Run 20260102-030405-calm-fox: mnist in torch at o1 (autocast), float16 or bfloat16 by its GPU, a loss scale if float16, TF32 if the GPU has it, batch 512.
# Asked for: amp=o1 batch=512; plan.json has every setting.
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
    --bind=/home/mei/launcher-runs/20260102-030405-calm-fox:/home/mei/launcher-runs/20260102-030405-calm-fox \
    --bind=/home/mei/launcher-runs/.cache:/home/mei/launcher-runs/.cache \
    --bind=/home/mei/launcher-runs/.code/e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855:/home/mei/launcher-runs/.code/e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855:ro \
    --pwd=/home/mei/launcher-runs/.code/e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855 \
    /images/torch.sif \
    python3 \
    -m \
    torch.distributed.run \
    --standalone \
    --nproc-per-node=2 \
    -m \
    recipes.torch_.mnist \
    run=/home/mei/launcher-runs/20260102-030405-calm-fox
}

LAUNCHER_WHO=trainer LAUNCHER_RESULT=required
LAUNCHER_ENGINE='' LAUNCHER_SECRETS=''
LAUNCHER_QUEUE=slurm LAUNCHER_MAX_REQUEUES=3 LAUNCHER_SHARED=''
LAUNCHER_TELEMETRY_EVERY=10 LAUNCHER_TELEMETRY_GPUS=job
[ -e "$LAUNCHER_RUN/supervise.sh" ] || { echo "the run folder $LAUNCHER_RUN is gone" >&2; exit 1; }
# shellcheck source=/dev/null
. "$LAUNCHER_RUN/supervise.sh" || exit 1

begin_attempt
clear_stale_stop
end_if_unwanted
report_running

export HOME=/home/mei
export USER=mei
export LOGNAME=mei
export LANG=C.UTF-8
export PATH=/opt/slurm/bin:/usr/bin:/bin
export SLURM_CONF=/etc/slurm/slurm.conf
export LAUNCHER_RUN_ID=20260102-030405-calm-fox LAUNCHER_ATTEMPT LAUNCHER_SPEC

stop_before_time_limit yes
supervise trainer
end_attempt
