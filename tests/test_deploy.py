"""The files in deploy/: container file, compose file, systemd units, configurations."""

import json
import os
import re
import shutil
import stat
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import yaml

from tests.processes import ROOT, SOURCES, run_python
from xvfl.cli.main import app
from xvfl.model.dashboard.status_metrics import STATUS_METRICS, status_metrics
from xvfl.service.config import CoordinatorConfig, PartyProcessConfig, load_config
from xvfl.version import VERSION
from xvfl_serve.http.metrics import to_text

DEPLOY = ROOT / "deploy"
UNITS = sorted((DEPLOY / "systemd").glob("*.service"))
SIDES = ("coordinator", "clinic", "laboratory")


def instructions() -> list[tuple[str, str]]:
    """Return the instructions of the container file, with continued lines joined."""
    text = (DEPLOY / "Containerfile").read_text(encoding="utf-8")
    lines = [line for line in text.splitlines() if line.strip() and not line.startswith("#")]
    joined = "\n".join(lines).replace("\\\n", " ").splitlines()
    return [(name, rest) for name, _, rest in (line.partition(" ") for line in joined)]


def stage(name: str) -> list[tuple[str, str]]:
    """Return the instructions of a stage of the container file, after those of its base."""
    found: dict[str, list[tuple[str, str]]] = {}
    current = ""
    for kind, rest in instructions():
        if kind == "FROM":
            base, _, current = rest.partition(" AS ")
            found[current] = list(found.get(base, []))
        elif current:
            found[current].append((kind, rest))
    return found[name]


@pytest.mark.parametrize("name", ["federation", "server"])
def test_the_images_are_hardened(name: str) -> None:
    image = stage(name)
    assert dict(image)["USER"] == "10001"
    assert json.loads(dict(image)["ENTRYPOINT"]) in (["xvfl"], ["xvfl-serve"])
    assert any(kind == "HEALTHCHECK" for kind, _ in image)
    # Only the installed environment comes from the stages that build.
    copied = [rest for kind, rest in image if kind == "COPY"]
    assert copied == [f"--from=build-{name} /opt/xvfl /opt/xvfl"]
    after_user = [kind for kind, _ in image[[kind for kind, _ in image].index("USER") :]]
    assert "RUN" not in after_user


def test_the_build_context_has_what_is_copied() -> None:
    rules = (DEPLOY / "Containerfile.dockerignore").read_text(encoding="utf-8").split()
    for kind, rest in instructions():
        if kind == "COPY" and not rest.startswith("--from"):
            for name in rest.split()[:-1]:
                assert (ROOT / name).exists() and f"!{name}" in rules


def compose() -> dict[str, Any]:
    text = (DEPLOY / "compose.yaml").read_text(encoding="utf-8")
    loaded: dict[str, Any] = yaml.safe_load(text)
    return loaded


def test_the_services_are_hardened_and_isolated() -> None:
    data = compose()
    services = data["services"]
    assert set(services) == {*SIDES, "server"}
    commands = {each.callback.__name__ for each in app.registered_commands if each.callback}
    targets = {rest.partition(" AS ")[2] for kind, rest in instructions() if kind == "FROM"}
    for name, service in services.items():
        assert service["read_only"] and service["cap_drop"] == ["ALL"]
        assert "no-new-privileges:true" in service["security_opt"]
        assert service["build"]["target"] in targets and service["image"].endswith(f":{VERSION}")
        assert (DEPLOY / service["build"]["context"] / service["build"]["dockerfile"]).is_file()
        for volume in service["volumes"]:
            source, target, *mode = volume.split(":")
            if source.startswith("."):
                assert (DEPLOY / source).is_dir() and mode == ["ro"] and source.endswith(name)
            else:
                assert source in data["volumes"] and target == "/state"
        if name != "server":
            command, config = service["command"]
            assert command in commands
            assert (DEPLOY / "sides" / name / Path(config).name).is_file()
    # Parties reach the coordinator, not each other.
    assert not set(services["clinic"]["networks"]) & set(services["laboratory"]["networks"])
    assert set(services["coordinator"]["networks"]) == set(data["networks"])


