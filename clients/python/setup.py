"""The engine is built by cargo: README. Here it is only packed, for all of CPython from 3.9 on."""

from setuptools import Distribution, setup


class Native(Distribution):
    def has_ext_modules(self) -> bool:
        return True


setup(distclass=Native, options={"bdist_wheel": {"py_limited_api": "cp39"}})
