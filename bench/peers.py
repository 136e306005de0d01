"""Packages that are only measured beside Towline: they come with requirements-bench.lock."""

from __future__ import annotations

import importlib
import importlib.util
import sys
from types import ModuleType
from typing import Any


def load(name: str) -> Any:
    """The module, untyped: the checks run where the peers are not installed."""
    try:
        return importlib.import_module(name)
    except ModuleNotFoundError as missing:
        raise SystemExit(f"{missing.name} is not installed: run make bench") from missing


def stand_in_for_boto3() -> None:
    """Powertools imports boto3 for its DynamoDB store even where only its Redis store is used."""
    if importlib.util.find_spec("boto3") is not None:
        return
    unused = {
        "boto3": (),
        "boto3.dynamodb": (),
        "boto3.dynamodb.types": ("TypeDeserializer",),
        "botocore": (),
        "botocore.exceptions": ("ClientError",),
    }
    for name, classes in unused.items():
        module = ModuleType(name)
        for attribute in classes:
            setattr(module, attribute, type(attribute, (Exception,), {}))
        sys.modules[name] = module
