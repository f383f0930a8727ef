#!/usr/bin/env bash
# Follows the README literally: makes a new crate per program in it, runs the `cargo add` commands that the README has up to
# there, pastes the program and compiles it. The crates depend on this folder instead of crates.io. Without an API key, a
# program of a service must fail with an error that names the variable of the key.
set -euo pipefail
cd "$(dirname "$0")/.."
root=$PWD
export CARGO_TARGET_DIR="${CARGO_TARGET_DIR:-$root/target}"
unset ANTHROPIC_API_KEY
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT

# Writes each program to a file, and the commands before the next program to another.
awk -v work="$work" '
  /^```rust/ { number++; inside = 1; next }
  /^```/ { inside = 0; next }
  inside { print > (work "/" number ".rs"); next }
  { line = $0; while (match(line, /cargo add [^`]*/)) {
      print substr(line, RSTART, RLENGTH) > (work "/" (number + 0) ".sh"); line = substr(line, RSTART + RLENGTH) } }
' README.md

programs=$(find "$work" -name '*.rs' | wc -l)
for number in $(seq "$programs"); do
  crate="$work/readme-$number"
  cargo new --quiet --vcs none "$crate"
  cp "$work/$number.rs" "$crate/src/main.rs"
  cp Cargo.lock "$crate/Cargo.lock"
  for before in $(seq 0 "$number"); do
    [ -f "$work/$before.sh" ] || continue
    while read -r _ _ name features; do
      [ "$name" != omni-agent ] || features="${features%%--path *} --path $root"
      # shellcheck disable=SC2086
      (cd "$crate" && cargo add --quiet "$name" $features)
    done <"$work/$before.sh"
  done
  (cd "$crate" && cargo build --quiet)
  if grep -q 'anthropic:' "$crate/src/main.rs"; then
    (cd "$crate" && cargo run --quiet 2>&1 || true) | grep -q ANTHROPIC_API_KEY
  fi
  echo "program $number of the README compiles"
done
[ "$programs" -gt 0 ]