def test_compose_follows_its_schema() -> None:
    pytest.importorskip("check_jsonschema", reason="check-jsonschema is not installed")
    check = ("-m", "check_jsonschema", "--builtin-schema", "vendor.compose-spec")
    done = run_python(*check, str(DEPLOY / "compose.yaml"))
    assert done.returncode == 0, done.stdout


def check_sides(folder: Path, tables: bool) -> None:
    main = load_config(folder / "coordinator" / "coordinator.toml")
    assert isinstance(main, CoordinatorConfig)
    for name in main.parties:
        party = load_config(folder / name / f"{name}.toml")
        assert isinstance(party, PartyProcessConfig)
        assert party.coordinator == f"coordinator:{main.listen.rpartition(':')[2]}"
        assert party.state_dir == main.state_dir == "/state"
        assert party.status_address == main.status_address == "127.0.0.1:8480"
        if tables:
            for file in (party.table, party.release_key, party.revocation_list):
                assert file is not None and Path(file).is_file()
            party.tls.read()
    if tables:
        assert Path(main.labels.table).is_file() and Path(str(main.signing_key)).is_file()
        main.tls.read()


def test_the_configurations_of_the_sides() -> None:
    check_sides(DEPLOY / "sides", tables=False)


@pytest.mark.slow
def test_prepare_writes_the_files_of_each_side(tmp_path: Path) -> None:
    shutil.copytree(DEPLOY, tmp_path / "deploy")
    shutil.copytree(ROOT / "examples", tmp_path / "examples")
    folder = tmp_path / "bin"
    folder.mkdir()
    for name, command in {"python": "", "xvfl": "-m xvfl"}.items():
        script = folder / name
        script.write_text(f'#!/bin/sh\nexec "{sys.executable}" {command} "$@"\n')
        script.chmod(0o755)
    done = subprocess.run(
        [tmp_path / "deploy" / "prepare"],
        env={"PATH": f"{folder}{os.pathsep}/usr/bin:/bin", "PYTHONPATH": SOURCES},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    sides = tmp_path / "deploy" / "sides"
    check_sides(sides, tables=True)
    keys = {side: {path.name for path in (sides / side).glob("*.key")} for side in SIDES}
    assert keys == {
        "coordinator": {"coordinator.key", "coordinator.release.key"},
        "clinic": {"clinic.key"},
        "laboratory": {"laboratory.key"},
    }
    assert [path.name for path in (sides / "authority").glob("*.key")] == ["ca.key"]


@pytest.mark.parametrize("unit", UNITS, ids=lambda path: path.stem)
def test_the_units_are_hardened(unit: Path) -> None:
    text = unit.read_text(encoding="utf-8")
    values = dict(re.findall(r"^([A-Za-z]+)=(.*)$", text, re.MULTILINE))
    assert values["User"] == "xvfl" and values["Restart"] == "on-failure"
    assert values["NoNewPrivileges"] == "yes" and values["ProtectSystem"] == "strict"
    assert int(values["TimeoutStopSec"]) > 31
    command = values["ExecStart"].split()
    if command[0] == "/opt/xvfl/bin/xvfl":
        assert command[1] in {each.callback.__name__ for each in app.registered_commands}  # type: ignore[union-attr]
        assert values["StateDirectory"] == "xvfl/%i"


@pytest.mark.skipif(shutil.which("systemd-analyze") is None, reason="needs systemd")
@pytest.mark.parametrize("unit", UNITS, ids=lambda path: path.stem)
def test_systemd_accepts_the_units(unit: Path, tmp_path: Path) -> None:
    # `verify` also checks that the program exists.
    copy = tmp_path / unit.name
    copy.write_text(re.sub(r"^ExecStart=\S+", "ExecStart=/bin/true", unit.read_text(), flags=re.M))
    done = subprocess.run(
        ["systemd-analyze", "verify", copy], capture_output=True, text=True, check=False
    )
    assert (done.returncode, done.stderr) == (0, "")


def test_files_are_executable_where_the_docs_run_them() -> None:
    assert (DEPLOY / "prepare").stat().st_mode & stat.S_IXUSR


MONITORING = DEPLOY / "monitoring"
METRIC = re.compile(r"\bxvfl_\w+")


def known_metrics() -> set[str]:
    """Return the names of all metrics of the status server."""
    kinds = {name: each.kind for name, each in STATUS_METRICS.items()}
    return {f"xvfl_{name}{'_total' * (kind == 'counter')}" for name, kind in kinds.items()}


def expressions() -> list[str]:
    """Return the expressions of the alert rules and of the dashboard."""
    rules = yaml.safe_load((MONITORING / "xvfl-alerts.yml").read_text(encoding="utf-8"))
    board = json.loads((MONITORING / "xvfl-dashboard.json").read_text(encoding="utf-8"))
    alerts = [rule["expr"] for group in rules["groups"] for rule in group["rules"]]
    panels = [target["expr"] for panel in board["panels"] for target in panel["targets"]]
    return [*alerts, *panels]


def test_alerts_and_dashboard_use_metrics_that_exist() -> None:
    named = {name for each in expressions() for name in METRIC.findall(each)}
    assert len(named) > 15 and named <= known_metrics()


def test_the_dashboard_has_no_panel_over_another() -> None:
    board = json.loads((MONITORING / "xvfl-dashboard.json").read_text(encoding="utf-8"))
    cells = [
        (x, y)
        for at in (panel["gridPos"] for panel in board["panels"])
        for x in range(at["x"], at["x"] + at["w"])
        for y in range(at["y"], at["y"] + at["h"])
    ]
    assert len(cells) == len(set(cells)) and max(x for x, _ in cells) < 24
    assert len({panel["id"] for panel in board["panels"]}) == len(board["panels"])


MANIFESTS = sorted((DEPLOY / "kubernetes").glob("*.yaml"))


def objects(path: Path) -> list[dict[str, Any]]:
    """Return the objects of a Kubernetes manifest."""
    return [*yaml.safe_load_all(path.read_text(encoding="utf-8"))]


@pytest.mark.parametrize("path", MANIFESTS, ids=lambda path: path.stem)
def test_pods_are_hardened_and_find_what_they_mount(path: Path) -> None:
    secrets = re.findall(r"secretName: (\S+?),", path.read_text(encoding="utf-8"))
    assert secrets and set(secrets) <= {"xvfl-coordinator", "xvfl-shop", "xvfl-serve"}
    for each in objects(path):
        if "template" not in each["spec"]:
            continue
        pod = each["spec"]["template"]["spec"]
        assert pod["securityContext"]["runAsUser"] == 10001
        assert not pod["automountServiceAccountToken"]
        (container,) = pod["containers"]
        assert container["securityContext"]["readOnlyRootFilesystem"]
        assert container["securityContext"]["capabilities"] == {"drop": ["ALL"]}
        assert container["image"].endswith(f":{VERSION}") and container["resources"]["limits"]
        named = {mount["name"] for mount in container["volumeMounts"]}
        assert named == {volume["name"] for volume in pod["volumes"]}
        # A coordinator that waits for parties is alive: /health would restart it.
        alive = container["livenessProbe"]["httpGet"]["path"]
        assert alive in ("/live", "/v2/health/live")


def test_services_select_pods() -> None:
    found = [each for path in MANIFESTS for each in objects(path)]
    labels = [
        each["spec"]["template"]["metadata"]["labels"]
        for each in found
        if "template" in each["spec"]
    ]
    for each in found:
        if each["kind"] == "Service":
            selector = each["spec"]["selector"].items()
            assert any(selector <= of.items() for of in labels), each["metadata"]["name"]


@pytest.mark.parametrize("path", MANIFESTS, ids=lambda path: path.stem)
def test_manifests_follow_the_schemas_of_kubernetes(path: Path) -> None:
    checker = pytest.importorskip("kubernetes_validate", reason="pip install kubernetes-validate")
    for each in objects(path):
        checker.validate(each, checker.latest_version(), strict=True)


@pytest.mark.skipif(shutil.which("promtool") is None, reason="promtool is not installed")
def test_promtool_accepts_rules_and_metrics() -> None:
    rules = MONITORING / "xvfl-alerts.yml"
    subprocess.run(["promtool", "check", "rules", str(rules)], check=True, capture_output=True)
    values = {"healthy": True, "requests_rejected": 2, "party_present": {"bank": 1}}
    text = to_text(status_metrics({**values, "events": {"epoch": 3}}))
    metrics = ["promtool", "check", "metrics"]
    subprocess.run(metrics, input=text, text=True, check=True, capture_output=True)
