#!/bin/bash
# Runs a command on a machine that may vanish. Its folder is fetched from a mounted bucket, and what
# is new in it is copied there every minute and at the end. (The bucket itself has no locks.) A copy
# that is cut is harmless: rows and checkpoints have CRCs, and what is damaged is made again.
#
#   bash experiments/cloud/keep.sh runs/lr-sweep /results COMMAND ...
set -euo pipefail
folder=$(realpath -m "$1") bucket=$(realpath -e "$2")
kept=$bucket/${folder##*/} copied=$folder.copied
shift 2
mkdir -p "$folder" "$kept"

if [ ! -e "$copied" ]; then  # this machine has made nothing yet
  cp -r "$kept/." "$folder"
  touch "$copied"
fi

copy() {  # what has changed; so a host that makes no rows replaces none
  touch "$copied.next" &&
    (cd "$folder" && find . -type f -newer "$copied" -exec cp --parents -t "$kept" {} +) &&
    mv "$copied.next" "$copied"
}

"$@" &
command=$!
trap 'kill "$command"' TERM
(while sleep "${EVERY:-60}" && kill -0 $$; do copy || true; done) >/dev/null 2>&1 &
copying=$!

wait "$command" && code=0 || code=$?
while kill -0 "$command" 2>/dev/null; do  # a signal ends the first wait, the command a second one
  wait "$command" && code=0 || code=$?
done
kill "$copying"
copy
exit "$code"
