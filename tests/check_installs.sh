#!/bin/bash
# Installs sandboxd as people do (uv tool, pipx, a virtual environment, pip --user) and uses each installation in a
# project that has programs and modules planted wherever its environment leads. Nothing planted may run.
# Needs uv, pipx and a package index, so no test runs it: tests/check_installs.sh [EMPTY-DIRECTORY]
set -eu
source=$(cd "$(dirname "$0")/.." && pwd)
base=${1:-$(mktemp -d /var/tmp/sandboxd-installs.XXXXXX)}
wheels=$base/wheels failed=0
python=${PYTHON:-python3} # not that of a virtual environment
export UV_LINK_MODE=copy
unset XDG_DATA_HOME UV_TOOL_DIR PIPX_HOME VIRTUAL_ENV PYTHONPATH
uv build -q --wheel -o "$wheels" "$source"
uv build -q --wheel -o "$wheels" "$source/client"

plant() { # what a sandboxed command could have left in a project
    mkdir -p "$1/.venv/bin" "$1/node_modules/.bin" "$1/evil"
    local place name
    for place in .venv/bin node_modules/.bin; do
        for name in bwrap systemctl sandboxd python3 git nft ip sh bash env; do
            printf '#!/bin/sh\ntouch "%s/RAN-%s"\nexec /usr/bin/%s "$@"\n' "$1" "$name" "$name" >"$1/$place/$name"
            chmod 755 "$1/$place/$name"
        done
    done
    for name in sitecustomize usercustomize json socket sandboxd sandboxd_client pydantic; do
        echo "open('$1/RAN-$name.py', 'w')" | tee "$1/$name.py" >"$1/evil/$name.py"
    done
}

ran() { find "$1" -maxdepth 1 -name 'RAN-*' -printf '%f '; }

try() { # NAME PROGRAM
    local project=$base/$1/project
    plant "$project"
    mkdir -m 700 "$base/$1/run"
    (
        cd "$project"
        export SANDBOXD_SOCKET=$base/$1/run/s VIRTUAL_ENV=$project/.venv PYTHONPATH=.:$project/evil
        export PATH=$project/.venv/bin:$project/node_modules/.bin:$PATH PYTHONSTARTUP=$project/evil/json.py
        export PYTHONUSERBASE=$project/evil OPENSSL_CONF=$project/evil/none GCONV_PATH=$project/evil
        for words in "run -- true" status check "explain path ." "trust --list" "service status" restart "run -- true" stop
        do
            "$2" $words >"$base/$1/output" 2>&1 || [ "$words" = "service status" ] || [ "$words" = check ] ||
                { echo "$1: sandboxd $words failed"; cat "$base/$1/output"; }
        done
    )
    if [ -n "$(ran "$project")" ]; then
        echo "$1: planted code was run: $(ran "$project")"
        failed=1
    else
        echo "$1: fine"
    fi
}

at_home() { mkdir -p "$base/$1/home" && export HOME=$base/$1/home; }

at_home uv-tool && uv tool install -q --find-links "$wheels" sandboxd && try uv-tool "$HOME/.local/bin/sandboxd"
at_home pipx && pipx install -q --pip-args="--find-links $wheels" "$wheels"/sandboxd-*.whl &&
    try pipx "$HOME/.local/bin/sandboxd"
at_home venv && "$python" -m venv "$base/venv/tool" &&
    "$base/venv/tool/bin/pip" install -q --find-links "$wheels" sandboxd && try venv "$base/venv/tool/bin/sandboxd"
at_home user && "$python" -m pip install -q --user --break-system-packages --find-links "$wheels" sandboxd
if (cd / && "$HOME/.local/bin/sandboxd" --version) 2>"$base/user/output"; then
    echo "user: an installation in the user site was run"
    failed=1
else
    grep -q 'uv tool install' "$base/user/output" && echo "user: refused, with a hint"
fi

mkdir "$base/planted" && plant "$base/planted"  # the twin: the same is run where nothing is done about it
(cd "$base/planted" && PATH=$base/planted/.venv/bin:$PATH PYTHONPATH=. python3 -c '')
[ -n "$(ran "$base/planted")" ] || { echo "what is planted does not run at all"; failed=1; }
exit $failed
