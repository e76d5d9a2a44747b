#!/usr/bin/env bash
# A sweep on a Cloud TPU VM or pod slice: create, install, start, watch, survive preemption, delete.
set -euo pipefail

here=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
# shellcheck source=experiments/tpu/run.sh
. "$here/run.sh"

usage() {
  cat <<'END'
Usage: tpu.sh VERB [OPTIONS] [-- COMMAND...]

Verbs:
  create      create the TPU VM or pod slice, or queue for it with --queued
  install     send this checkout (its last commit) to all workers and install it there
  start       start COMMAND on all workers; it goes on when the connection ends
  supervise   all of the above, and again whenever the TPU is preempted, until COMMAND is done
  status      the state of the TPU, and of COMMAND on each worker
  logs        the last lines that COMMAND printed on a worker
  stop        ask COMMAND to save and end, on all workers
  fetch       copy the results that are in the bucket to this machine
  delete      delete the TPU; the results in the bucket stay

What is used (or the environment variable in brackets):
  --project PROJECT   [TPU_PROJECT]  the Google Cloud project
  --zone ZONE         [TPU_ZONE]     such as us-central2-b
  --name NAME         [TPU_NAME]     of the TPU, and of the folder in the bucket
  --type TYPE         [TPU_TYPE]     the accelerator type, such as v5litepod-16
  --version VERSION   [TPU_VERSION]  the runtime, such as v2-alpha-tpuv5-lite
  --bucket BUCKET     [TPU_BUCKET]   where results are kept, such as gs://my-bucket/sweeps

Options:
  --spot              cheaper, and may be preempted
  --queued            through a queued resource, which waits for capacity
  --out FOLDER        where COMMAND writes, in the checkout on the workers; default runs/NAME
  --keep-every S      seconds between two copies of FOLDER to the bucket; default 300
  --check-every S     seconds between two looks of supervise; default 60
  --failures N        supervise gives up after so many failed attempts in a row; default 60
  --worker W          whose logs; default 0
  --lines N           how many lines of them; default 50
  --to FOLDER         where fetch puts the results; default runs/NAME
  --yes               delete without asking (without it, delete refuses)
  --dry-run           print every command, of supervise for a life with one preemption; run none

COMMAND is python -m experiments.skipinit_lr_batch by default; --out FOLDER is added to it.
END
}

# The states of a TPU, and of a queued resource before it has one, from which it does not come back.
lost='PREEMPTED TERMINATED HIDDEN SUSPENDED FAILED'

project=${TPU_PROJECT:-} zone=${TPU_ZONE:-} name=${TPU_NAME:-}
type=${TPU_TYPE:-} version=${TPU_VERSION:-} bucket=${TPU_BUCKET:-}
spot='' queued='' out='' keep_every=300 check_every=60 failures=60
worker=0 lines=50 to='' yes=''
command=(python -m experiments.skipinit_lr_batch)
# On the workers, in the home folder.
worker_sh=(bash nf_resnets/experiments/tpu/worker.sh)

parse() {
  while [ $# -gt 0 ]; do
    case $1 in
      --project | --zone | --name | --type | --version | --bucket | --out | --keep-every | \
        --check-every | --failures | --worker | --lines | --to)
        [ $# -gt 1 ] || die "$1 needs a value."
        ;;
    esac
    case $1 in
      --project) project=$2 && shift ;;
      --zone) zone=$2 && shift ;;
      --name) name=$2 && shift ;;
      --type) type=$2 && shift ;;
      --version) version=$2 && shift ;;
      --bucket) bucket=$2 && shift ;;
      --spot) spot=1 ;;
      --queued) queued=1 ;;
      --out) out=$2 && shift ;;
      --keep-every) keep_every=$2 && shift ;;
      --check-every) check_every=$2 && shift ;;
      --failures) failures=$2 && shift ;;
      --worker) worker=$2 && shift ;;
      --lines) lines=$2 && shift ;;
      --to) to=$2 && shift ;;
      --yes) yes=1 ;;
      --dry-run) dry_run=1 ;;
      --)
        shift
        [ $# -gt 0 ] || die "no command found after --; expected one, or no --."
        command=("$@")
        return
        ;;
      *) die "'$1' is not an option; see tpu.sh --help." ;;
    esac
    shift
  done
}

