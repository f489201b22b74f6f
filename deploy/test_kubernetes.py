"""The chart, and the manifest that it renders with its defaults: schemas, references, refused values, and what the
containers run, on real servers.

No cluster is needed. `tests/run-clients kubernetes` installs what this uses, and runs it.
"""

import contextlib
import copy
import json
import os
import pathlib
import re
import socket
import subprocess
import time
import urllib.request

import jsonschema
import kubernetes_validate
import pytest
import trustme
import yaml

HERE = pathlib.Path(__file__).resolve().parent
TOP = HERE.parent
CHART, MANIFEST = HERE / "chart", HERE / "kubernetes.yaml"
MODULE = os.environ.get("RLOCK_MODULE", str(TOP / "target/release/librlock.so"))
RLOCK = os.environ.get("RLOCK", str(TOP / "target/debug/rlock"))
SERVER = os.environ.get("RLOCK_SERVER", "redis-server")
HELM = os.environ.get("HELM", "helm")
# The definition of ServiceMonitor, as the Prometheus operator installs it.
MONITOR = os.environ["SERVICE_MONITOR"]

HEADER = """\
# A lock server: what deploy/chart renders with its defaults. `RLOCK_GENERATE=1 tests/run-clients kubernetes` writes this file.
"""
PASSWORD = "4f0c2a"
USERS = {"access": {"existingSecret": "lock-users", "users": True}}
TLS = {"tls": {"existingSecret": "lock-tls"}}
MUTUAL = {"tls": {"existingSecret": "lock-tls", "clientCertificates": True}}
FORGETFUL = {"persistence": {"enabled": False}, "server": {"settings": {"rlock.startup-grace-ms": "30500"}}}
EVERYTHING = {
    "replicas": 5,
    "spread": "topology.kubernetes.io/zone",
    "nodeSelector": {"disk": "fast"},
    "tolerations": [{"key": "locks", "operator": "Exists"}],
    "imagePullSecrets": [{"name": "registry"}],
    "tools": {"image": "images.example/rlock", "tag": "next"},
    "server": {
        "image": "docker.io/valkey/valkey:9-trixie",
        "program": "valkey",
        "settings": {"client-output-buffer-limit": "pubsub 64mb 16mb 60", "rlock.max-waiters": "100000"},
    },
    "persistence": {"size": "2Gi", "storageClass": "fast"},
    "serviceMonitor": {"enabled": True, "interval": "10s", "labels": {"release": "prometheus"}},
    "networkPolicy": {"clients": [{"namespaceSelector": {}}]},
    **USERS,
    **MUTUAL,
}
LEAST = {each: {"enabled": False} for each in ("exporter", "networkPolicy", "podDisruptionBudget")}
SETS = {
    "defaults": {},
    "members": {"replicas": 3},
    "users": USERS,
    "tls": TLS,
    "users and client certificates": {**USERS, **MUTUAL},
    "forgetful": FORGETFUL,
    "everything": EVERYTHING,
    "least": LEAST,
}


def helm(*arguments, values=None):
    return subprocess.run([HELM, *arguments], input=json.dumps(values or {}), capture_output=True, text=True)


def template(values):
    result = helm("template", "locks", str(CHART), "--values", "-", values=values)
    assert result.returncode == 0, result.stderr
    return result.stdout


