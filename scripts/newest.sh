#!/usr/bin/env bash
# Runs the conformance suite of the Model Context Protocol, `useChat` and both AG-UI clients in their newest versions of
# npm, and prints the versions and the reports. The AG-UI clients keep their major versions, because the tests cover both.
# CI runs the versions that the lock files name.
set -uo pipefail
cd "$(dirname "$0")/.."
export OMNI_NEWEST='conformance use_chat ag_ui' OMNI_NO_SKIPS=1

failed=()
run() { # test binary, filter
  printf '\n== %s\n' "$2"
  cargo test --quiet --all-features --test "$1" "$2" -- --nocapture || failed+=("$2")
}
run mcp conformance::suite
run web use_chat::
run web ag_ui::
[ ${#failed[@]} -eq 0 ] || { printf '\nfailed: %s\n' "${failed[*]}"; exit 1; }
