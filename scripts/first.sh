#!/usr/bin/env bash
# Runs the first programs of `docs/getting-started.md` with the offline demo model, and checks what they print.
set -euo pipefail
cd "$(dirname "$0")/.."
unset MODEL
export DEMO_PAUSE_MS=0
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT

# Builds all programs at once, in a target folder that other examples share.
programs=(chat terminal approval typed branches mcp service durable agents provider)
cargo build --quiet --all-features $(printf -- '--example first_%s ' "${programs[@]}")
target=${CARGO_TARGET_DIR:-target}/debug/examples
run() { timeout 60 "$target/first_$1" "${@:2}"; }

# Fails unless the output of a program, on standard input, has these lines in this order.
prints() { # name, lines
  local shown rest
  shown=$(cat) rest=$shown
  for line in "${@:2}"; do
    case $rest in
      *"$line"*) rest=${rest#*"$line"} ;;
      *) printf '%s does not print %q:\n%s\n' "$1" "$line" "$shown" >&2; exit 1 ;;
    esac
  done
  echo "$1 works"
}

printf 'What is the weather in Oslo?\nHello\n' | run chat |
  prints chat '[weather {"city":"Oslo"}]' 'weather returned Sun in Oslo.' 'Hello'
printf 'What is the weather in Oslo?\n/tools\n' | run terminal |
  prints terminal '→ weather {"city":"Oslo"}' '← weather: Sun in Oslo.' '  weather: Tells the weather.'
echo yes | run approval | prints approval 'delete_file {"path":"notes.txt"}: type yes' 'returned notes.txt is gone'
echo no | run approval | prints 'approval without an approval' 'delete_file failed: No.'
run typed | prints typed 'made up'
run branches "$folder/branches" | prints branches 'Plan a weekend in Lisbon.' 'What does it cost?' 'Plan a weekend in Porto.'
run mcp node tests/mcp/small.mjs | prints mcp 'server__echo returned echo: Hello!'
run durable "$folder/approvals" | prints 'durable, before the decision' 'send_euros {"to":"Ann","euros":20} waits'
run durable "$folder/approvals" | prints 'durable, after the decision' 'send_euros returned Ann got 20'
run agents | prints agents '[poet {"task":"a poem on rain"}]' '[critic {"task":"it"}]' 'critic returned'
run provider | prints provider 'It is 12:00.'

PORT=0 run service >"$folder/service" &
trap 'kill %1; rm -rf "$folder"' EXIT
until grep -q http "$folder/service"; do kill -0 $!; sleep 0.1; done
url=$(cat "$folder/service")
post() { curl --silent --fail --max-time 20 --noproxy '*' -H 'content-type: application/json' -d "$2" "$url$1" "${@:3}"; }
if post /login '{"user":"ann","password":"wrong"}'; then exit 1; fi
ann=$(post /login '{"user":"ann","password":"fjord"}') ben=$(post /login '{"user":"ben","password":"ocean"}')
if post /agent/conversations '{}'; then exit 1; fi
id=$(post /agent/conversations '{}' -H "authorization: Bearer $ann" | sed 's/.*"id":"\([^"]*\)".*/\1/')
prompt='{"type":"run","prompt":{"content":[{"type":"text","text":"Hello"}]}}'
if post "/agent/conversations/$id/commands" "$prompt" -H "authorization: Bearer $ben"; then exit 1; fi
post "/agent/conversations/$id/commands" "$prompt" -H "authorization: Bearer $ann" | prints service '"started"'