class Rendering:
    """What the chart makes of values, and what the containers of its pods run."""

    def __init__(self, values):
        self.values = values
        self.parts = list(yaml.safe_load_all(template(values)))
        self.set = self.part("StatefulSet")["spec"]
        self.pod = self.set["template"]["spec"]
        self.containers = self.pod["initContainers"] + self.pod["containers"]
        self.server = self.pod["containers"][0]
        self.exporter = self.pod["containers"][1] if len(self.pod["containers"]) == 2 else None

    def part(self, kind):
        found = [each for each in self.parts if each["kind"] == kind]
        assert len(found) <= 1, kind
        return found[0] if found else None

    def environment(self, container):
        """What the container finds there, with $(NAME) put in as Kubernetes does."""
        found = {}
        for env in container["env"]:
            found[env["name"]] = PASSWORD if "valueFrom" in env else filled(env["value"], found)
        return found

    def local(self, container, words, directory, port):
        """The words of a command in a container, for files in a directory and a port of this machine."""
        mounts = {mount["mountPath"]: directory / mount["name"] for mount in container.get("volumeMounts", [])}
        variables = self.environment(container)
        words = [filled(word, variables).replace("6379", str(port)) for word in words]
        for path, place in mounts.items():
            words = [str(place) + word.removeprefix(path) if f"{word}/".startswith(f"{path}/") else word for word in words]
        return words

    def probe(self, name, directory, port, variables=None):
        """What the kubelet does: the command in the container, with its environment."""
        command = self.local(self.server, self.server[name]["exec"]["command"], directory, port)
        variables = self.environment(self.server) if variables is None else variables
        line = ["redis-cli", "-p", str(port), *command[1:]]
        return subprocess.run(line, env={**os.environ, **variables}, capture_output=True, text=True)

    @contextlib.contextmanager
    def serving(self, directory, port=None, has_module=True):
        """The server as the manifest starts it, in another place. Gives its port."""
        port = port or free_port()
        command = self.local(self.server, self.server["command"], directory, port)
        for name in ("data", "modules"):
            (directory / name).mkdir(exist_ok=True)
        module = directory / "modules/librlock.so"
        if not module.exists():
            module.symlink_to(MODULE)
        if not has_module:
            at = command.index("--loadmodule")
            del command[at : at + 2]
        port_words = [] if "tls" in self.values else ["--port", str(port)]
        with running([SERVER, *command[1:], *port_words], {}, directory):
            until(lambda: "PONG" in self.probe("livenessProbe", directory, port).stdout, "the server answers")
            yield port

    def url(self, port, user="", password=PASSWORD):
        tls = "tls" in self.values
        return f"redis{'s' * tls}://{user}:{password}@127.0.0.1:{port}/{'#insecure' * tls}"


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
def running(command, variables, directory=None):
    process = subprocess.Popen(command, env={**os.environ, **variables}, cwd=directory, stdout=subprocess.DEVNULL)
    try:
        yield process
    finally:
        process.kill()
        process.wait()


def rlock(url, *arguments):
    return subprocess.run([RLOCK, *arguments], env={**os.environ, "RLOCK_URL": url}, capture_output=True, text=True)


def redis_cli(rendering, port, *words):
    """The reply to the user default, as text, and not an error."""
    variables = rendering.environment(rendering.server)
    line = ["redis-cli", "-e", "-p", str(port), *words]
    return subprocess.run(line, env={**os.environ, **variables}, capture_output=True, text=True, check=True).stdout.strip()


def documented_user(name):
    """The rule of docs/operating.md for it, with the password of these tests."""
    text = (TOP / "docs/operating.md").read_text()
    return re.search(rf"`(user {name} on [^`]*)`", text)[1].replace("a-password", PASSWORD).replace(r"\|", "|")


@pytest.fixture(scope="module", params=SETS)
def rendering(request):
    return Rendering(SETS[request.param])


@pytest.fixture
def secrets(tmp_path):
    """What is in the Secrets, where the volumes would have it."""
    authority = trustme.CA()
    own = authority.issue_cert("127.0.0.1", "locks-0.locks")
    for name in ("tls", "users"):
        (tmp_path / name).mkdir()
    authority.cert_pem.write_to_path(tmp_path / "tls/ca.crt")
    own.private_key_pem.write_to_path(tmp_path / "tls/tls.key")
    for blob in own.cert_chain_pems:
        blob.write_to_path(tmp_path / "tls/tls.crt", append=True)
    lines = [documented_user("exporter"), documented_user("operator"), "user default reset off"]
    (tmp_path / "users/users.acl").write_text("\n".join(lines) + "\n")
    return tmp_path


