export CUDA_VISIBLE_DEVICES=2,3
export LAUNCHER_RUN_ID=20260102-030405-calm-fox
export NOTE='it'"'"'s $HOME, `id` "quoted"'
prlimit \
  --memlock=unlimited \
  --stack=67108864 \
  /bin/sh \
  -c \
  'API_KEY=$(cat "$1") && export API_KEY || exit 1; shift; exec "$@"' \
  sh \
  '/home/mei/.api key' \
  python3 \
  -m \
  torch.distributed.run \
  --nnodes=2 \
  --node-rank="$SLURM_NODEID" \
  -m \
  recipes.torch_.mnist \
  amp=o2 \
  batch=512 \
  run=/data/runs/20260102-030405-calm-fox
