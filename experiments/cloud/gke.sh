#!/bin/bash
# A sweep on GKE: XPK makes the cluster, mounts the bucket and starts a JobSet with a pod on every
# host. Needs `pip install xpk`, gcloud, kubectl and docker; from the root of the checkout:
#
#   PROJECT=my-project ZONE=us-central1-c BUCKET=my-bucket bash experiments/cloud/gke.sh
#
# By default on spot machines of TPU7x, which Google Cloud offers on GKE alone. TPU=v5litepod-16 (v5e)
# or v6e-16 is another slice; CAPACITY=--flex waits for one that then stays for up to seven days,
# --on-demand pays the full price.
set -euo pipefail
: "${PROJECT:?}" "${ZONE:?}" "${BUCKET:?expected the name of a bucket, without gs://}"
tpu=${TPU:-tpu7x-16} capacity=${CAPACITY:---spot}
cluster=(--cluster=nf-resnets --project="$PROJECT" --zone="$ZONE")

xpk cluster create "${cluster[@]}" --tpu-type="$tpu" --num-slices=1 "$capacity" \
  --enable-workload-identity --enable-gcsfuse-csi-driver
xpk storage attach results "${cluster[@]}" --type=gcsfuse --bucket="$BUCKET" --size=100 \
  --mount-point=/results --readonly=false --auto-mount=true

# XPK starts the pods again where they are evicted, and where the command ends with 127 or more.
xpk workload create "${cluster[@]}" --workload=lr-sweep --tpu-type="$tpu" \
  --max-restarts=20 --termination-grace-period-seconds=120 \
  --base-docker-image=python:3.13 --script-dir=. --command="
    pip install --quiet --constraint requirements.txt --editable '.[tpu,data,experiments]' &&
    exec bash experiments/cloud/keep.sh runs/lr-sweep /results \
      nf-resnets sweep --out runs/lr-sweep \
      --grid 'peak_lr=2^-8:2^2' batch_size=32,128 seed=0:4"