def test_the_manifest_is_what_the_chart_renders_with_its_defaults():
    expected = HEADER + template({})
    if os.environ.get("RLOCK_GENERATE"):
        MANIFEST.write_text(expected)
    assert MANIFEST.read_text() == expected, "RLOCK_GENERATE=1 tests/run-clients kubernetes writes it"


def test_helm_finds_nothing_wrong_with_the_chart():
    for values in SETS.values():
        result = helm("lint", "--strict", str(CHART), "--values", "-", values=values)
        assert result.returncode == 0, result.stdout + result.stderr


def strict(schema):
    """The same schema, in which an object has no fields but those that it names."""
    if isinstance(schema, list):
        return [strict(each) for each in schema]
    if not isinstance(schema, dict):
        return schema
    closed = {name: strict(each) for name, each in schema.items()}
    if isinstance(closed.get("properties"), dict) and closed.get("type") == "object":
        closed.setdefault("additionalProperties", False)
    return closed


def validate(part, version):
    if part["kind"] != "ServiceMonitor":
        return kubernetes_validate.validate(part, version, strict=True)
    definition = yaml.safe_load(pathlib.Path(MONITOR).read_text())["spec"]
    schema = definition["versions"][0]["schema"]["openAPIV3Schema"]
    schema["properties"]["metadata"]["additionalProperties"] = True
    jsonschema.validate(part, strict(schema))


@pytest.mark.parametrize("version", ["1.30", "1.34", "1.37"])
def test_each_part_is_as_kubernetes_wants_it(rendering, version):
    for each in rendering.parts:
        validate(each, version)


def test_the_check_knows_a_wrong_field():
    rendering = Rendering(EVERYTHING)
    for kind, field in ("Service", "clusterip"), ("StatefulSet", "minReadySecond"), ("ServiceMonitor", "endpoint"):
        wrong = copy.deepcopy(rendering.part(kind))
        wrong["spec"][field] = "None"
        with pytest.raises((kubernetes_validate.ValidationError, jsonschema.ValidationError)):
            validate(wrong, "1.34")


def test_names_that_lead_to_another_part_lead_somewhere(rendering):
    service, pod = rendering.part("Service"), rendering.pod
    assert rendering.set["serviceName"] == service["metadata"]["name"] and service["spec"]["clusterIP"] == "None"
    selectors = [rendering.set["selector"], {"matchLabels": service["spec"]["selector"]}]
    ports = {port["name"]: port["containerPort"] for container in pod["containers"] for port in container["ports"]}
    if policy := rendering.part("NetworkPolicy"):
        selectors.append(policy["spec"]["podSelector"])
        assert [port["port"] for rule in policy["spec"]["ingress"] for port in rule["ports"]] == list(ports)
    if budget := rendering.part("PodDisruptionBudget"):
        selectors.append(budget["spec"]["selector"])
    if monitor := rendering.part("ServiceMonitor"):
        selectors.append(monitor["spec"]["selector"])
        assert [each["port"] for each in monitor["spec"]["endpoints"]] == ["metrics"]
        # The job that the alerts know.
        assert service["metadata"]["labels"][monitor["spec"]["jobLabel"]] == "rlock"
    labels = rendering.set["template"]["metadata"]["labels"]
    assert all(each == {"matchLabels": labels} for each in selectors) and service["metadata"]["labels"] == labels
    assert {port["targetPort"]: port["port"] for port in service["spec"]["ports"]} == ports
    volumes = {each["name"] for each in pod["volumes"]}
    volumes |= {each["metadata"]["name"] for each in rendering.set.get("volumeClaimTemplates", [])}
    secrets = {each["name"]: each["secret"] for each in pod["volumes"] if "secret" in each}
    assert {name: secret["secretName"] for name, secret in secrets.items()} == {
        name: f"lock-{name}" for name, value in (("users", "access"), ("tls", "tls")) if value in rendering.values
    }
    if "users" in secrets:
        assert secrets["users"]["items"] == [{"key": "users.acl", "path": "users.acl"}]
    for container in rendering.containers:
        mounts = container.get("volumeMounts", [])
        assert {mount["name"] for mount in mounts} <= volumes
        # A file of another container would not be there.
        paths = [word for word in container["command"] if word.startswith("/") and not word.startswith("/usr/")]
        assert all(any(f"{path}/".startswith(mount["mountPath"]) for mount in mounts) for path in paths)


