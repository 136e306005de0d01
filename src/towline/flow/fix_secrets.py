"""Searches lines for secrets by the detectors of detect-secrets.

Its detectors alone are used: not its files, baselines, remarks that exempt a line, nor its
requests that ask a service whether a secret is a real one.
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import cache
from typing import Any, Final

from towline.core.secret_patterns import Found, Searcher
from towline.errors import MissingExtra

MISSING: Final = "secrets cannot be looked for: pip install 'towline[fix]'"
_PIECES: Final = (800, 300)
_KEYWORD_PIECES: Final = (150, 100)
"""Length and overlap: some detectors take a time that grows much faster than the line."""
_LEFT_OUT: Final = frozenset({"IPPublicDetector"})
"""An address is no secret."""
_GUESSING: Final = frozenset({"KeywordDetector", "Base64HighEntropyString", "HexHighEntropyString"})
"""They go by names and by chance, so what is no secret by its form or place is left out."""


@cache
def detect_secrets_search() -> Searcher:
    """`MissingExtra` where the package is not installed."""
    try:
        from detect_secrets.core.plugins.util import get_mapping_from_secret_type_to_class
        from detect_secrets.filters import heuristic
    except ImportError:
        raise MissingExtra(MISSING) from None
    kinds: dict[str, Any] = get_mapping_from_secret_type_to_class()
    detectors = [kind() for kind in kinds.values() if kind.__name__ not in _LEFT_OUT]

    def search(path: str, line: str) -> Found:
        for detector in detectors:
            for value in _values(detector, path, line):
                if not _harmless(heuristic, detector, path, line, value):
                    yield str(detector.secret_type), value

    return search


def _values(detector: Any, path: str, line: str) -> Iterator[str]:
    """`analyze_line` may ask the network; `analyze_string` does not."""
    if (limit := getattr(detector, "entropy_limit", None)) is not None:
        for value in detector.analyze_string(line):
            if detector.calculate_shannon_entropy(value) > limit:
                yield str(value)
        return
    by_keyword = type(detector).__name__ == "KeywordDetector"
    regexes = _keyword_regexes(path) if by_keyword else {}
    length, overlap = _KEYWORD_PIECES if by_keyword else _PIECES
    for start in range(0, max(len(line) - overlap, 1), length):
        for value in detector.analyze_string(line[start : start + length + overlap], **regexes):
            if value:
                yield str(value)


def _keyword_regexes(path: str) -> dict[str, Any]:
    """Whether a value stands in quotes depends on the kind of file."""
    from detect_secrets.plugins.keyword import REGEX_BY_FILETYPE
    from detect_secrets.util.filetype import determine_file_type

    return {"denylist_regex_to_group": REGEX_BY_FILETYPE.get(determine_file_type(path))}


def _harmless(heuristic: Any, detector: Any, path: str, line: str, value: str) -> bool:
    if type(detector).__name__ not in _GUESSING:
        return False
    return bool(
        heuristic.is_sequential_string(value)
        or heuristic.is_potential_uuid(value)
        or heuristic.is_templated_secret(value)
        or heuristic.is_prefixed_with_dollar_sign(value)
        or heuristic.is_not_alphanumeric_string(value)
        or heuristic.is_likely_id_string(value, line, detector)
        or heuristic.is_lock_file(path)
        or (type(detector).__name__ == "KeywordDetector" and heuristic.is_indirect_reference(line))
    )
