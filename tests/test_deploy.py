"""deploy/ is held against the product: its commands, settings, ports and routes are those that there are.

Nothing is deployed here. Each check is a function that gives what is wrong, and finds a planted mistake.
"""

import configparser
import os
import re
import shlex
import shutil
import subprocess
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest
import yaml

from lamina.cli import main
from lamina.errors import LaminaError
from lamina.gateway import system_routes
from lamina.gateway.gateway import ROUTES
from lamina.gateway.limits import GatewayOptions
from lamina.settings import load_settings, setting_names
from lamina.store.postgres import POOL
from lamina.store.store import open_store
from tests.faults.cluster import NGINX, NO_FRONT, front_config
from tests.postgres import Server

DEPLOY = Path(__file__).parent.parent / "deploy"
FILES = sorted(path for path in DEPLOY.rglob("*") if path.is_file() and path.name != ".env")
UNITS = sorted((DEPLOY / "systemd").glob("*.service"))
HARDENED = {
    "NoNewPrivileges": "yes", "ProtectSystem": "strict", "ProtectHome": "yes", "PrivateTmp": "yes",
    "CapabilityBoundingSet": "", "StateDirectory": "lamina", "EnvironmentFile": "/etc/lamina/lamina.env",
    "KillSignal": "SIGTERM", "Restart": "on-failure", "Type": "notify", "NotifyAccess": "main", "LimitCORE": "0",
    "PrivateDevices": "yes", "PrivateUsers": "yes", "ProtectProc": "invisible", "ProcSubset": "pid",
    "MemoryDenyWriteExecute": "yes", "RestrictSUIDSGID": "yes", "SystemCallArchitectures": "native",
    "MemoryMax": "1G", "TasksMax": "256", "UMask": "0077",
}  # fmt: skip
MOST_EXPOSED = 1.5
"""The level of exposure that `systemd-analyze security` may give, of 10: below 2 it calls a unit safe."""
METADATA = "169.254.0.0/16"
"""Where clouds give the secrets of their machines away."""
LONGEST_END = 20
"""Seconds in which a gateway that was told to stop is gone: replies, counters, jobs and connections, five each."""


def read(name: str) -> str:
    return (DEPLOY / name).read_text(encoding="utf-8")


def compose() -> Any:
    return yaml.safe_load(read("compose.yaml"))


def kubernetes() -> list[Any]:
    return list(yaml.safe_load_all(read("kubernetes.yaml")))


def unit(path: Path) -> configparser.ConfigParser:
    parser = configparser.ConfigParser(interpolation=None, strict=False)
    parser.optionxform = str  # type: ignore[assignment,method-assign]
    parser.read_string(path.read_text(encoding="utf-8"))
    return parser


def containers() -> Iterator[tuple[Any, Any]]:
    """Each with the specification of its pod."""
    for thing in kubernetes():
        if thing["kind"] == "Deployment":
            pod = thing["spec"]["template"]["spec"]
            yield from ((pod, container) for container in pod["containers"])


def commands() -> list[list[str]]:
    """Every call of lamina in the folder."""
    found: list[list[str]] = [service["command"] for service in compose()["services"].values() if "command" in service]
    found += [container["command"] for _, container in containers()]
    found += [shlex.split(unit(path)["Service"]["ExecStart"]) for path in UNITS]
    lines = [line for line in read("README.md").splitlines() if not line.startswith("#")]
    found += [shlex.split(line[line.index("lamina keys") :]) for line in lines if " lamina keys" in line]
    found += [shlex.split(line) for line in lines if line.startswith("/opt/lamina/bin/lamina ")]
    found += [yaml.safe_load(line.removeprefix("CMD ")) for line in read("Dockerfile").splitlines() if "CMD [" in line]
    return [words for words in found if words[0].rpartition("/")[2] == "lamina"]


def wrong_commands(found: list[list[str]], capsys: pytest.CaptureFixture[str]) -> list[str]:
    wrong: list[str] = []
    for words in found:
        code = main([*words[1:], "--help"])  # everything before it is parsed first
        said = capsys.readouterr()
        wrong += [f"{shlex.join(words)}: {said.err}"] if code else []
    return wrong


