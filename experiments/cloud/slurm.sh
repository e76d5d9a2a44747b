#!/bin/bash
# A sweep on a Slurm cluster: each element of the array has one GPU and makes every eighth wave of
# runs. From the root of the checkout, on a file system that all nodes share:
#
#   sbatch experiments/cloud/slurm.sh
#SBATCH --job-name=lr-sweep
#SBATCH --array=0-7
#SBATCH --nodes=1
#SBATCH --ntasks=1
#SBATCH --gpus-per-task=1
#SBATCH --cpus-per-task=8
#SBATCH --mem=32G
#SBATCH --time=04:00:00
#SBATCH --signal=TERM@300
#SBATCH --requeue
#SBATCH --open-mode=append
#SBATCH --output=slurm-%A_%a.log
set -euo pipefail

code=0
srun .venv/bin/nf-resnets sweep --out runs/lr-sweep \
  --shard "$SLURM_ARRAY_TASK_ID" "$SLURM_ARRAY_TASK_COUNT" \
  --grid 'peak_lr=2^-8:2^2' batch_size=32,128 seed=0:4 || code=$?

# 143: the time is nearly over, and the runs are saved. The same element goes on with them.
if [ "$code" -eq 143 ]; then
  scontrol requeue "${SLURM_ARRAY_JOB_ID}_${SLURM_ARRAY_TASK_ID}"
fi
exit "$code"
