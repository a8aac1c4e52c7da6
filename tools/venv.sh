#!/bin/sh
# venv.sh FOLDER [PYTHON]: makes an empty virtual environment, also where Debian left out what that needs.
set -eu
folder=$1
python=${2:-python3}
packages="python3-venv python3-dev gcc libc6-dev"

if ! command -v "$python" >/dev/null; then
    echo "There is no $python on this machine; on Debian: apt-get install python3 $packages" >&2
    exit 1
fi
if ! "$python" -c 'import sys; sys.exit(sys.version_info < (3, 10))'; then
    echo "$("$python" --version) is too old, 3.10 is needed; name another with: make PYTHON=python3.11 ..." >&2
    exit 1
fi

# make runs several of these at once, and only one may install packages: each waits here for those before it.
exec 9<"$0"
if command -v flock >/dev/null; then flock 9; fi

# ensurepip is what Debian leaves out of python3; without it venv fails half-way.
if ! "$python" -c 'import ensurepip, venv' 2>/dev/null; then
    if [ "$(id -u)" -eq 0 ] && command -v apt-get >/dev/null; then
        echo "Installing $packages (this $python cannot make virtual environments) ..."
        export DEBIAN_FRONTEND=noninteractive
        # shellcheck disable=SC2086  # several packages; whether it worked is asked below
        { apt-get update -qq && apt-get install -y -qq --no-install-recommends $packages; } >/dev/null || true
    fi
    if ! "$python" -c 'import ensurepip, venv' 2>/dev/null; then
        echo "This $python cannot make virtual environments; on Debian: apt-get install $packages" >&2
        exit 1
    fi
fi

exec 9<&-

if ! command -v "${CC:-cc}" >/dev/null; then
    echo "No C compiler here: msprobe will use its slower numpy kernels; on Debian: apt-get install $packages"
fi

rm -rf "$folder"
"$python" -m venv "$folder"
