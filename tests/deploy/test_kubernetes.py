"""The manifests agree with each other, and with the program that they run."""

from __future__ import annotations

from typing import Any

import pytest

from tests.deploy.files import (
    CONTROL_PORT,
    DATA_PORT,
    DEPLOY,
    complaint_about,
    documents,
    is_a_setting,
    manifests,
    of_kind,
)
from towline.config import Settings

VERSIONS = {
    "ConfigMap": "v1",
    "Deployment": "apps/v1",
    "Ingress": "networking.k8s.io/v1",
    "NetworkPolicy": "networking.k8s.io/v1",
    "PodDisruptionBudget": "policy/v1",
    "Service": "v1",
}
PARTS = ("towline-serve", "towline-worker")
Manifest = dict[str, Any]


def pod(deployment: str) -> Manifest:
    found: Manifest = of_kind("Deployment")[deployment]["spec"]["template"]
    return found


def containers(deployment: str) -> list[Manifest]:
    spec = pod(deployment)["spec"]
    return [*spec["initContainers"], *spec["containers"]]


def selects(selector: Manifest, deployment: str) -> bool:
    labels = pod(deployment)["metadata"]["labels"]
    return bool(selector.items() <= labels.items())


def test_kinds_and_versions() -> None:
    """Each manifest has a kind that exists in that version, a name of its own, and our label."""
    found = manifests()
    assert {one["kind"]: one["apiVersion"] for one in found} == VERSIONS
    names = [(one["kind"], one["metadata"]["name"]) for one in found]
    assert len(set(names)) == len(names)
    for one in found:
        assert one["metadata"]["labels"]["app.kubernetes.io/name"] == "towline"


def test_every_file_is_named() -> None:
    """The kustomization has all of them."""
    (kustomization,) = documents("kubernetes/kustomization.yaml")
    files = {file.name for file in (DEPLOY / "kubernetes").glob("*.yaml")}
    assert files - {"kustomization.yaml"} == set(kustomization["resources"])


@pytest.mark.parametrize("name", PARTS)
def test_a_deployment(name: str) -> None:
    """It selects its own pods, migrates first, runs our commands, and has time to end."""
    deployment = of_kind("Deployment")[name]["spec"]
    assert selects(deployment["selector"]["matchLabels"], name)
    assert deployment["replicas"] >= 2
    first, *_ = containers(name)
    assert first["args"] == ["db", "upgrade"]
    for container in containers(name):
        assert complaint_about(container["args"]) is None
    grace = pod(name)["spec"]["terminationGracePeriodSeconds"]
    assert grace > Settings().worker.drain_seconds + 10


@pytest.mark.parametrize("name", PARTS)
def test_a_pod_is_confined(name: str) -> None:
    """Not root, no capability, nothing to write but two volumes, no token, bounded memory."""
    spec = pod(name)["spec"]
    assert spec["automountServiceAccountToken"] is False
    assert spec["securityContext"]["runAsNonRoot"] is True
    assert spec["securityContext"]["seccompProfile"] == {"type": "RuntimeDefault"}
    for container in containers(name):
        confined = container["securityContext"]
        assert confined["allowPrivilegeEscalation"] is False
        assert confined["readOnlyRootFilesystem"] is True
        assert confined["capabilities"] == {"drop": ["ALL"]}
        assert {"requests", "limits"} <= set(container["resources"])
    mounted = {mount["name"] for mount in spec["containers"][0]["volumeMounts"]}
    assert mounted == {volume["name"] for volume in spec["volumes"]}


@pytest.mark.parametrize("name", PARTS)
def test_settings_and_secrets(name: str) -> None:
    """What is no secret are settings of ours; what is one comes by reference only."""
    (config,) = of_kind("ConfigMap").values()
    assert all(is_a_setting(variable) for variable in config["data"])
    assert not of_kind("Secret")
    for container in containers(name):
        assert container["envFrom"] == [
            {"configMapRef": {"name": config["metadata"]["name"]}},
            {"secretRef": {"name": "towline-secrets"}},
        ]
        assert "env" not in container


