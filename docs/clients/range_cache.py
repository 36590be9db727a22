"""Ids of a tag from leased ranges: most cost no request. Python 3.8 or newer, no packages.

    python3 range_cache.py orders 5 http://127.0.0.1:8080    # a token, if need be, in LEAF_TOKEN
"""
import json
import os
import sys
import threading
import time
import urllib.parse
import urllib.request


class _Leased:
    """What one process has leased."""

    def __init__(self):
        self.process = os.getpid()
        self.changed = threading.Condition()
        self.next, self.end, self.spare = 0, 0, None
        self.fetching, self.error, self.failed_at = False, None, 0.0


class RangeCache:
    """Hands out ids; leases the next range when half of one is used. For many threads, and in forked processes."""

    def __init__(self, servers, tag, size=1000, timeout=1.0, token=None):
        self.servers, self.size, self.timeout = list(servers), size, timeout
        self.headers = {"Authorization": f"Bearer {token}"} if token else {}
        self.path = f"/v1/segments/{urllib.parse.quote(tag, safe='')}/lease?count={size}"
        self.begin_anew()
        # Where Python forks, also a child that gets a process id which was in use before.
        os.register_at_fork(after_in_child=self.begin_anew)

    def begin_anew(self):
        """Drops what was leased. For a process that goes on from a snapshot, before it takes an id."""
        self._leased = _Leased()

    def next_id(self):
        late = time.monotonic() + self.timeout * len(self.servers)
        while True:
            leased = self._leased
            # A forked process must not hand out its parent's ids. Python's own hooks do not run when C code forks.
            if leased.process != os.getpid():
                self.begin_anew()
                continue
            with leased.changed:
                if leased is not self._leased:
                    continue
                if leased.next >= leased.end and leased.spare:
                    (leased.next, leased.end), leased.spare = leased.spare, None
                due = not leased.spare and leased.end - leased.next <= self.size // 2
                if due and not leased.fetching and time.monotonic() - leased.failed_at > 0.1:
                    leased.fetching, leased.error = True, None
                    threading.Thread(target=self._fetch, args=[leased], daemon=True).start()
                if leased.next < leased.end:
                    leased.next += 1
                    return leased.next - 1
                if leased.error or time.monotonic() > late:
                    raise RuntimeError(f"no ids: {leased.error or 'no answer'}")
                leased.changed.wait(self.timeout)

    def _fetch(self, leased):
        spare, error = None, None
        for server in self.servers:
            try:
                request = urllib.request.Request(server + self.path, headers=self.headers, method="POST")
                with urllib.request.urlopen(request, timeout=self.timeout) as answer:
                    lease = json.load(answer)
                spare = int(lease["start"]), int(lease["end"])
                if spare[1] - spare[0] != self.size or spare[0] < leased.end:
                    raise ValueError(f"{spare} is no new range: ask an operator")
                break
            except Exception as failure:
                spare, error = None, f"{server}: {failure}"
        with leased.changed:
            leased.spare, leased.fetching = spare, False
            leased.error, leased.failed_at = (None, 0.0) if spare else (error, time.monotonic())
            leased.changed.notify_all()


if __name__ == "__main__":
    ids = RangeCache(sys.argv[3:], sys.argv[1], token=os.environ.get("LEAF_TOKEN"))
    for _ in range(int(sys.argv[2])):
        print(ids.next_id())
