# shellcheck shell=bash
# Sourced by tpu.sh and worker.sh: how a command is run, printed instead of run, or refused.

dry_run=${dry_run:-}

# Runs a command; with --dry-run only prints it, quoted so that it could be pasted.
run() {
  if [ -n "$dry_run" ]; then
    printf '%s\n' "$(quoted "$@")"
  else
    "$@"
  fi
}

# The words as one line that a shell reads as the same words.
quoted() {
  local word line='' quote="'\\''"
  for word in "$@"; do
    case $word in
      '' | *[!A-Za-z0-9_./:=@%,+-]*) word="'${word//\'/$quote}'" ;;
    esac
    line="$line${line:+ }$word"
  done
  printf '%s' "$line"
}

say() {
  printf '%s %s\n' "$(date +%H:%M:%S)" "$*" >&2
}

die() {
  printf '%s: %s\n' "${0##*/}" "$*" >&2
  exit 2
}

# positive FLAG VALUE: a whole number of at least 1.
positive() {
  case $2 in
    '' | 0* | *[!0-9]*) die "$1 '$2' found; expected a whole number of at least 1." ;;
  esac
}