def test_the_probes_ask_routes_that_exist() -> None:
    """Readiness asks the database, liveness does not: an outage must not restart the fleet."""
    (serve,) = pod("towline-serve")["spec"]["containers"]
    ports = {port["name"]: port["containerPort"] for port in serve["ports"]}
    assert ports == {"data": DATA_PORT, "control": CONTROL_PORT}
    asked = {probe: serve[probe]["httpGet"] for probe in serve if probe.endswith("Probe")}
    assert asked["livenessProbe"] == asked["startupProbe"] == {"path": "/healthz", "port": "data"}
    assert asked["readinessProbe"] == {"path": "/readyz", "port": "data"}
    assert serve["readinessProbe"]["timeoutSeconds"] > Settings().store_timeout_seconds
    assert str(DATA_PORT) in serve["args"]
    (config,) = of_kind("ConfigMap").values()
    assert config["data"]["TOWLINE_SERVE__CONTROL_PORT"] == str(CONTROL_PORT)


def test_a_worker_is_asked_where_its_metrics_are() -> None:
    """At the port that the settings give it, by the same probes; every pod can be scraped."""
    (worker,) = pod("towline-worker")["spec"]["containers"]
    (config,) = of_kind("ConfigMap").values()
    (port,) = worker["ports"]
    assert str(port["containerPort"]) == config["data"]["TOWLINE_WORKER__METRICS_PORT"]
    asked = {probe: worker[probe]["httpGet"] for probe in worker if probe.endswith("Probe")}
    live, ready = ({"path": path, "port": "metrics"} for path in ("/healthz", "/readyz"))
    assert asked == {"startupProbe": live, "livenessProbe": live, "readinessProbe": ready}
    assert of_kind("Service")["towline-worker"]["spec"]["clusterIP"] == "None"


def test_services_lead_to_ports_that_pods_have() -> None:
    """One for each plane of `serve`, and one for the metrics of the workers."""
    found = of_kind("Service")
    assert set(found) == {"towline", "towline-control", "towline-worker"}
    for name, service in found.items():
        part = "towline-worker" if name == "towline-worker" else "towline-serve"
        assert [one for one in PARTS if selects(service["spec"]["selector"], one)] == [part]
        (container,) = pod(part)["spec"]["containers"]
        ports = {port["name"]: port["containerPort"] for port in container["ports"]}
        (port,) = service["spec"]["ports"]
        assert ports[port["targetPort"]] == port["port"]


def test_the_ingress_has_the_data_plane_only() -> None:
    """Webhooks and mesh; no route of the control plane."""
    (ingress,) = of_kind("Ingress").values()
    (rule,) = ingress["spec"]["rules"]
    paths = rule["http"]["paths"]
    assert [path["path"] for path in paths] == ["/webhooks", "/mesh"]
    for path in paths:
        assert path["backend"]["service"] == {"name": "towline", "port": {"name": "data"}}
    (tls,) = ingress["spec"]["tls"]
    assert tls["hosts"] == [rule["host"]]


def test_network_policies() -> None:
    """The ingress reaches the data plane and not the control plane; only monitoring a worker."""
    policies = of_kind("NetworkPolicy")
    (to_workers,) = policies["towline-worker"]["spec"]["ingress"]
    assert "monitoring" in str(to_workers["from"])
    assert "ingress" not in str(to_workers["from"])
    assert len(to_workers["from"]) == 1
    rules = policies["towline-serve"]["spec"]["ingress"]
    assert [[port["port"] for port in rule["ports"]] for rule in rules] == [[8788], [8789]]
    assert "ingress" not in str(rules[1]["from"])
    for name in PARTS:
        assert selects(policies[name]["spec"]["podSelector"]["matchLabels"], name)


@pytest.mark.parametrize("name", PARTS)
def test_a_disruption_budget(name: str) -> None:
    """One stays, and a node can still be emptied."""
    budget = of_kind("PodDisruptionBudget")[name]["spec"]
    assert selects(budget["selector"]["matchLabels"], name)
    assert 0 < budget["minAvailable"] < of_kind("Deployment")[name]["spec"]["replicas"]