def test_every_command_and_option_is_one_of_lamina(capsys: pytest.CaptureFixture[str]) -> None:
    found = commands()
    assert len(found) >= 11
    assert {words[1] for words in found} == {"serve", "worker", "keys"}
    assert wrong_commands(found, capsys) == []
    assert wrong_commands([["lamina", "serve", "--workers", "4"], ["lamina", "server"]], capsys)


def unknown_settings(text: str) -> list[str]:
    names = {name.upper() for name in setting_names()}
    given = set(re.findall(r"\bLAMINA_([A-Z_]+)", text))
    return sorted(name for name in given if name not in names and name.removeprefix("GATEWAY_") not in names)


@pytest.mark.parametrize("path", FILES, ids=lambda path: path.name)
def test_every_variable_is_a_setting(path: Path) -> None:
    assert unknown_settings(path.read_text(encoding="utf-8")) == []
    assert unknown_settings("LAMINA_WORKERS=4") == ["WORKERS"]


def filled(given: Mapping[str, Any]) -> dict[str, str]:
    """The variables of a compose file with something in the place of what is left open."""
    return {name: re.sub(r"\$\{[A-Z_]+(?::-([^}]*)|:\?[^}]*)\}", r"\1", str(value)) for name, value in given.items()}


def environments() -> list[dict[str, str]]:
    """The settings of Compose, of Kubernetes and of systemd."""
    (one,) = [thing for thing in kubernetes() if thing["kind"] == "ConfigMap"]
    file = dict(line.split("=", 1) for line in read("systemd/lamina.env").splitlines() if not line.startswith("#"))
    return [filled(compose()["services"]["gateway1"]["environment"]), one["data"], file]


def test_every_value_of_a_setting_can_be_read() -> None:
    for given in environments():
        assert all(isinstance(value, str) for value in given.values()), "yes and no are texts in an environment"
        assert load_settings(DEPLOY, {**given, "HOME": "/"}, "gateway").provider == "openai"
    with pytest.raises(LaminaError):
        load_settings(DEPLOY, {"LAMINA_PUBLIC_HTTPS": "perhaps"}, "gateway")


def test_ports_and_paths_are_those_of_the_gateway() -> None:
    port = GatewayOptions().port
    open_paths = {route.path for route in (*system_routes.ROUTES, *ROUTES) if route.scope is None}
    for _, container in containers():
        for probe in ("readinessProbe", "livenessProbe", "startupProbe"):
            if container["name"] == "gateway":
                assert container[probe]["httpGet"]["path"] in open_paths
                assert container[probe]["httpGet"]["port"] == container["ports"][0]["name"]
                assert container["ports"][0]["containerPort"] == port
    checked = [
        service["healthcheck"]["test"][-1] for name, service in compose()["services"].items() if "gateway" in name
    ]
    assert len(checked) == 3
    for test in checked:
        place, path = re.search(r"http://127\.0\.0\.1:(\d+)(/[^']*)'", test).groups()  # type: ignore[union-attr]
        assert (int(place), path in open_paths) == (port, True)
    servers = re.findall(r"server (\w+):(\d+)", read("nginx.conf"))
    assert [name for name, _ in servers] == [name for name in compose()["services"] if name.startswith("gateway")]
    assert {int(number) for _, number in servers} == {port}
    listens = re.search(r"listen (\d+);", read("nginx.conf"))
    assert listens
    assert compose()["services"]["front"]["ports"][0].endswith(f":{listens[1]}")
    assert f"EXPOSE {port}" in read("Dockerfile")


def test_connections_suffice_for_all_processes() -> None:
    services = compose()["services"]
    processes = sum("gateway" in name or "worker" in name for name in services)
    most = int(str(services["postgres"]["command"][-1]).partition("=")[2])
    assert most > POOL * (processes + 1), "and for one command at the side"
    assert f"up to {POOL} connections" in read("README.md")


def test_whoever_stops_a_process_waits_until_it_has_ended() -> None:
    for _, service in compose()["services"].items():
        if service.get("image") == "lamina":
            assert int(service["stop_grace_period"].removesuffix("s")) > LONGEST_END
    for path in UNITS:
        assert int(unit(path)["Service"]["TimeoutStopSec"]) > LONGEST_END
    for pod, container in containers():
        before = int(container.get("lifecycle", {}).get("preStop", {}).get("exec", {}).get("command", [0, "0"])[1])
        assert pod["terminationGracePeriodSeconds"] > LONGEST_END + before