# needs SETTING...: each must be given, and look as Google Cloud wants it.
needs() {
  local setting value pattern example
  for setting in "$@"; do
    value=${!setting}
    case $setting in
      project) pattern='^([a-z0-9.-]+:)?[a-z][-a-z0-9]{4,28}[a-z0-9]$' example=my-project ;;
      zone) pattern='^[a-z]+-[a-z]+[0-9]+-[a-z]$' example=us-central2-b ;;
      name) pattern='^[a-z]([-a-z0-9]{0,61}[a-z0-9])?$' example=lr-sweep ;;
      type) pattern='^[a-z0-9]+-[0-9]+$' example=v5litepod-16 ;;
      version) pattern='^[a-z0-9][-a-z0-9._]*$' example=v2-alpha-tpuv5-lite ;;
      bucket)
        pattern='^gs://[a-z0-9][-a-z0-9._]{1,61}[a-z0-9](/[A-Za-z0-9_.-]+)*$'
        example=gs://my-bucket/sweeps
        ;;
    esac
    if [ -z "$value" ]; then
      local variable
      variable=TPU_$(printf '%s' "$setting" | tr '[:lower:]' '[:upper:]')
      die "--$setting is missing; give it, or set $variable, such as $example."
    fi
    [[ $value =~ $pattern ]] || die "--$setting '$value' found; expected something like $example."
  done
}

check_options() {
  local word
  positive --keep-every "$keep_every"
  positive --check-every "$check_every"
  positive --failures "$failures"
  positive --lines "$lines"
  case $worker in
    '' | *[!0-9]*) die "--worker '$worker' found; expected a number, from 0." ;;
  esac
  out=${out:-runs/$name}
  to=${to:-runs/$name}
  case /$out/ in
    //* | */../* | *[!A-Za-z0-9_./-]*)
      die "--out '$out' found; expected a folder in the checkout, such as runs/my_sweep."
      ;;
  esac
  for word in "${command[@]}"; do
    case $word in
      --out | --out=*) die "--out found in the command; it is an option of tpu.sh, before --." ;;
    esac
  done
}

tpu() {
  local verb=$1
  shift
  run gcloud compute tpus tpu-vm "$verb" "$name" --project="$project" --zone="$zone" "$@"
}

queued_resource() {
  local verb=$1
  shift
  run gcloud compute tpus queued-resources "$verb" "$name" \
    --project="$project" --zone="$zone" "$@"
}

# on WORKERS WORD...: runs a command there, of which every word arrives as it is.
on() {
  local workers=$1
  shift
  tpu ssh --quiet --worker="$workers" --command="$(quoted "$@")" </dev/null
}

create() {
  local options=()
  [ -z "$spot" ] || options=(--spot)
  if [ -n "$queued" ]; then
    queued_resource create --node-id="$name" --accelerator-type="$type" \
      --runtime-version="$version" ${options[@]+"${options[@]}"}
  else
    tpu create --accelerator-type="$type" --version="$version" ${options[@]+"${options[@]}"}
  fi
}

delete() {
  if [ -n "$queued" ]; then
    queued_resource delete --force --quiet
  else
    tpu delete --quiet
  fi
}

# The checkout goes to the bucket, so that what is started again is what was started first.
upload() {
  local source=$scratch/source.tar.gz
  run git -C "$here/../.." archive --format=tar.gz --output="$source" HEAD &&
    run gcloud storage cp "$source" "$bucket/$name/source.tar.gz" &&
    # A worker that does not find it among the results knows that it has not got them.
    run gcloud storage cp "$here/README.md" "$bucket/$name/out/.kept"
}

install_workers() {
  local copy unpack='mkdir -p nf_resnets; tar -xzf source.tar.gz -C nf_resnets'
  copy=$(quoted gcloud storage cp "$bucket/$name/source.tar.gz" source.tar.gz)
  on all bash -ec "$copy; $unpack; $(quoted "${worker_sh[@]}" install)"
}

start_command() {
  local options=(--bucket "$bucket/$name" --out "$out")
  # Worker 0 is process 0, which writes; it alone copies to the bucket.
  on all "${worker_sh[@]}" start "${options[@]}" -- "${command[@]}" --out "$out" &&
    on 0 "${worker_sh[@]}" keep "${options[@]}" --every "$keep_every"
}

# Whatever an earlier start left there would end the supervision at once.
forget_the_end() {
  if [ -n "$dry_run" ]; then
    run gcloud storage rm --quiet "$bucket/$name/exit"
  else
    gcloud storage rm --quiet "$bucket/$name/exit" 2>/dev/null || true # most often there is none
  fi
}

# The answers that --dry-run imagines: one preemption, then the end.
imagined=(ABSENT READY - READY - PREEMPTED READY - READY 0)

# ask COMMAND...: sets answer to what the command prints; false if it fails.
ask() {
  if [ -n "$dry_run" ]; then
    run "$@"
    answer=${imagined[0]}
    imagined=("${imagined[@]:1}")
    printf '# imagined answer: %s\n' "$answer"
    [ "$answer" != - ]
  else
    answer=$(run "$@" 2>"$scratch/problems")
  fi
}

