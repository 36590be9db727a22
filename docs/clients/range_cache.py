"""Ids of a tag from leased ranges: most cost no request. Python 3.8 or newer, no packages.

    python3 range_cache.py orders 5 http://127.0.0.1:8080
"""
import json
import os
import sys
import threading
import time
import urllib.parse
import urllib.request


class RangeCache:
    """Hands out ids; leases the next range when half of one is used. For many threads, and in forked processes."""

    def __init__(self, servers, tag, size=1000, timeout=1.0):
        self.servers, self.size, self.timeout = list(servers), size, timeout
        self.path = f"/v1/segments/{urllib.parse.quote(tag, safe='')}/lease?count={size}"
        self._begin()
        # A child process must not hand out its parent's ids.
        os.register_at_fork(after_in_child=self._begin)

    def _begin(self):
        self.changed = threading.Condition()
        self.next, self.end, self.spare = 0, 0, None
        self.fetching, self.error, self.failed_at = False, None, 0.0

    def next_id(self):
        late = time.monotonic() + self.timeout * len(self.servers)
        with self.changed:
            while True:
                if self.next >= self.end and self.spare:
                    (self.next, self.end), self.spare = self.spare, None
                due = not self.spare and self.end - self.next <= self.size // 2
                if due and not self.fetching and time.monotonic() - self.failed_at > 0.1:
                    self.fetching, self.error = True, None
                    threading.Thread(target=self._fetch, daemon=True).start()
                if self.next < self.end:
                    self.next += 1
                    return self.next - 1
                if self.error or time.monotonic() > late:
                    raise RuntimeError(f"no ids: {self.error or 'no answer'}")
                self.changed.wait(self.timeout)

    def _fetch(self):
        spare, error = None, None
        for server in self.servers:
            try:
                request = urllib.request.Request(server + self.path, method="POST")
                with urllib.request.urlopen(request, timeout=self.timeout) as answer:
                    lease = json.load(answer)
                spare = int(lease["start"]), int(lease["end"])
                if spare[1] - spare[0] != self.size or spare[0] < self.end:
                    raise ValueError(f"{spare} is no new range: ask an operator")
                break
            except Exception as failure:
                spare, error = None, f"{server}: {failure}"
        with self.changed:
            self.spare, self.fetching = spare, False
            self.error, self.failed_at = (None, 0.0) if spare else (error, time.monotonic())
            self.changed.notify_all()


if __name__ == "__main__":
    ids = RangeCache(sys.argv[3:], sys.argv[1])
    for _ in range(int(sys.argv[2])):
        print(ids.next_id())
