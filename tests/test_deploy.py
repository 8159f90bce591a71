"""deploy/ is held against the product: its commands, settings, ports and routes are those that there are.

Nothing is deployed here. Each check is a function that gives what is wrong, and finds a planted mistake.
"""

import configparser
import os
import re
import shlex
import shutil
import subprocess
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, cast

import pytest
import yaml

from lamina.cli import main
from lamina.errors import LaminaError
from lamina.gateway.options import Options
from lamina.gateway.own import own_routes
from lamina.gateway.routes import ROUTES
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
    "KillSignal": "SIGTERM", "Restart": "on-failure",
}  # fmt: skip
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


def test_every_value_of_a_setting_can_be_read() -> None:
    (one,) = [thing for thing in kubernetes() if thing["kind"] == "ConfigMap"]
    file = dict(line.split("=", 1) for line in read("systemd/lamina.env").splitlines() if not line.startswith("#"))
    for given in (filled(compose()["services"]["gateway1"]["environment"]), one["data"], file):
        assert all(isinstance(value, str) for value in given.values()), "yes and no are texts in an environment"
        assert load_settings(DEPLOY, {**given, "HOME": "/"}, "gateway").provider == "openai"
    with pytest.raises(LaminaError):
        load_settings(DEPLOY, {"LAMINA_PUBLIC_HTTPS": "perhaps"}, "gateway")


def test_ports_and_paths_are_those_of_the_gateway() -> None:
    port = Options().port
    open_paths = {route.path for route in (*own_routes(cast("Any", None)), *ROUTES) if route.scope is None}
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


def test_nothing_runs_with_more_rights_than_it_needs() -> None:
    for pod, container in containers():
        assert pod["securityContext"]["runAsNonRoot"] is True
        assert pod["automountServiceAccountToken"] is False
        closed = container["securityContext"]
        assert (closed["allowPrivilegeEscalation"], closed["readOnlyRootFilesystem"]) == (False, True)
        assert closed["capabilities"] == {"drop": ["ALL"]}
        for given in container["env"]:
            assert set(given) == {"name", "valueFrom"}, "a secret is named, never written down"
    for path in UNITS:
        service = unit(path)["Service"]
        assert {name: service.get(name) for name in HARDENED} == HARDENED, path.name
    for name, service in compose()["services"].items():
        if service.get("image") == "lamina":
            assert (service["read_only"], service["cap_drop"]) == (True, ["ALL"]), name
    assert re.search(r"^USER (?!0|root)", read("Dockerfile"), re.MULTILINE)


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


def foreign_images(text: str) -> list[str]:
    named = re.findall(r"(?:image:|FROM) +([^\s]+)", text)
    return [name for name in named if "." in name.partition("/")[0].partition(":")[0] or name.count("/") > 1]


def test_images_are_named_without_a_registry_and_scripts_are_shell() -> None:
    for path in FILES:
        assert foreign_images(path.read_text(encoding="utf-8")) == [], path.name
    assert foreign_images("image: registry.example/lamina")
    for name in ("postgres.sh",):
        subprocess.run(["sh", "-n", DEPLOY / name], check=True)


@pytest.mark.skipif(shutil.which("systemd-analyze") is None, reason="systemd-analyze is not here")
def test_systemd_knows_every_word_of_the_units(tmp_path: Path) -> None:
    for path in UNITS:
        text = path.read_text(encoding="utf-8").replace("/opt/lamina/bin/lamina", "/bin/true")
        made = tmp_path / path.name.replace("@", "@8765")
        made.write_text(text, encoding="utf-8")
        assert verified(made) == ""
        made.write_text(text.replace("NoNewPrivileges", "NoNewPrivilege"), encoding="utf-8")
        assert "Unknown key" in verified(made)


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
