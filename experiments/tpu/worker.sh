#!/usr/bin/env bash
# On a TPU worker, called by tpu.sh: installs the checkout, runs a command that outlives the
# connection, keeps copies of its results in a bucket and takes them from there on a new machine.
set -euo pipefail

checkout=$(cd "$(dirname "${BASH_SOURCE[0]}")/../.." && pwd)
here=$checkout/experiments/tpu
# shellcheck source=experiments/tpu/run.sh
. "$here/run.sh"

usage() {
  cat <<'END'
Usage: worker.sh VERB [OPTIONS] [-- COMMAND...]

  install                                     Python and the package, in .venv of the checkout
  start --bucket B --out FOLDER -- COMMAND    COMMAND in the background, unless it is running
  keep  --bucket B --out FOLDER [--every S]   FOLDER to B/out every S seconds, in the background
  status                                      whether COMMAND runs, or its exit code
  stop                                        asks COMMAND to save and end

  --attempts N   COMMAND is started so many times before its failure counts; default 3
  --pause S      seconds between attempts, also of copies; default 10
  --dry-run      print what install, or COMMAND's and the copies' life, would execute
END
}

# Beside the checkout: what was printed, process numbers, locks, the exit code.
state=${checkout}.run
bucket='' out='' every=300 attempts=3 pause=10
command=()

parse() {
  while [ $# -gt 0 ]; do
    case $1 in
      --bucket | --out | --every | --attempts | --pause) [ $# -gt 1 ] || die "$1 needs a value." ;;
    esac
    case $1 in
      --bucket) bucket=$2 && shift ;;
      --out) out=$2 && shift ;;
      --every) every=$2 && shift ;;
      --attempts) attempts=$2 && shift ;;
      --pause) pause=$2 && shift ;;
      --dry-run) dry_run=1 ;;
      --)
        shift
        command=("$@")
        return
        ;;
      *) die "'$1' is not an option; see worker.sh --help." ;;
    esac
    shift
  done
}

install() {
  cd "$checkout"
  # Images come with Pythons older than the package needs: uv brings its own.
  if [ ! -x "$HOME/.local/bin/uv" ] && ! command -v uv >/dev/null; then
    run bash -o pipefail -c 'curl -LsSf --retry 5 https://astral.sh/uv/install.sh | sh'
  fi
  PATH=$HOME/.local/bin:$PATH
  [ -x .venv/bin/python ] || run uv venv --quiet --python 3.13 .venv
  # Quick where everything is there already.
  run uv pip install --quiet --python .venv/bin/python --constraint requirements.txt \
    --editable '.[tpu]'
}

# Runs a verb of this file in a session of its own, so that it does not end with the connection.
background() {
  if [ -n "$dry_run" ]; then
    "$@"
  else
    mkdir -p "$state"
    setsid nohup bash "$here/worker.sh" "$@" >>"$state/log" 2>&1 </dev/null &
  fi
}

running() {
  [ -e "$state/$1.lock" ] && ! flock --nonblock "$state/$1.lock" true
}

# Takes the lock of that name, until the last of this process and its children has ended. One that
# is just ending is waited for; if it goes on, it does what this one would do.
hold() {
  exec 9>"$state/$1.lock"
  flock --timeout 60 9 || exit 0
}

start() {
  if running run && [ ! -e "$state/exit" ]; then
    say "the command is running already."
    return
  fi
  [ -n "$dry_run" ] || rm -f "$state/exit"
  background run_command --bucket "$bucket" --out "$out" --attempts "$attempts" \
    --pause "$pause" -- "${command[@]}"
}

# On a new machine, what was kept of the results, with the mark that tpu.sh install puts among them.
# False if it cannot be had: never start from nothing because a network was down, and then keep that.
take() {
  [ ! -e "$state/taken" ] || return 0
  run mkdir -p "$out" &&
    run gcloud storage rsync --recursive "$bucket/out" "$out" &&
    run test -e "$out/.kept" &&
    run touch "$state/taken"
}

