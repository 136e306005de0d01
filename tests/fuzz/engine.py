"""Targets under atheris, coverage-guided, each in a process of its own: libFuzzer ends it itself.

Towline is imported once, instrumented, which takes a while; each target then runs in a fork.
"""

from __future__ import annotations

import contextlib
import hashlib
import importlib
import io
import logging
import os
import random
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any, Final

from tests.fuzz.target import Target, run

LONGEST_HANG: Final = 25
MEMORY_MB: Final = 3000
_OWN_BEND_ONCE_IN: Final = 40
_NOT_BEGUN: Final = 70


class Engine:
    """Import it before anything of Towline is imported: only what comes after is instrumented."""

    def __init__(self) -> None:
        self._atheris: Any = importlib.import_module("atheris")
        quiet = contextlib.redirect_stderr(io.StringIO())  # it names each module
        with quiet, self._atheris.instrument_imports(include=["towline"]):
            registry = importlib.import_module("tests.fuzz.targets")
        self._mutations: Any = importlib.import_module("tests.fuzz.mutations")
        self.targets: dict[str, Target] = dict(registry.TARGETS)

    def play(self, name: str, seconds: int, corpus: Path, broken: Path, log: Path) -> int:
        """Until the time is up or an input breaks it; its exit code. Its words go to `log`."""
        child = os.fork()
        if child:
            _, status = os.waitpid(child, 0)
            return os.waitstatus_to_exitcode(status)
        try:
            with log.open("wb") as file:
                os.dup2(file.fileno(), 1)
                os.dup2(file.fileno(), 2)
            self._fuzz(self.targets[name], seconds, corpus, broken)
        finally:
            os._exit(_NOT_BEGUN)

    def _fuzz(self, target: Target, seconds: int, corpus: Path, broken: Path) -> None:
        logging.disable(logging.CRITICAL)  # what a parser logs is not what is tried here
        corpus.mkdir(parents=True, exist_ok=True)
        for number, seed in enumerate(target.seeds()):
            (corpus / f"seed-{number}").write_bytes(seed)
        words = corpus.with_suffix(".words")
        words.write_text("".join(f'"{_escaped(word)}"\n' for word in (*target.words, b"\0")))
        options = [
            f"-max_total_time={seconds}", f"-artifact_prefix={broken}/", f"-dict={words}",
            f"-timeout={LONGEST_HANG}", f"-rss_limit_mb={MEMORY_MB}", "-print_final_stats=1",
            "-max_len=20000", "-len_control=40",
        ]  # fmt: skip
        self._atheris.Setup(
            [sys.argv[0], *options, str(corpus)],
            _keeping(broken, target),
            custom_mutator=self._mutator(target),
        )
        self._atheris.Fuzz()

    def _mutator(self, target: Target) -> Callable[[bytes, int, int], bytes]:
        """libFuzzer's own bends, and now and then those of the gate, with pieces blown up."""
        seeds = [*target.seeds()]

        def mutated(data: bytes, longest: int, seed: int) -> bytes:
            if random.Random(seed).randrange(_OWN_BEND_ONCE_IN):
                return bytes(self._atheris.Mutate(data, longest))
            bent: bytes = self._mutations.mutated(target, [data, *seeds], seed)
            return bent[:longest]

        return mutated


def _keeping(broken: Path, target: Target) -> Callable[[bytes], None]:
    """A fork does not end as libFuzzer expects, which would have kept the input itself."""

    def played(data: bytes) -> None:
        try:
            run(target, data)
        except BaseException:
            (broken / hashlib.sha256(data).hexdigest()).write_bytes(data)
            raise

    return played


def _escaped(word: bytes) -> str:
    return "".join(f"\\x{byte:02x}" for byte in word)
