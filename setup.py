"""Declares the optional C kernels; everything else about the package is in pyproject.toml."""

import sysconfig

from setuptools import Extension, setup

# A free-threaded interpreter has no stable ABI; there the extension is built for that one version.
STABLE_ABI = not sysconfig.get_config_var("Py_GIL_DISABLED")

setup(
    package_dir={"": "src"},
    ext_modules=[
        Extension(
            "msprobe._kernels",
            sources=["src/msprobe/_kernels.c", "src/msprobe/_pair.c", "src/msprobe/_hash.c"],
            depends=["src/msprobe/_widen.h"],
            # -ffp-contract=off: the same bits on each machine, with fused multiply-add or without.
            extra_compile_args=["-std=gnu11", "-O3", "-ffp-contract=off"],
            define_macros=[("Py_LIMITED_API", "0x030A0000")] if STABLE_ABI else [],
            py_limited_api=STABLE_ABI,
            optional=True,
        )
    ],
    options={"bdist_wheel": {"py_limited_api": "cp310"}} if STABLE_ABI else {},
)