# Sets state; ABSENT if there is no such TPU, UNKNOWN if nobody can say.
find_state() {
  local place=(--project="$project" --zone="$zone")
  if [ -n "$queued" ]; then
    ask gcloud compute tpus queued-resources describe "$name" "${place[@]}" \
      '--format=value(state.state)' || answer=$(absent_or_unknown)
    state=${answer:-UNKNOWN}
    # A queued resource can be active while its TPU is no longer there.
    [ "$state" = ACTIVE ] || return 0
  fi
  ask gcloud compute tpus tpu-vm describe "$name" "${place[@]}" '--format=value(state)' ||
    answer=$(absent_or_unknown)
  state=${answer:-UNKNOWN}
  if [ -n "$queued" ] && [ "$state" = ABSENT ]; then
    state=SUSPENDED
  fi
}

absent_or_unknown() {
  if grep -q NOT_FOUND "$scratch/problems"; then
    echo ABSENT
  else
    cat "$scratch/problems" >&2
    echo UNKNOWN
  fi
}

supervise() {
  local ready='' failed=0
  [ -z "$queued" ] || imagined=(ABSENT ACTIVE READY - ACTIVE READY - SUSPENDED ACTIVE READY - \
    ACTIVE READY 0)
  upload || die "the checkout could not be copied to $bucket/$name."
  forget_the_end
  while [ "$failed" -lt "$failures" ]; do
    find_state
    case " $lost " in
      *" $state "*)
        say "$name is $state: it is made again."
        ready=''
        if delete && create; then failed=0; else failed=$((failed + 1)); fi
        ;;
      *)
        case $state in
          READY)
            # After a restart of the machine, too; what is running already is left alone.
            if [ -z "$ready" ]; then
              say "$name is ready."
              if install_workers && start_command; then
                ready=1 failed=0
              else
                failed=$((failed + 1))
              fi
            fi
            if [ -n "$ready" ] && ask gcloud storage cat "$bucket/$name/exit"; then
              finish "$answer"
              return
            fi
            ;;
          ABSENT)
            ready=''
            if create; then failed=0; else failed=$((failed + 1)); fi
            ;;
          STOPPED)
            ready=''
            if tpu start; then failed=0; else failed=$((failed + 1)); fi
            ;;
          UNKNOWN) failed=$((failed + 1)) ;;
          *) ready='' ;; # on its way to one of the others
        esac
        ;;
    esac
    run sleep "$check_every"
  done
  say "gave up after $failed failures in a row; $name is left as it is."
  return 1
}

finish() {
  fetch
  if [ "$1" != 0 ]; then
    say "the command ended with exit code $1; $name is left as it is, see tpu.sh logs."
    return 1
  fi
  say "the command is done; results are in $to."
  [ -z "$yes" ] || delete
}

fetch() {
  run mkdir -p "$to"
  run gcloud storage rsync --recursive "$bucket/$name/out" "$to"
}

status() {
  imagined=(READY)
  [ -z "$queued" ] || imagined=(ACTIVE READY)
  find_state
  printf '%s: %s\n' "$name" "$state"
  [ "$state" != READY ] || on all "${worker_sh[@]}" status
}

main() {
  local verb=${1:-}
  case $verb in
    '' | -h | --help | help)
      usage
      [ -n "$verb" ] || exit 2
      return
      ;;
    create | install | start | supervise | status | logs | stop | fetch | delete) ;;
    *) die "'$verb' is not a verb; see tpu.sh --help." ;;
  esac
  shift
  parse "$@"
  needs name
  check_options
  case $verb in
    fetch) needs bucket ;;
    *) needs project zone ;;
  esac
  case $verb in
    create | supervise) needs type version ;;
  esac
  case $verb in
    install | start | supervise) needs bucket ;;
    delete)
      [ -n "$yes$dry_run" ] ||
        die "delete ends $name in $project for good; expected --yes with it."
      ;;
  esac
  [ -n "$dry_run" ] || command -v gcloud >/dev/null ||
    die "gcloud is not installed; see https://cloud.google.com/sdk/docs/install."

  scratch=SCRATCH
  if [ -z "$dry_run" ]; then
    scratch=$(mktemp -d)
    trap 'rm -rf "$scratch"' EXIT
  fi
  case $verb in
    create) create ;;
    install) upload && install_workers ;;
    start) forget_the_end && start_command ;;
    supervise) supervise ;;
    status) status ;;
    logs) on "$worker" tail -n "$lines" nf_resnets.run/log ;;
    stop) on all "${worker_sh[@]}" stop ;;
    fetch) fetch ;;
    delete) delete ;;
  esac
}

main "$@"
