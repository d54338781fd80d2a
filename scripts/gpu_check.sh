#!/usr/bin/env bash
# Checks a machine with a GPU, which needs no network and no compiler.
#
#   scripts/gpu_check.sh pack [DIR]    here: builds the program, compiles the kernels to PTX where CUDA's
#                                      compiler is (no GPU is needed for that), and puts all that is to be
#                                      carried into DIR (target/gpu_check); a few MiB
#   scripts/gpu_check.sh [ARGUMENT...] there: runs the program beside this script, or the one of target/release.
#                                      With arguments of the program, as --shapes 1000 or --ordinal 1
#
# The compiler is in the Python of KVROOM_PYTHON or python3, by kernels/tests/ptx/requirements.txt. Where it is
# not, the kernels are compiled on the machine itself, by NVRTC, if that is there.
#
# Exit codes are those of the program: 0 good, 1 a wrong byte or a missed bar, 2 usage, 3 no device.
set -euo pipefail
here=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)

pack() {
    local root out compiled
    root=$(dirname "$here")
    cd "$root"
    out=${1:-${CARGO_TARGET_DIR:-$root/target}/gpu_check}
    cargo build --release --locked --example gpu_check
    mkdir -p "$out"
    install -m 755 "${CARGO_TARGET_DIR:-$root/target}/release/examples/gpu_check" "$out/gpu_check"
    install -m 755 "$here/gpu_check.sh" "$out/gpu_check.sh"
    rm -f "$out/kernels.ptx"
    compiled=$(mktemp -d)
    "$out/gpu_check" --print-source >"$compiled/kvroom.cu"
    # PTX for the oldest architecture runs on all later ones: their driver assembles it.
    if "${KVROOM_PYTHON:-python3}" kernels/tests/ptx/compile.py "$compiled/kvroom.cu" "$compiled" sm_80 -- --std=c++17; then
        install -m 644 "$compiled/sm_80.ptx" "$out/kernels.ptx"
    else
        echo "gpu_check: no PTX is packed; the machine with the GPU then needs NVRTC (libnvrtc.so)" >&2
    fi
    rm -rf "$compiled"
    echo "Carry $out to the machine and run there: gpu_check.sh"
}

if [[ ${1:-} == pack ]]; then
    shift
    pack "$@"
    exit
fi

program=$here/gpu_check
[[ -x $program ]] || program=${CARGO_TARGET_DIR:-$here/../target}/release/examples/gpu_check
if [[ ! -x $program ]]; then
    echo "gpu_check: there is no $program; build it by: $0 pack" >&2
    exit 2
fi
code=()
if [[ -f $here/kernels.ptx ]]; then code=(--code "$here/kernels.ptx"); fi
# The program has bounds for each step and for all of them; this one is for a driver that does not let it exit.
status=0
timeout --kill-after=5 235 "$program" "${code[@]}" "$@" || status=$?
if ((status == 124 || status == 137)); then
    echo "gpu_check: it did not end within 235 seconds" >&2
    exit 1
fi
exit "$status"
