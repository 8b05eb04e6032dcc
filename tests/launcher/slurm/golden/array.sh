#!/usr/bin/env bash
#SBATCH --job-name=mnist-o1
#SBATCH --nodes=1
#SBATCH --ntasks-per-node=1
#SBATCH --gpus-per-node=1
#SBATCH --cpus-per-task=2
#SBATCH --signal=B:USR1@120
#SBATCH --requeue
#SBATCH --open-mode=append
#SBATCH --output=/runs/.sweeps/x/%a.log
#SBATCH --export=NIL
#SBATCH --array=0-2%2
# 3 runs, the first 20260102-030405-calm-fox-000. Each element becomes its own run's script.
run=$(sed -n "$((SLURM_ARRAY_TASK_ID + 1))p" '/runs/the list')
exec bash "$run/run.sh"
