#!/usr/bin/env python3
"""Ids over TLS, beside nginx that answers a constant over TLS, in turns: rate and processor time.

    tls.py PROGRAM [--seconds N]

Each server has one thread on the first processor, the client the second one. Both use TLS 1.3 and the same
certificate (ECDSA P-256).
"""
import argparse
import os
import re
import socket
import statistics
import subprocess
import tempfile
import time

ID = "/api/segment/get/leaf-segment-test"
NGINX = """
worker_processes 1; daemon off; pid {home}/nginx.pid; error_log {home}/nginx.log;
events {{ worker_connections 1024; }}
http {{
    access_log off; keepalive_requests 100000000; keepalive_timeout 300s;
    server {{
        listen 127.0.0.1:{port} ssl; ssl_protocols TLSv1.3;
        ssl_certificate {home}/cert.pem; ssl_certificate_key {home}/key.pem;
        location / {{ default_type text/plain; add_header Cache-Control no-store; return 200 "1234567890123456789"; }}
    }}
}}
"""


def free_port():
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        return listener.getsockname()[1]


class Server:
    def __init__(self, name, path, port, command, env=None):
        self.name, self.path, self.port = name, path, port
        quiet = {"stdout": subprocess.DEVNULL, "stderr": subprocess.DEVNULL}
        self.process = subprocess.Popen(["taskset", "-c", "0", *command], env=env, **quiet)
        until = time.monotonic() + 30
        while socket.socket().connect_ex(("127.0.0.1", port)) != 0:
            assert time.monotonic() < until, f"{name} does not listen"
            time.sleep(0.1)
        time.sleep(2)
        children = subprocess.run(["pgrep", "-P", str(self.process.pid)], capture_output=True, text=True)
        # nginx answers in a process of its own.
        self.pid = int((children.stdout.split() or [self.process.pid])[0])

    def cpu_seconds(self):
        with open(f"/proc/{self.pid}/stat") as stat:
            fields = stat.read().rsplit(")", 1)[1].split()
        return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")

    def requests(self, seconds):
        """Requests a second, and microseconds of processor time for each."""
        before = self.cpu_seconds()
        url = f"https://127.0.0.1:{self.port}{self.path}"
        told = subprocess.run(
            ["taskset", "-c", "1", "wrk", "-t1", "-c32", f"-d{seconds}s", url], capture_output=True, text=True, check=True
        ).stdout
        assert "Non-2xx" not in told and "Socket errors" not in told, told
        count = int(re.search(r"(\d+) requests in", told)[1])
        return float(re.search(r"Requests/sec:\s+([\d.]+)", told)[1]), (self.cpu_seconds() - before) / count * 1e6

    def handshake(self, seconds):
        """Milliseconds of processor time for a new connection."""
        before = self.cpu_seconds()
        place = f"127.0.0.1:{self.port}"
        told = subprocess.run(
            ["taskset", "-c", "1", "openssl", "s_time", "-connect", place, "-new", "-time", str(seconds)],
            capture_output=True, text=True,
        ).stdout
        return (self.cpu_seconds() - before) * 1e3 / int(re.search(r"(\d+) connections in \d+ real", told)[1])


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("program")
    parser.add_argument("--seconds", type=int, default=5)
    args = parser.parse_args()
    with tempfile.TemporaryDirectory() as home:
        key = ["-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:P-256", "-nodes", "-keyout", f"{home}/key.pem"]
        make = ["openssl", "req", "-x509", *key, "-days", "1", "-subj", "/CN=bench", "-out", f"{home}/cert.pem"]
        subprocess.run(make, check=True, capture_output=True)
        ports = [free_port() for _ in range(3)]
        with open(f"{home}/nginx.conf", "w") as config:
            config.write(NGINX.format(home=home, port=ports[0]))
        env = dict(os.environ, LEAF_HTTP__THREADS="1", LEAF_HTTP__TLS="required")
        env |= {"LEAF_TLS__CERTIFICATE": f"{home}/cert.pem", "LEAF_TLS__KEY": f"{home}/key.pem"}
        listen = ["--http-listen", f"127.0.0.1:{ports[1]}", "--ops-listen", f"127.0.0.1:{ports[2]}", "--redis-listen", "off"]
        servers = []
        try:
            servers.append(Server("nginx", "/", ports[0], ["nginx", "-p", home, "-c", f"{home}/nginx.conf"]))
            command = [args.program, *listen, "--data-dir", f"{home}/data"]
            servers.append(Server("leaf-server", ID, ports[1], command, env))
            nginx, leaf = servers
            rates, costs = [], []
            for turn in range(7):
                order = servers if turn % 2 else servers[::-1]
                found = {server.name: server.requests(args.seconds) for server in order}
                (rate, cost), (other_rate, other_cost) = found["leaf-server"], found["nginx"]
                print(f"leaf-server {rate:.0f}/s {cost:.1f} us of CPU, nginx {other_rate:.0f}/s {other_cost:.1f} us", flush=True)
                rates.append(rate / other_rate)
                costs.append(cost / other_cost)
            print(f"leaf-server / nginx: rate {statistics.median(rates):.2f}, CPU {statistics.median(costs):.2f}")
            for server in servers:
                print(f"{server.name}: {server.handshake(args.seconds):.2f} ms of CPU for a new connection")
        finally:
            for server in servers:
                server.process.terminate()
                server.process.wait()


main()
