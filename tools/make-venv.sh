#!/bin/sh
# Make or update the virtual environment: tools/make-venv.sh DIRECTORY, from the repository root.
# States the requirements and checks them before anything is downloaded; a refusal changes nothing.
set -eu

venv=$1
need_gb=12 # 7.5 GB installed, the rest while pip unpacks
need_glibc=2.35

refuse() { # what was wrong, what is allowed, what to do
    printf 'rwkvlab: %s; allowed: %s; try: %s\n' "$1" "$2" "$3" >&2
    exit 1
}

announce() {
    cat <<EOF
rwkvlab needs Linux x86-64, glibc >= $need_glibc and Python 3.11, 3.12 or 3.13.
Using its dependency onnxruntime-qnn means accepting Qualcomm's licence, shipped in that package's wheel
(onnxruntime_qnn/Qualcomm_LICENSE.pdf). To read it first, press Ctrl-C now and: pip download --no-deps onnxruntime-qnn==2.5.0
EOF
}

check_platform() {
    system="$(uname -s) $(uname -m)"
    [ "$system" = "Linux x86_64" ] || refuse "this is $system" "Linux x86_64 (the HTP compiler and simulator exist for nothing else)" \
        "a Linux PC, WSL2 or a container; to only run contexts on a Snapdragon machine: pip install '.[device]'"
    glibc=$(getconf GNU_LIBC_VERSION 2>/dev/null | sed 's/^glibc //') || glibc=
    oldest=$(printf '%s\n%s\n' "$need_glibc" "${glibc:-0}" | sort -V | head -n 1)
    [ "$oldest" = "$need_glibc" ] || refuse "the C library is ${glibc:-not glibc}" "glibc >= $need_glibc" \
        "Debian 12, Ubuntu 22.04, Fedora 36 or newer (or a container of one)"
}

check_disk() {
    free_gb=$(df -Pk . | awk 'NR == 2 { print int($4 / 1000000) }')
    [ "$free_gb" -ge "$need_gb" ] || refuse "only $free_gb GB are free here" "$need_gb GB" "free some space, or clone onto another disk"
}

# A name on PATH proves nothing: version managers leave stand-ins that fail when run, and Debian ships Python without venv.
find_python() {
    bare=
    for candidate in python3.11 python3.12 python3.13 python3; do
        version=$("$candidate" -c 'import sys; print("%d.%d" % sys.version_info[:2])' 2>/dev/null) || continue
        case $version in 3.11 | 3.12 | 3.13) ;; *) continue ;; esac
        if "$candidate" -c 'import venv, ensurepip' 2>/dev/null; then
            python=$candidate
            return
        fi
        bare=${bare:-$version}
    done
    [ -z "$bare" ] || refuse "Python $bare lacks its venv module" "Python 3.11-3.13 with venv and ensurepip" \
        "sudo apt install python$bare-venv"
    refuse "no usable Python found" "Python 3.11, 3.12 or 3.13 on PATH" \
        "install one, for instance: sudo apt install python3 python3-venv"
}

install() {
    if ! "$venv/bin/python" -c 'import pip' 2>/dev/null; then
        check_disk
        find_python
        echo "Making $venv with $($python --version), then installing about 200 packages: 2-4 minutes, 7.5 GB (torch's CUDA build is most)."
        "$python" -m venv --clear "$venv"
    else
        echo "Updating $venv: pyproject.toml or constraints.txt changed."
    fi
    "$venv/bin/python" -m pip install --quiet -c constraints.txt -e '.[dev]' || refuse "pip could not install the packages (its reason is above)" \
        "the versions of constraints.txt, from a package index pip can reach" "check the network and disk, then the same make command again"
    echo "Installed. To undo: make clean"
}

announce
check_platform
install
