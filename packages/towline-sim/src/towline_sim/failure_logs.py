"""What failing builds print: the ends of logs, as CI systems write them."""

from __future__ import annotations

from typing import Final

PASSED: Final = """\
Run make test
collected 214 items
============================= 214 passed in 41.22s =============================
"""

TRANSIENT: Final[tuple[str, ...]] = (
    """\
Run make test
##[error]The hosted runner: GitHub Actions 12 lost communication with the server. Anything in \
your workflow that terminates the runner process, starves it for CPU/Memory, or blocks its \
network access can cause this error.
""",
    """\
Cannot contact agent-linux-7: java.lang.InterruptedException
Agent agent-linux-7 was deleted; cancelling node body
FATAL: command execution failed
java.nio.channels.ClosedChannelException
Finished: FAILURE
""",
    """\
Building wheel for service
  WARNING: Retrying after connection broken by 'ReadTimeoutError("Read timed out.")'
ERROR: Could not install packages due to an OSError: connection timed out
##[error]Process completed with exit code 1.
""",
    """\
[Pipeline] sh
Cancelling nested steps due to timeout
Build timed out (after 60 minutes). Marking the build as aborted.
Finished: ABORTED
""",
    """\
error: RPC failed; curl 56 OpenSSL SSL_read: Connection reset by peer, errno 104
fatal: the remote end hung up unexpectedly
fatal: early EOF
##[error]The process '/usr/bin/git' failed with exit code 128
""",
)

PERSISTENT: Final[tuple[str, ...]] = (
    """\
=================================== FAILURES ===================================
_____________________________ test_total_is_rounded ____________________________
>       assert total([1.005, 2.0]) == 3.01
E       AssertionError: assert 3.0 == 3.01
=========================== short test summary info ============================
FAILED tests/test_total.py::test_total_is_rounded - AssertionError: assert 3.0 == 3.01
========================= 1 failed, 213 passed in 40.87s =======================
##[error]Process completed with exit code 1.
""",
    """\
src/app/orders.py:41: error: Argument 1 to "place" has incompatible type "str"; expected "int"
Found 1 error in 1 file (checked 87 source files)
##[error]Process completed with exit code 1.
""",
    """\
Traceback (most recent call last):
  File "src/app/main.py", line 3, in <module>
    from app.prices import discount
ImportError: cannot import name 'discount' from 'app.prices'
##[error]Process completed with exit code 1.
""",
)

OUTAGE: Final = """\
Started by upstream event
Still waiting to schedule task
All nodes of label 'linux' are offline
Build timed out (after 30 minutes). Marking the build as aborted.
Finished: ABORTED
"""