def test_no_container_has_more_rights_than_it_needs(rendering):
    assert rendering.pod["automountServiceAccountToken"] is False
    assert rendering.pod["securityContext"]["runAsNonRoot"] is True
    assert rendering.pod["securityContext"]["seccompProfile"] == {"type": "RuntimeDefault"}
    for container in rendering.containers:
        assert container["securityContext"] == {
            "allowPrivilegeEscalation": False,
            "capabilities": {"drop": ["ALL"]},
            "readOnlyRootFilesystem": True,
        }
        assert container["resources"]["requests"] and container["resources"]["limits"]
    # The chart neither asks for a password nor knows one.
    assert rendering.part("Secret") is None
    references = [env["valueFrom"]["secretKeyRef"] for c in rendering.pod["containers"] for env in c["env"] if "valueFrom" in env]
    secret = "lock-users" if "access" in rendering.values else "locks"
    assert references == [{"name": secret, "key": "password"}] * len(rendering.pod["containers"])


def test_one_server_is_never_evicted_and_members_one_at_a_time():
    assert Rendering({}).part("PodDisruptionBudget")["spec"]["maxUnavailable"] == 0
    members = Rendering({"replicas": 3})
    assert members.part("PodDisruptionBudget")["spec"]["maxUnavailable"] == 1
    assert members.set["podManagementPolicy"] == "Parallel"


def test_quorums_of_other_sizes_have_other_names():
    # A StatefulSet keeps its serviceName, so Kubernetes refuses to make the one of the other.
    assert [Rendering({"replicas": each}).set["serviceName"] for each in (1, 3, 5)] == ["locks", "locks-of-3", "locks-of-5"]


def test_members_are_on_different_nodes_or_zones():
    assert "affinity" not in Rendering({}).pod
    for values, key in ({"replicas": 3}, "kubernetes.io/hostname"), (EVERYTHING, "topology.kubernetes.io/zone"):
        rendering = Rendering(values)
        (term,) = rendering.pod["affinity"]["podAntiAffinity"]["requiredDuringSchedulingIgnoredDuringExecution"]
        assert term == {"topologyKey": key, "labelSelector": rendering.set["selector"]}


def test_the_next_member_is_updated_when_the_grace_of_the_last_one_is_over():
    assert "minReadySeconds" not in Rendering({"replicas": 3}).set
    assert Rendering(FORGETFUL).set["minReadySeconds"] == 31


def test_values_arrive_where_they_belong():
    rendering = Rendering(EVERYTHING)
    assert rendering.set["replicas"] == 5
    assert [each["image"] for each in rendering.containers] == [
        "images.example/rlock:next",
        "docker.io/valkey/valkey:9-trixie",
        "images.example/rlock:next",
    ]
    for field in "nodeSelector", "tolerations", "imagePullSecrets":
        assert rendering.pod[field] == EVERYTHING[field]
    command = rendering.server["command"]
    assert command[0] == "valkey-server" and rendering.server["livenessProbe"]["exec"]["command"][0] == "valkey-cli"
    at = command.index("--client-output-buffer-limit")
    assert command[at + 1 : at + 5] == ["pubsub", "64mb", "16mb", "60"]
    (claim,) = rendering.set["volumeClaimTemplates"]
    assert claim["spec"]["storageClassName"] == "fast" and claim["spec"]["resources"] == {"requests": {"storage": "2Gi"}}
    policy = rendering.part("NetworkPolicy")["spec"]
    assert policy["ingress"][0]["from"] == [{"namespaceSelector": {}}]
    assert policy["policyTypes"] == ["Ingress", "Egress"] and "egress" not in policy
    monitor = rendering.part("ServiceMonitor")
    assert monitor["metadata"]["labels"]["release"] == "prometheus" and monitor["spec"]["endpoints"][0]["interval"] == "10s"
    assert {each["kind"] for each in Rendering(LEAST).parts} == {"Service", "StatefulSet"}


