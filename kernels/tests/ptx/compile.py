"""Compiles one CUDA source to PTX with NVRTC and assembles that with ptxas, without a GPU.

    compile.py SOURCE OUT ARCH... -- OPTION...

For each architecture (sm_90, ...) OUT gets ARCH.ptx and ARCH.log, what `ptxas -v` says. Exit code 3:
the packages of requirements.txt are not installed. Any other code but 0: it does not compile.
"""

import ctypes
import importlib.util
import pathlib
import subprocess
import sys


def package(name):
    """The folder of an installed NVIDIA package, which has files only and no module."""
    try:
        spec = importlib.util.find_spec(f"nvidia.{name}")
    except ModuleNotFoundError:
        spec = None
    if spec is None or not spec.submodule_search_locations:
        print(f"the package of nvidia.{name} is not installed in {sys.executable}", file=sys.stderr)
        sys.exit(3)
    return pathlib.Path(spec.submodule_search_locations[0])


def one(folder, pattern):
    found = sorted(folder.glob(pattern))
    if not found:
        print(f"{folder} has no {pattern}", file=sys.stderr)
        sys.exit(3)
    return found[0]


class Nvrtc:
    def __init__(self, path):
        self.lib = ctypes.CDLL(str(path))
        self.lib.nvrtcGetErrorString.restype = ctypes.c_char_p

    def check(self, code):
        if code:
            raise RuntimeError(self.lib.nvrtcGetErrorString(code).decode())

    def text(self, program, what):
        size = ctypes.c_size_t()
        self.check(getattr(self.lib, f"nvrtcGet{what}Size")(program, ctypes.byref(size)))
        buffer = ctypes.create_string_buffer(size.value)
        self.check(getattr(self.lib, f"nvrtcGet{what}")(program, buffer))
        return buffer.value.decode()

    def ptx(self, source, options):
        program = ctypes.c_void_p()
        self.check(
            self.lib.nvrtcCreateProgram(
                ctypes.byref(program), source.encode(), b"kvroom.cu", 0, None, None
            )
        )
        try:
            given = (ctypes.c_char_p * len(options))(*[option.encode() for option in options])
            code = self.lib.nvrtcCompileProgram(program, len(options), given)
            log = self.text(program, "ProgramLog").strip()
            if log:
                print(log, file=sys.stderr)
            self.check(code)
            return self.text(program, "PTX")
        finally:
            self.lib.nvrtcDestroyProgram(ctypes.byref(program))


def main():
    split = sys.argv.index("--")
    source, out, *architectures = sys.argv[1:split]
    options = sys.argv[split + 1 :]
    nvrtc = Nvrtc(one(package("cuda_nvrtc"), "lib/libnvrtc.so.*"))
    ptxas = one(package("cuda_nvcc"), "bin/ptxas")
    text = pathlib.Path(source).read_text()
    for architecture in architectures:
        number = architecture.removeprefix("sm_")
        base = pathlib.Path(out) / architecture
        ptx = nvrtc.ptx(text, [f"--gpu-architecture=compute_{number}", *options])
        base.with_suffix(".ptx").write_text(ptx)
        ran = subprocess.run(
            [ptxas, "-v", f"-arch={architecture}", "-o", base.with_suffix(".cubin"), base.with_suffix(".ptx")],
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
        )
        base.with_suffix(".log").write_text(ran.stderr)
        if ran.returncode:
            print(ran.stderr, file=sys.stderr)
            sys.exit(1)


main()
