#!/usr/bin/env bash
# Runs the live tests against a small real model on this machine, which it sets up, starts and stops. Where the
# model can't be had, it says why and succeeds; a server that was up before stays up.
set -uo pipefail
cd "$(dirname "$0")/.." || exit

was_up=no
scripts/local-model.sh status >/dev/null 2>&1 && was_up=yes

urls=$(scripts/local-model.sh start)
code=$?
case $code in
0) ;;
3 | 4)
    echo "live tests skipped: the local model can't be had here, for the reason above"
    exit 0
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