def open_pods(found: Iterable[tuple[Any, Any]]) -> list[str]:
    """Containers of Kubernetes with more rights than they need, or without limits."""
    wrong: list[str] = []
    for pod, container in found:
        context, closed = pod["securityContext"], container["securityContext"]
        holds = {
            "user": context["runAsNonRoot"] is True and context["runAsUser"] > 0,
            "seccomp": context["seccompProfile"] == {"type": "RuntimeDefault"},
            "token": pod["automountServiceAccountToken"] is False,
            "escalation": closed["allowPrivilegeEscalation"] is False,
            "root file system": closed["readOnlyRootFilesystem"] is True,
            "capabilities": closed["capabilities"] == {"drop": ["ALL"]},
            "limits": set(container["resources"].get("limits", ())) == {"cpu", "memory", "ephemeral-storage"},
            "secrets": all(set(given) == {"name", "valueFrom"} for given in container["env"]),  # never written down
        }
        wrong += [f"{container['name']}: {name}" for name, fine in holds.items() if not fine]
    return wrong


def open_services(services: Mapping[str, Any]) -> list[str]:
    """Services of Compose with more rights than they need, or without limits; there are no exceptions."""
    wrong: list[str] = []
    for name, service in services.items():
        holds = {
            "user": service.get("user", "root").partition(":")[0] not in ("root", "0"),
            "root file system": service.get("read_only") is True,
            "capabilities": service.get("cap_drop") == ["ALL"] and "cap_add" not in service,
            "escalation": service.get("security_opt") == ["no-new-privileges:true"],  # and the default seccomp profile
            "limits": all(service.get(each) for each in ("mem_limit", "cpus", "pids_limit", "ulimits")),
            "privileges": not {"privileged", "pid", "ipc", "network_mode", "devices"} & set(service),
            "memory": all("noexec,nosuid,nodev" in each for each in service["tmpfs"]),
        }
        wrong += [f"{name}: {each}" for each, fine in holds.items() if not fine]
    return wrong


def test_nothing_runs_with_more_rights_than_it_needs() -> None:
    assert open_pods(containers()) == []
    services = compose()["services"]
    assert len(services) == 7
    assert open_services(services) == []
    for path in UNITS:
        service = unit(path)["Service"]
        assert {name: service.get(name) for name in HARDENED} == HARDENED, path.name
    assert re.search(r"^USER (?!0|root)", read("Dockerfile"), re.MULTILINE)


@pytest.mark.planted("a right too many")
def test_a_planted_right_is_found() -> None:
    services = compose()["services"]
    del services["front"]["cap_drop"]
    services["postgres"] |= {"user": "0", "privileged": True}
    assert open_services(services) == ["postgres: user", "postgres: privileges", "front: capabilities"]
    (pod, container), *_ = containers()
    container["securityContext"]["capabilities"]["add"] = ["NET_ADMIN"]
    del container["resources"]["limits"]["cpu"]
    assert open_pods([(pod, container)]) == ["gateway: capabilities", "gateway: limits"]


def open_ways(policies: list[Any], labels: list[Any]) -> list[str]:
    """Pods that the network policies leave open, in one direction or the other."""
    closed = {"podSelector": {}, "policyTypes": ["Ingress", "Egress"]}
    wrong = [] if closed in [policy["spec"] for policy in policies] else ["everything that no policy names"]
    for label in labels:
        specs = [each["spec"] for each in policies if each["spec"]["podSelector"] == {"matchLabels": label}]
        for way, ends in (("ingress", "from"), ("egress", "to")):
            rules = [rule for spec in specs for rule in spec.get(way, ())]
            blocks = [end["ipBlock"] for rule in rules for end in rule.get(ends, ()) if "ipBlock" in end]
            wide = [each for each in blocks if each["cidr"].endswith("/0") and METADATA not in each.get("except", ())]
            if not specs or wide or not all(rule.get(ends) and rule.get("ports") for rule in rules):
                wrong.append(f"{way} of {label['app']}")
    return wrong


