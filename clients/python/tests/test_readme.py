"""The examples of README run as they stand, but for the port."""

import pathlib
import re
import subprocess
import sys
import uuid

import pytest

from conftest import until

README = pathlib.Path(__file__).parents[1] / "README.md"
EXAMPLES = re.findall(r"^```python\n(.*?)^```", README.read_text(), re.DOTALL | re.MULTILINE)


def run(example, port):
    return subprocess.Popen([sys.executable, "-c", example.replace("6379", str(port))], stdout=-1, stderr=-1, text=True)


@pytest.mark.parametrize("number", range(len(EXAMPLES)))
def test_an_example_of_the_readme_takes_its_lock_and_leaves_nothing(number, own_server):
    server, example = own_server(), EXAMPLES[number]
    with run(example, server.port) as process:
        output, errors = process.communicate(timeout=30)
    assert process.returncode == 0, errors
    assert "held under fence" in output or "account:1" in output, output
    assert server.count() > 0 and server.client.dbsize() == 0
    assert int(server.client.info("rlock")["rlock_waiters"]) == 0


@pytest.mark.parametrize("library", ["Locks(redis.Redis", "GlideClient", "uuid"])
def test_an_example_of_the_readme_waits_for_the_holder(library, own_server):
    server = own_server()
    example = next(each for each in EXAMPLES if library in each)
    server.ask("RLOCK.ACQUIRE", "invoice:7", "another", 60000)
    with run(example, server.port) as process:
        until(lambda: server.queued("invoice:7") == 1, "the example waits")
        server.ask("RLOCK.RELEASE", "invoice:7", "another")
        output, errors = process.communicate(timeout=30)
    assert "held under fence" in output, errors
    assert server.client.dbsize() == 0


CANCELLED = """
async def main():
    waiting, control = await connect(), await connect()
    task = asyncio.ensure_future(acquire(waiting, control, KEY, "worker:1", 30000, wait=10))
    await asyncio.sleep(0.3)
    task.cancel()
    await asyncio.wait({task})
    assert task.cancelled()

asyncio.run(main())
"""


def test_a_cancelled_task_of_the_glide_recipe_leaves_nothing(server):
    key = f"key:{uuid.uuid4()}"
    recipe = next(each for each in EXAMPLES if "GlideClient" in each)
    example = recipe[: recipe.index("async def main")] + CANCELLED.replace("KEY", repr(key))
    for is_held in (True, False):
        if is_held:
            server.ask("RLOCK.ACQUIRE", key, "another", 60000)
        with run(example.replace("sleep(0.3)", "sleep(0.3)" if is_held else "sleep(0)"), server.port) as process:
            _, errors = process.communicate(timeout=30)
        assert process.returncode == 0, errors
        if is_held:
            assert server.queued(key) == 0
            server.ask("RLOCK.RELEASE", key, "another")
        assert server.is_free(key)
