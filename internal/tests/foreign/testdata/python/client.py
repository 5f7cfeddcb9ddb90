"""Locks with redis-py's Lock, as a program to which the tests send commands.

usage: client.py PORT. ../../peer_test.go describes the commands and their results.
"""

import sys
import time

import redis
from redis.exceptions import LockError


class Client:
    def __init__(self, port):
        self.redis = redis.Redis(host="127.0.0.1", port=port)
        self.locks = {}

    def tries(self, key, ms):
        return self._acquire(key, ms, blocking=False)

    def waits(self, key, ms):
        return self._acquire(key, ms, blocking=True)

    def _acquire(self, key, ms, blocking):
        lock = self.redis.lock(key, timeout=int(ms) / 1000, sleep=0.01, blocking_timeout=60)
        if not lock.acquire(blocking=blocking):
            return "busy"
        self.locks[key] = lock
        return "held"

    def extend(self, key, ms):
        try:
            self.locks[key].extend(int(ms) / 1000, replace_ttl=True)
        except LockError:
            return "lost"
        return "extended"

    def unlock(self, key):
        try:
            self.locks.pop(key).release()
        except LockError:
            return "lost"
        return "unlocked"

    def visit(self, key, ms, visits, log, name):
        for _ in range(int(visits)):
            with self.redis.lock(key, timeout=int(ms) / 1000, sleep=0.005):
                self.redis.rpush(log, "in " + name)
                time.sleep(0.001)
                self.redis.rpush(log, "out " + name)
        return "visited"


client = Client(int(sys.argv[1]))
print("ready redis-py " + redis.__version__, flush=True)
for line in sys.stdin:
    question, *words = line.split()
    method = {"try": "tries", "wait": "waits"}.get(question, question)
    print("answer " + getattr(client, method)(*words), flush=True)
