"""Two processes that work as one."""

import os
import socket
import subprocess
import sys
import time
from pathlib import Path

ROOT = Path(__file__).parents[2]


class Pair:
    """Two processes ``python -m *command(port, index)``, gone when the block ends."""

    def __init__(self, folder, command, *, devices):
        with socket.socket() as sock:
            sock.bind(("127.0.0.1", 0))
            port = sock.getsockname()[1]
        flags = f"--xla_force_host_platform_device_count={devices}"
        environment = {**os.environ, "XLA_FLAGS": flags, "PYTHONPATH": str(ROOT)}
        self.logs = [folder / f"{port}-{index}.log" for index in range(2)]
        self.processes = []
        for index, log in enumerate(self.logs):
            with open(log, "w") as stream:
                words = [sys.executable, "-m", *map(str, command(port, index))]
                options = {"stdout": stream, "stderr": subprocess.STDOUT}
                self.processes.append(subprocess.Popen(words, cwd=ROOT, env=environment, **options))

    def __enter__(self):
        return self

    def __exit__(self, *_):
        for process in self.processes:
            process.kill()
            process.wait()

    def said(self):
        """What each has said."""
        return [log.read_text() for log in self.logs]

    def codes(self, timeout=240):
        return [process.wait(timeout=timeout) for process in self.processes]

    def until(self, condition):
        end = time.monotonic() + 120
        while not condition():
            assert time.monotonic() < end, self.said()
            assert all(process.poll() is None for process in self.processes), self.said()
            time.sleep(0.05)
