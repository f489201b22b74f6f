"""The programs of the README, as they are printed."""

import os
import pathlib
import re
import subprocess
import sys

from conftest import HERE, until

README = (HERE.parent / "README.md").read_text()
SETTINGS = 'SECRET_KEY = "-"\nINSTALLED_APPS = ["jobs"]\n'
MANAGE = """import os, django.core.management as it
os.environ["DJANGO_SETTINGS_MODULE"] = "settings"
it.execute_from_command_line()
"""


def test_the_programs(world):
    files = {"manage.py": MANAGE, "jobs/__init__.py": ""}
    for path, program in re.findall(r"^```python\n# (\S+)\n(.*?)^```", README, re.DOTALL | re.MULTILINE):
        files[path] = program.replace("6379", str(world.locks.port))
    files["settings.py"] = SETTINGS + files["settings.py"]
    for path, text in files.items():
        file = world.directory / path
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(text)
    assert {"tasks.py", "jobs/management/commands/nightly.py"} < set(files)
    commands = re.findall(r"^(?:celery|python) .*", README, re.MULTILINE)
    path = f"{pathlib.Path(sys.executable).parent}:{os.environ['PATH']}"
    environment = {**os.environ, "PATH": path, "PYTHONPATH": ".", "COLUMNS": "200"}

    def begin(command, name):
        (world.directory / name).touch()
        with open(world.directory / name, "w") as log:
            where = {"cwd": world.directory, "env": environment, "stdout": log, "stderr": log}
            process = subprocess.Popen(command, shell=True, start_new_session=True, **where)
        world.processes.append(process)
        world.logs[process.pid] = world.directory / name
        return process

    worker, beat, command = (begin(it, f"log-{number}") for number, it in enumerate(commands))
    until(lambda: "held under fence" in world.log(worker), "a task", 40)
    assert command.wait(20) == 0 and world.log(command).startswith("held under fence ")
    begin(commands[1] + " --schedule other --pidfile=", "log-other")
    key = "lock:beat:tasks"
    until(lambda: world.locks.client.execute_command("RLOCK.INFO", key)["queued"] == 1, "a beat that waits")
    assert world.locks.owner(key).split(":")[1] in map(str, range(2**22)) and beat.poll() is None