@pytest.mark.parametrize(
    "values, says",
    [
        ({"replica": 3}, "'replica' not allowed"),
        ({"replicas": 2}, "at '/replicas': value must be one of 1, 3, 5, 7, 9"),
        ({"server": {"program": "keydb"}}, "at '/server/program': value must be one of 'redis', 'valkey'"),
        ({"server": {"settings": {"appendfsync": "everysec"}}}, "server.settings may not have appendfsync"),
        ({"server": {"settings": {"replicaof": "other 6379"}}}, "server.settings may not have replicaof"),
        ({"server": {"settings": {"maxclients": 20000}}}, "at '/server/settings/maxclients': got number, want string"),
        ({"server": {"resources": {"limits": {"memory": "1 GB"}}}}, "at '/server/resources/limits/memory'"),
        ({"persistence": {"size": "big"}}, "at '/persistence/size': 'big' does not match pattern"),
        ({"networkPolicy": {"clients": []}}, "at '/networkPolicy/clients': minItems"),
        ({"persistence": {"enabled": False}}, "server.settings needs rlock.startup-grace-ms"),
        ({"tls": {"clientCertificates": True}}, "tls.clientCertificates needs tls.existingSecret"),
        ({"serviceMonitor": {"enabled": True}, "exporter": {"enabled": False}}, "serviceMonitor.enabled needs exporter.enabled"),
    ],
)
def test_wrong_values_are_refused_with_the_reason(values, says):
    result = helm("template", "locks", str(CHART), "--values", "-", values=values)
    assert result.returncode != 0 and says in result.stderr, result.stderr


def test_the_notes_name_the_secret_and_each_server():
    def notes(values):
        line = "install", "locks", str(CHART), "--dry-run=client", "--namespace", "shop", "--values", "-"
        result = helm(*line, values=values)
        assert result.returncode == 0, result.stderr
        return result.stdout.split("NOTES:\n")[1]

    assert "redis://:PASSWORD@locks.shop/\n" in notes({}) and "the Secret locks with" in notes({})
    members = notes({"replicas": 3, **USERS, **TLS})
    assert re.findall(r"^  (.*)$", members, re.MULTILINE) == [
        f"rediss://USER:PASSWORD@locks-{each}.locks-of-3.shop/" for each in range(3)
    ]


# How a stranger, a prober and an exporter fare does not depend on the number of servers.
RUN = ["defaults", "users", "tls", "users and client certificates", "forgetful"]


@pytest.mark.parametrize("rendering", RUN, indirect=True)
def test_probes_have_the_password_and_others_do_not_get_in(rendering, secrets):
    with rendering.serving(secrets) as port:
        assert rendering.probe("readinessProbe", secrets, port).returncode == 0
        stranger = rendering.probe("readinessProbe", secrets, port, {"REDISCLI_AUTH": ""})
        assert stranger.returncode != 0 and "NOAUTH" in stranger.stdout + stranger.stderr


