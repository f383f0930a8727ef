#!/usr/bin/env bash
# Runs the live tests against a small real model on this machine, which it sets up, starts and stops. If the model is not
# available, the script reports why and succeeds, or fails if OMNI_NO_SKIPS is set. It does not stop a server that was
# already running.
set -uo pipefail
cd "$(dirname "$0")/.." || exit

was_up=no
if scripts/local-model.sh status >/dev/null 2>&1; then
    was_up=yes
elif [[ -z ${OMNI_LOCAL_CHAT_PORT:-}${OMNI_LOCAL_TOOLS_PORT:-} ]]; then
    # Another user may run a server on the default ports.
    base=$((20000 + RANDOM % 10000))
    export OMNI_LOCAL_CHAT_PORT=$base OMNI_LOCAL_TOOLS_PORT=$((base + 1))
fi

urls=$(scripts/local-model.sh start)
code=$?
case $code in
0) ;;
3 | 4)
    echo "live tests skipped: the local model is not available, for the reason above"
    [[ -z ${OMNI_NO_SKIPS:-} ]]
    exit
    ;;
*)
    echo "live tests failed: the local model did not start (exit code $code)" >&2
    exit 1
    ;;
esac
if [[ $was_up == no ]]; then
    trap 'scripts/local-model.sh stop' EXIT
fi

eval "$urls"
timeout --kill-after=10 1800 cargo test --test live