run_command() {
  local attempt=1 code stopped='' child
  [ -n "$dry_run" ] || hold run
  cd "$checkout"
  PATH=$checkout/.venv/bin:$HOME/.local/bin:$PATH
  until take; do
    say "the results kept in $bucket cannot be had, attempt $attempt."
    [ "$attempt" -lt "$attempts" ] || end 1
    attempt=$((attempt + 1))
    sleep "$pause"
  done
  if [ -n "$dry_run" ]; then
    run "${command[@]}"
    return
  fi
  export PYTHONUNBUFFERED=1 # what it prints is in the log at once
  trap 'stopped=1' TERM
  echo $$ >"$state/run.pid"
  for ((attempt = 1; attempt <= attempts; attempt++)); do
    say "attempt $attempt: $(quoted "${command[@]}")"
    "${command[@]}" &
    child=$!
    # A signal ends wait, but not the child, which has something to save.
    while :; do
      code=0
      wait "$child" || code=$?
      kill -0 "$child" 2>/dev/null || break
    done
    say "exit code $code."
    # 2 is a command line that will not get better.
    case $code in 0 | 2) break ;; esac
    [ -z "$stopped" ] || break
    [ "$attempt" -eq "$attempts" ] || sleep "$pause"
  done
  end "$code"
}

end() {
  echo "$1" >"$state/exit.new"
  mv "$state/exit.new" "$state/exit"
  rm -f "$state/run.pid"
  exit "$1"
}

keep() {
  background keep_copies --bucket "$bucket" --out "$out" --every "$every" \
    --pause "$pause"
}

keep_copies() {
  local waited
  [ -n "$dry_run" ] || hold keep
  cd "$checkout"
  PATH=$checkout/.venv/bin:$PATH
  if [ -n "$dry_run" ]; then
    copy
    run gcloud storage cp "$state/log" "$bucket/log"
    run gcloud storage cp "$state/exit" "$bucket/exit"
    return
  fi
  echo $$ >"$state/keep.pid"
  trap 'rm -f "$state/keep.pid"' EXIT
  # The machine is going down: a last try.
  trap 'copy; exit 143' TERM
  while :; do
    for ((waited = 0; waited < every; waited++)); do
      [ ! -e "$state/exit" ] || break
      sleep 1
    done
    # Looked at before the copy: what was written last is in it.
    if [ -e "$state/exit" ]; then
      if copy_at_the_end; then return; fi
    else
      copy || say "no copy could be made; the next one may be."
    fi
  done
}

copy_at_the_end() {
  # Without taken there is nothing of ours: the end alone is told.
  { [ ! -e "$state/taken" ] || copy; } &&
    run gcloud storage cp "$state/log" "$bucket/log" &&
    run gcloud storage cp "$state/exit" "$bucket/exit" && return
  say "the last copy could not be made; trying again."
  sleep "$pause"
  return 1
}

# Ledgers go first, so that the bucket's is never older than its checkpoints: what a ledger is ahead
# of them is trained again, and what it lags behind would be lost.
copy() {
  local ledger ledgers
  if [ -z "$dry_run" ]; then
    [ -e "$state/taken" ] && [ -e "$out/.kept" ] || return 0
  fi
  ledgers=$(run python "$here/snapshot.py" "$out" "$state/snapshot") || return 1
  if [ -n "$dry_run" ]; then
    printf '%s\n' "$ledgers"
    ledgers=LEDGER
  fi
  while IFS= read -r ledger; do
    [ -z "$ledger" ] ||
      run gcloud storage cp "$state/snapshot/$ledger" "$bucket/out/$ledger" || return 1
  done <<<"$ledgers"
  run gcloud storage rsync --recursive --delete-unmatched-destination-objects \
    "$state/snapshot" "$bucket/out"
}

status() {
  if running run; then
    echo "running since $(stat --format=%y "$state/run.pid" 2>/dev/null || echo now)"
  elif [ -e "$state/exit" ]; then
    echo "ended with exit code $(cat "$state/exit")"
  else
    echo 'not started'
  fi
  [ ! -e "$state/log" ] || tail -n 1 "$state/log"
}

stop() {
  if running run && [ -e "$state/run.pid" ]; then
    # The whole session: the loop, which then starts no other attempt, and the command.
    run kill -TERM -- "-$(cat "$state/run.pid")"
  else
    say 'the command is not running.'
  fi
}

main() {
  local verb=${1:-}
  case $verb in
    '' | -h | --help | help)
      usage
      [ -n "$verb" ] || exit 2
      return
      ;;
    install | start | run_command | keep | keep_copies | status | stop) ;;
    *) die "'$verb' is not a verb; see worker.sh --help." ;;
  esac
  shift
  parse "$@"
  positive --every "$every"
  positive --attempts "$attempts"
  case $verb in
    start | run_command | keep | keep_copies)
      [ -n "$bucket" ] || die '--bucket is missing.'
      [ -n "$out" ] || die '--out is missing.'
      ;;
  esac
  case $verb in
    start | run_command) [ "${#command[@]}" -gt 0 ] || die 'no command found after --.' ;;
  esac
  "$verb"
}

main "$@"
