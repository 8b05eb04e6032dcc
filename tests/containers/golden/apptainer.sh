export APPTAINERENV_CUDA_VISIBLE_DEVICES=2,3
export APPTAINERENV_LANG=C.UTF-8
export APPTAINERENV_PYTHONNOUSERSITE=1
export APPTAINERENV_XDG_CACHE_HOME=/data/runs/.cache
export APPTAINERENV_TORCHINDUCTOR_CACHE_DIR=/data/runs/.cache/torchinductor
export APPTAINERENV_TRITON_CACHE_DIR=/data/runs/.cache/triton
export APPTAINERENV_CUDA_CACHE_PATH=/data/runs/.cache/cuda
export APPTAINERENV_USER=mei
export APPTAINERENV_LOGNAME=mei
export APPTAINERENV_LAUNCHER_RUN_ID=20260102-030405-calm-fox
export APPTAINERENV_NOTE='it'"'"'s $HOME, `id` "quoted"'
export APPTAINERENV_LAUNCHER_ATTEMPT="$LAUNCHER_ATTEMPT"
export APPTAINERENV_MASTER_ADDR="$MASTER_ADDR"
mkdir -p -m 700 /data/runs/.cache
mkdir -p -m 700 /data/runs/.cache/home
prlimit \
  --memlock=unlimited \
  --stack=67108864 \
  apptainer \
  exec \
  --cleanenv \
  --no-eval \
  --no-home \
  --home=/data/runs/.cache/home \
  --nv \
  '--bind=/data/image net:/data/imagenet:ro' \
  --bind=/data/runs/20260102-030405-calm-fox:/data/runs/20260102-030405-calm-fox \
  --bind=/data/runs/.cache:/data/runs/.cache \
  '--bind=/home/mei/.api key:/run/launcher/API_KEY:ro' \
  --bind=/data/runs/.code/c0de:/data/runs/.code/c0de:ro \
  --pwd=/data/runs/.code/c0de \
  /data/images/sha256-0123.sif \
  /bin/sh \
  -c \
  'ulimit -S -c 0; API_KEY=$(cat "$1") && export API_KEY || exit 1; shift; exec "$@"' \
  sh \
  /run/launcher/API_KEY \
  python3 \
  -m \
  torch.distributed.run \
  --nnodes=2 \
  --node-rank="$SLURM_NODEID" \
  -m \
  amp_launcher.recipes.mnist.train_torch \
  amp=o2 \
  batch=512 \
  run=/data/runs/20260102-030405-calm-fox
