"""Prints an unexpected error as one line, and logs how it came about."""

from __future__ import annotations

import contextlib
import logging
import traceback
from pathlib import Path

import towline
import towline_once

_OURS = tuple(one.__path__[0] for one in (towline, towline_once))


def told(error: Exception) -> str:
    text = " ".join(str(error).split())
    frames = [one for one in traceback.extract_tb(error.__traceback__) if _is_ours(one)]
    where = f" ({Path(frames[-1].filename).name}:{frames[-1].lineno})" if frames else ""
    what = f"{type(error).__name__}: {text}" if text else type(error).__name__
    return f"unforeseen {what}{where}; TOWLINE_LOG__LEVEL=debug logs how it came about"


def _is_ours(frame: traceback.FrameSummary) -> bool:
    return frame.filename.startswith(_OURS)


def log(error: Exception) -> None:
    """Only `serve` and `worker` have set up a log by now."""
    if logging.getLogger("towline").level == logging.NOTSET:
        from towline import config
        from towline.observability import logs

        with contextlib.suppress(Exception):  # perhaps it is the settings that are wrong
            wanted = config.load().log
            logs.configure(wanted.format, wanted.level)
    logging.getLogger("towline").debug("unforeseen", exc_info=error)
