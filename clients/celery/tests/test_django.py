"""A command of manage.py on two machines."""

import os
import signal
import subprocess

import pytest
from conftest import until

KEY = "lock:nightly"


@pytest.fixture
def manage(world):
    world.environment.update(DJANGO_SETTINGS_MODULE="settings")

    def run(seconds):
        pipe = subprocess.PIPE
        return world.run("django", "nightly", str(seconds), stdout=pipe, stderr=pipe)

    yield run


def held(world):
    return until(lambda: world.locks.owner(KEY), "a command")


def test_a_command_runs_on_one_machine(world, manage):
    first = manage(60)
    held(world)
    second = manage(60)
    output = second.communicate(timeout=60)
    assert (second.returncode, output) == (75, ("", f"CommandError: {KEY} is held elsewhere: not acquired within 0 s\n"))
    first.kill()
    until(lambda: world.locks.owner(KEY) is None, "the end of its lease", 40)
    third = manage(0)
    assert third.communicate(timeout=60)[0].startswith("held under fence ") and third.returncode == 0
    assert world.locks.owner(KEY) is None


def test_a_loss_ends_the_command(world, manage):
    command = manage(60)
    held(world)
    world.locks.client.execute_command("RLOCK.FORCE", KEY)
    error = command.communicate(timeout=60)[1]
    assert command.returncode == 1 and f"\nCommandError: {KEY}: the lock was lost: " in error


def test_a_stopped_command(world, manage):
    command = manage(60)
    held(world)
    os.kill(command.pid, signal.SIGSTOP)
    world.locks.client.execute_command("RLOCK.FORCE", KEY)
    assert manage(0).wait(60) == 0
    os.kill(command.pid, signal.SIGCONT)
    assert "the lock was lost" in command.communicate(timeout=60)[1]


def test_without_a_url(world, manage):
    del world.environment["LOCKS"]
    command = manage(0)
    assert 'RLOCK is not set: {"URL":' in command.communicate(timeout=60)[1] and command.returncode == 1
