#!/usr/bin/env bash
# Runs the conformance suite of the Model Context Protocol, `useChat`, both AG-UI clients and the front ends of
# `examples/front_ends` in their newest versions of npm, and prints the versions and the reports. The AG-UI clients keep
# their major versions, because the tests cover both. CI runs the versions that the lock files name, without CopilotKit.
set -uo pipefail
cd "$(dirname "$0")/.."
export OMNI_NEWEST='conformance use_chat assistant_ui copilot_kit ag_ui' OMNI_NO_SKIPS=1

failed=()
run() { # test binary, filter, flags
  printf '\n== %s\n' "$2"
  cargo test --quiet --all-features --test "$1" "$2" -- --nocapture "${@:3}" || failed+=("$2")
}
run mcp conformance::suite
run web use_chat::
run web front_end_ --include-ignored
run web ag_ui::
[ ${#failed[@]} -eq 0 ] || { printf '\nfailed: %s\n' "${failed[*]}"; exit 1; }
