"""The manifest in kubernetes.yaml: its schema, its references, and its commands on a real server.

No cluster is needed. `tests/run-clients kubernetes` installs what this uses, and runs it.
"""

import contextlib
import os
import pathlib
import re
import socket
import subprocess
import time
import urllib.request

import kubernetes_validate
import pytest
import yaml

HERE = pathlib.Path(__file__).resolve().parent
TOP = HERE.parent
PARTS = list(yaml.safe_load_all((HERE / "kubernetes.yaml").read_text()))
MODULE = os.environ.get("RLOCK_MODULE", str(TOP / "target/release/librlock.so"))
RLOCK = os.environ.get("RLOCK", str(TOP / "target/debug/rlock"))
SERVER = os.environ.get("RLOCK_SERVER", "redis-server")


def part(kind):
    found = [each for each in PARTS if each["kind"] == kind]
    assert len(found) == 1, kind
    return found[0]


SET = part("StatefulSet")["spec"]
POD = SET["template"]["spec"]
LABELS = SET["template"]["metadata"]["labels"]
SERVED, EXPORTER = POD["containers"]
SECRET = {**part("Secret")["stringData"], "password": "4f0c2a"}


@pytest.mark.parametrize("version", ["1.30", "1.34", "1.37"])
def test_each_part_is_as_kubernetes_wants_it(version):
    for each in PARTS:
        kubernetes_validate.validate(each, version, strict=True)


def test_the_check_knows_a_wrong_field():
    wrong = {**part("Service"), "spec": {**part("Service")["spec"], "clusterip": "None"}}
    with pytest.raises(kubernetes_validate.ValidationError):
        kubernetes_validate.validate(wrong, "1.34", strict=True)


def test_names_that_lead_to_another_part_lead_somewhere():
    service, policy, budget = part("Service"), part("NetworkPolicy")["spec"], part("PodDisruptionBudget")["spec"]
    assert SET["serviceName"] == service["metadata"]["name"] and service["spec"]["clusterIP"] == "None"
    selectors = [SET["selector"], policy["podSelector"], budget["selector"], {"matchLabels": service["spec"]["selector"]}]
    assert all(each == {"matchLabels": LABELS} for each in selectors)
    ports = {port["name"]: port["containerPort"] for container in POD["containers"] for port in container["ports"]}
    for port in service["spec"]["ports"]:
        assert ports[port["targetPort"]] == port["port"]
    assert {port["port"] for rule in policy["ingress"] for port in rule["ports"]} == set(ports)
    volumes = {each["name"] for each in POD["volumes"]}
    volumes |= {each["metadata"]["name"] for each in SET["volumeClaimTemplates"]}
    for container in POD["initContainers"] + POD["containers"]:
        assert {mount["name"] for mount in container.get("volumeMounts", [])} <= volumes
        assert container["resources"]["requests"] and container["resources"]["limits"]
    references = [env["valueFrom"]["secretKeyRef"] for c in POD["containers"] for env in c["env"] if "valueFrom" in env]
    assert references == [{"name": part("Secret")["metadata"]["name"], "key": "password"}] * 2


def environment(container):
    """What the container finds there, with $(NAME) put in as Kubernetes does."""
    found = {}
    for env in container["env"]:
        secret = env.get("valueFrom", {}).get("secretKeyRef")
        found[env["name"]] = SECRET[secret["key"]] if secret else filled(env["value"], found)
    return found


def filled(text, known):
    return re.sub(r"\$\((\w+)\)", lambda name: known[name[1]], text)


def free_port():
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


def until(condition, what):
    end = time.monotonic() + 20
    while not condition():
        assert time.monotonic() < end, what
        time.sleep(0.02)


@contextlib.contextmanager
def running(command, variables):
    process = subprocess.Popen(command, env={**os.environ, **variables}, stdout=subprocess.DEVNULL)
    try:
        yield process
    finally:
        process.kill()
        process.wait()


@contextlib.contextmanager
def server(directory, module=MODULE):
    """The server as the manifest starts it, in another place. Gives its port."""
    port, variables = free_port(), environment(SERVED)
    command = [filled(word, variables) for word in SERVED["command"]]
    mounts = {mount["name"]: mount["mountPath"] for mount in SERVED["volumeMounts"]}
    assert command[command.index("--loadmodule") + 1] == f"{mounts['modules']}/librlock.so"
    assert command[command.index("--dir") + 1] == mounts["data"]
    command = [word.replace(mounts["data"], str(directory)) for word in command[1:]]
    if module:
        command[command.index("--loadmodule") + 1] = module
    else:
        at = command.index("--loadmodule")
        del command[at : at + 2]
    # The images switch it off, and listen everywhere.
    with running([SERVER, *command, "--port", str(port), "--protected-mode", "no"], {}):
        until(lambda: probe("livenessProbe", port).returncode == 0, "the server answers")
        yield port


def probe(name, port, variables=None):
    """What the kubelet does: the command in the container, with its environment."""
    command = SERVED[name]["exec"]["command"]
    variables = environment(SERVED) if variables is None else variables
    line = [command[0], "-p", str(port), *command[1:]]
    return subprocess.run(line, env={**os.environ, **variables}, capture_output=True, text=True)


def test_probes_have_the_password_and_others_do_not_get_in(tmp_path):
    with server(tmp_path) as port:
        assert probe("readinessProbe", port).returncode == 0
        assert "PONG" in probe("livenessProbe", port).stdout
        stranger = probe("readinessProbe", port, {"REDISCLI_AUTH": ""})
        assert stranger.returncode != 0 and "NOAUTH" in stranger.stdout + stranger.stderr


def test_a_server_without_the_module_is_not_ready(tmp_path):
    with server(tmp_path, module=None) as port:
        assert probe("readinessProbe", port).returncode != 0


def test_the_exporter_has_the_password_too(tmp_path):
    with server(tmp_path) as port:
        listen = free_port()
        command = [word.replace("0.0.0.0:9751", f"127.0.0.1:{listen}") for word in EXPORTER["command"]]
        variables = {name: value.replace("6379", str(port)) for name, value in environment(EXPORTER).items()}
        base = f"http://127.0.0.1:{listen}"

        def answers(path):
            with contextlib.suppress(OSError):
                return urllib.request.urlopen(base + path).read().decode()

        with running([RLOCK, *command[1:]], variables):
            until(lambda: answers(EXPORTER["livenessProbe"]["httpGet"]["path"]), "the exporter answers")
            assert f'rlock_up{{master="127.0.0.1:{port}"}} 1' in answers("/metrics")