@pytest.mark.parametrize("rendering", RUN, indirect=True)
def test_the_exporter_has_the_password_too(rendering, secrets):
    with rendering.serving(secrets) as port:
        listen = free_port()
        command = rendering.local(rendering.exporter, rendering.exporter["command"], secrets, port)
        command = [word.replace("0.0.0.0:9751", f"127.0.0.1:{listen}") for word in command]
        variables = {name: value.replace("6379", str(port)) for name, value in rendering.environment(rendering.exporter).items()}
        base = f"http://127.0.0.1:{listen}"

        def answers(path):
            with contextlib.suppress(OSError):
                return urllib.request.urlopen(base + path).read().decode()

        with running([RLOCK, *command[1:]], variables):
            until(lambda: answers(rendering.exporter["livenessProbe"]["httpGet"]["path"]), "the exporter answers")
            assert f'rlock_up{{master="127.0.0.1:{port}"}} 1' in answers("/metrics")


def test_a_server_without_the_module_is_not_ready(tmp_path):
    rendering = Rendering({})
    with rendering.serving(tmp_path, has_module=False) as port:
        assert rendering.probe("readinessProbe", tmp_path, port).returncode != 0


def test_a_server_with_tls_speaks_nothing_else_and_asks_for_certificates_only_if_told_so(secrets):
    for values, is_asked in (TLS, False), (MUTUAL, True):
        rendering = Rendering(values)
        with rendering.serving(secrets) as port:
            assert rlock(rendering.url(port), "list").returncode == (122 if is_asked else 0)
            assert rlock(f"redis://:{PASSWORD}@127.0.0.1:{port}/", "list").returncode == 122


def test_a_file_of_users_without_default_opens_the_server_to_nobody_else(secrets):
    # Such a user has no password, and every right. That protected-mode then refuses all other machines is the server's part.
    (secrets / "users/users.acl").write_text(documented_user("exporter") + "\n")
    rendering = Rendering(USERS)
    with rendering.serving(secrets) as port:
        assert redis_cli(rendering, port, "CONFIG", "GET", "protected-mode") == "protected-mode\nyes"


@pytest.mark.parametrize("rendering", RUN, indirect=True)
def test_the_doctor_finds_no_risk_to_locks(rendering, secrets):
    with rendering.serving(secrets) as port:
        user = "operator" if "access" in rendering.values else ""
        certificate = ["--cert", str(secrets / "tls/tls.crt"), "--key", str(secrets / "tls/tls.key")]
        if "clientCertificates" not in rendering.values.get("tls", {}):
            certificate = []
        result = rlock(rendering.url(port, user), *certificate, "doctor", "--json")
        (master,) = json.loads(result.stdout)["masters"]
        assert [each for each in master["findings"] if each["severity"] in ("problem", "warning")] == []


def test_a_crash_forgets_no_hold_on_a_volume(tmp_path):
    rendering = Rendering({})
    with rendering.serving(tmp_path) as port:
        taken = redis_cli(rendering, port, "RLOCK.ACQUIRE", "invoice", "first", "60000")
    with rendering.serving(tmp_path, port):
        assert redis_cli(rendering, port, "RLOCK.ACQUIRE", "invoice", "second", "60000") == ""
        assert redis_cli(rendering, port, "RLOCK.RENEW", "invoice", "first", "60000") == taken


def test_without_a_volume_nothing_is_granted_until_forgotten_holds_have_ended(tmp_path):
    rendering = Rendering(FORGETFUL)
    with rendering.serving(tmp_path) as port:
        assert redis_cli(rendering, port, "RLOCK.ACQUIRE", "invoice", "anybody", "30500") == ""


def test_a_quorum_of_the_members_locks_while_one_is_down(tmp_path):
    rendering = Rendering({"replicas": 3})
    with contextlib.ExitStack() as stack:
        ports = []
        for member in range(rendering.set["replicas"]):
            (tmp_path / str(member)).mkdir()
            if member != 2:
                ports.append(stack.enter_context(rendering.serving(tmp_path / str(member))))
        with rendering.serving(tmp_path / "2") as port:
            members = ",".join(rendering.url(each) for each in [*ports, port])
            assert rlock("", "exec", "invoice", "--quorum", members, "--", "true").returncode == 0
        assert rlock("", "exec", "invoice", "--quorum", members, "--", "true").returncode == 0