def test_the_network_is_closed_in_both_directions_but_for_what_is_named() -> None:
    things = kubernetes()
    policies = [thing for thing in things if thing["kind"] == "NetworkPolicy"]
    labels = [thing["spec"]["template"]["metadata"]["labels"] for thing in things if thing["kind"] == "Deployment"]
    assert open_ways(policies, labels) == []
    ports = {port["port"] for each in policies for rule in each["spec"].get("egress", ()) for port in rule["ports"]}
    assert ports == {53, 443, 5432}
    (space,) = [thing for thing in things if thing["kind"] == "Namespace"]
    given = space["metadata"]["labels"]
    assert {given[f"pod-security.kubernetes.io/{mode}"] for mode in ("enforce", "audit", "warn")} == {"restricted"}
    # planted: an ingress from anywhere, an egress to anything, and no policy for the rest
    del policies[1]["spec"]["ingress"][0]["from"]
    del policies[2]["spec"]["egress"][2]["to"][0]["ipBlock"]["except"]
    rest = "everything that no policy names"
    assert open_ways(policies[1:], labels) == [rest, "ingress of lamina-gateway", "egress of lamina-worker"]


def test_in_compose_only_the_gateways_are_between_the_front_and_the_database() -> None:
    found = compose()
    networks = {name: set(service["networks"]) for name, service in found["services"].items()}
    assert found["networks"]["back"] == {"internal": True}
    assert (networks["postgres"], networks["front"]) == ({"back"}, {"front"})
    assert {name for name, service in found["services"].items() if "ports" in service} == {"front"}


def test_a_process_that_hangs_is_started_again_everywhere() -> None:
    """That it ends itself, and what systemd hears, is shown by the tests of the watchdog; here: who starts it again."""
    for given in environments():
        assert 10 <= int(given["LAMINA_WATCHDOG"]) < 90, "it ends itself first, and says where it was"
    for path in UNITS:
        assert unit(path)["Service"]["WatchdogSec"] == "90"
        assert unit(path)["Unit"]["StartLimitIntervalSec"] == "0", "however often that is"
    for name, service in compose()["services"].items():
        assert service["restart"] == "unless-stopped", name
        assert "healthcheck" in service or name.startswith("worker"), name
    for _, container in containers():
        path = container.get("livenessProbe", {}).get("httpGet", {}).get("path")
        assert path == ("/api/live" if container["name"] == "gateway" else None), "a pod starts again what has ended"


def test_what_selects_finds_what_is_labelled() -> None:
    labels = [
        thing["spec"]["template"]["metadata"]["labels"] for thing in kubernetes() if thing["kind"] == "Deployment"
    ]
    kinds: list[str] = []
    for thing in kubernetes():
        spec, kind = thing.get("spec", {}), thing["kind"]
        wanted = spec.get("selector") or spec.get("podSelector")
        if wanted:
            kinds.append(kind)
            assert wanted.get("matchLabels", wanted) in labels, thing["metadata"]["name"]
        if kind != "Namespace":
            assert thing["metadata"]["namespace"] == "lamina"
    assert set(kinds) == {"Deployment", "Service", "PodDisruptionBudget", "NetworkPolicy"}


def images(text: str) -> list[str]:
    """Every image that is named, also as the default of a variable."""
    named = re.findall(r"(?:image:|FROM) *\"?([^\s\"$]+)", text)
    return [*named, *re.findall(r"_IMAGE(?:=|:-)([^\s\"};]+)", text)]


def loose_images(text: str) -> list[str]:
    """Those from a registry of somebody's, or without an exact version; lamina's own is built here."""
    exact = re.compile(r"[a-z]+:\d+\.\d+(\.\d+)?(-[a-z]+)?(@sha256:[0-9a-f]{64})?|lamina(:\d+\.\d+\.\d+)?")
    major = re.compile(r"(python|nginx):\d+\.\d+(-|$)")  # of these the third number is the patch
    return [name for name in images(text) if not exact.fullmatch(name) or major.match(name)]


def test_images_have_an_exact_version_and_take_a_digest_and_scripts_are_shell() -> None:
    for path in FILES:
        assert loose_images(path.read_text(encoding="utf-8")) == [], path.name
    loose = ["registry.example/lamina", "python:3.12-slim", "nginx", "postgres:17", "lamina:latest"]
    assert loose_images("\n".join(f"image: {name}" for name in loose)) == loose
    found = sorted({name for file in ("compose.yaml", "Dockerfile") for name in images(read(file))})
    assert [name.partition(":")[0] for name in found] == ["lamina", "nginx", "postgres", "python"]
    for image in found[1:]:
        variable = f"{image.partition(':')[0].upper()}_IMAGE"
        assert f"${{{variable}:-{image}}}" in read("compose.yaml"), "the digest is given by a variable"
        assert f"{variable}={image}" in read("README.md"), "which the README fills in"
    assert read("Dockerfile").count("FROM ${PYTHON_IMAGE}") == 2
    for name in ("postgres.sh", "install.sh"):
        subprocess.run(["sh", "-n", DEPLOY / name], check=True)


def test_what_is_installed_is_checked_against_its_hash() -> None:
    lines = [line for line in read("install.sh").splitlines() if 'pip" install' in line]
    assert len(lines) == 3
    assert all("--require-hashes" in line or "--no-index" in line for line in lines)
    assert "pip install" not in read("Dockerfile") + read("README.md")


@pytest.mark.skipif(shutil.which("systemd-analyze") is None, reason="systemd-analyze is not here")
def test_systemd_knows_every_word_of_the_units(tmp_path: Path) -> None:
    for path in UNITS:
        text = path.read_text(encoding="utf-8").replace("/opt/lamina/bin/lamina", "/bin/true")
        made = tmp_path / path.name.replace("@", "@8765")
        made.write_text(text, encoding="utf-8")
        assert verified(made) == ""
        made.write_text(text.replace("NoNewPrivileges", "NoNewPrivilege"), encoding="utf-8")
        assert "Unknown key" in verified(made)
        made.write_text(text, encoding="utf-8")
        assert exposure(made) < MOST_EXPOSED
        made.write_text(text.replace("ProtectSystem=strict\n", "").replace("PrivateUsers=yes\n", ""), encoding="utf-8")
        assert exposure(made) > MOST_EXPOSED, "planted"


def exposure(path: Path) -> float:
    command = ["systemd-analyze", "security", "--offline=true", "--no-pager", path]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    found = re.search(r"Overall exposure level for .*: ([0-9.]+)", done.stdout)
    assert found, done.stdout + done.stderr
    return float(found[1])


def verified(path: Path) -> str:
    done = subprocess.run(["systemd-analyze", "verify", path], capture_output=True, text=True, check=False)
    return "".join(line for line in done.stderr.splitlines(keepends=True) if path.name in line)


@pytest.mark.skipif(NGINX is None, reason=NO_FRONT)
def test_nginx_takes_its_file(tmp_path: Path) -> None:
    def taken(text: str) -> bool:
        file = tmp_path / "nginx.conf"
        file.write_text(front_config([1, 2, 3], 4, tmp_path, text), encoding="utf-8")
        me = "user root; " if os.geteuid() == 0 else ""
        command = [str(NGINX), "-t", "-q", "-p", str(tmp_path), "-c", str(file), "-g", me]
        return subprocess.run(command, capture_output=True, check=False).returncode == 0

    assert taken(read("nginx.conf"))
    assert not taken(read("nginx.conf").replace("proxy_buffering off", "proxy_buffer off"))


async def test_the_role_that_the_script_makes_is_one_that_lamina_takes(postgres: Server) -> None:
    """The very statements, for a role of another name."""
    statements = read("postgres.sh").partition("<<'SQL'\n")[2].partition("SQL\n")[0].replace("lamina", "deployed")
    command = [postgres.bin / "psql", "-Xq", "-v", "ON_ERROR_STOP=1", "-v", "password=it's", "-d",
               postgres.address("postgres", "postgres")]  # fmt: skip
    subprocess.run(command, input=statements, text=True, check=True)
    async with open_store(postgres.address("deployed", "deployed")) as store:
        assert await store.sessions.list("ann") == []
