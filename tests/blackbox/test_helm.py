# SPDX-License-Identifier: Apache-2.0
"""deploy/helm makes the objects of deploy/base. Helm renders it where it is installed; everywhere
the part of its template language that the chart uses is rendered here (class Template), which
knows nothing else and fails on it: that the chart is one that Helm takes, only Helm can tell."""
import copy
import json
import os
import pathlib
import re
import shutil
import subprocess

import pytest

from kube_fixtures import control_plane

yaml = pytest.importorskip("yaml", reason="needs PyYAML (python3-yaml)")

DEPLOY = pathlib.Path(os.environ["GRADUS_SOURCE_DIR"]) / "deploy"
BASE, CHART = DEPLOY / "base", DEPLOY / "helm"


class Template:
    """{{ .A.b }}, {{ . }}, {{ toJson .A }}, and if, with, range with end; - eats white space."""

    def __init__(self, text):
        self.parts = re.split(r"(\{\{-?.*?-?\}\})", text)
        for i in range(1, len(self.parts), 2):
            if self.parts[i].startswith("{{-"):
                self.parts[i - 1] = self.parts[i - 1].rstrip()
            if self.parts[i].endswith("-}}"):
                self.parts[i + 1] = self.parts[i + 1].lstrip()

    def render(self, values):
        self.at, self.root = 0, {"Values": values}
        text = self.block(self.root, True)
        assert self.at == len(self.parts), "an end too many"
        return text

    def value(self, word, dot):
        assert re.fullmatch(r"\.|(\.\w+)+", word), f"not known here: {word}"
        value = dot
        for key in filter(None, word.split(".")):
            value = value[key]
        return value

    def block(self, dot, is_shown):
        text = ""
        while self.at < len(self.parts):
            part, is_code = self.parts[self.at], self.at % 2 == 1
            self.at += 1
            if not is_code:
                text += part if is_shown else ""
                continue
            words = part.strip("{}-").split()
            if words == ["end"]:
                return text
            if words[0] in ("if", "with", "range"):
                text += self.nested(*words, dot, is_shown)
            elif is_shown:
                to_json = words[0] == "toJson"
                value = self.value(words[-1], dot)
                assert len(words) == 1 + to_json, f"not known here: {part}"
                text += json.dumps(value) if to_json else str(value)
        return text

    def nested(self, kind, word, dot, is_shown):
        value = self.value(word, dot) if is_shown else None
        begin, text = self.at, ""
        dots = list(value or []) if kind == "range" else [value] if value else []
        for one in dots:
            self.at = begin
            text += self.block(dot if kind == "if" else one, True)
        if not dots:
            self.block(None, False)
        return text


def documents(text):
    return {(one["kind"], one["metadata"]["name"]): one for one in yaml.safe_load_all(text) if one}


def values():
    return yaml.safe_load((CHART / "values.yaml").read_text())


def rendered(changed):
    text = "\n---\n".join(Template(path.read_text()).render(changed)
                          for path in sorted((CHART / "templates").iterdir()))
    return documents(text)


def by_helm(changed):
    # A helm that was built by `go install` takes 1.20 for the cluster's version.
    done = subprocess.run(["helm", "template", "gradus", CHART, "--kube-version", "1.34.0", "-f",
                           "-"], text=True, check=True, input=json.dumps(changed),
                          capture_output=True)
    return documents(done.stdout)


def of_base():
    listed = yaml.safe_load((BASE / "kustomization.yaml").read_text())["resources"]
    found = {}
    for name in listed:
        found.update(documents((BASE / name).read_text()))
    return found


RENDERERS = [rendered, pytest.param(by_helm, marks=pytest.mark.skipif(
    not shutil.which("helm"), reason="helm is not installed: the chart is rendered by the test's "
    "own renderer alone"))]


@pytest.mark.parametrize("render", RENDERERS)
def test_chart_makes_what_base_makes(render):
    wanted = {key: one for key, one in of_base().items() if key[0] != "CustomResourceDefinition"}
    assert render(values()) == wanted


def test_resources_are_those_of_base_and_no_copies():
    wanted = {key for key in of_base() if key[0] == "CustomResourceDefinition"}
    files = sorted((CHART / "crds").iterdir())
    assert {key for path in files for key in documents(path.read_text())} == wanted
    for path in [*files, CHART / "templates" / "role.yaml"]:
        assert path.is_symlink() and path.resolve() == BASE / path.name, path


@pytest.mark.parametrize("render", RENDERERS)
def test_values_change_what_they_are_for(render):
    changed = copy.deepcopy(values())
    changed["image"].update(repository="near/gradus", tag="2", pullPolicy="Always")
    changed["namespace"].update(name="elsewhere", create=False)
    changed.update(replicas=3, args=["--namespace=team", "--gang-scheduling=volcano"],
                   launchAgent=True, resources={"requests": {"cpu": "1", "memory": "1Gi"},
                                                "limits": {"memory": "2Gi"}})
    found = render(changed)
    assert not [key for key in found if key[0] == "Namespace"]
    spec = found["Deployment", "gradus-operator"]["spec"]
    container = spec["template"]["spec"]["containers"][0]
    assert (spec["replicas"], container["image"]) == (3, "near/gradus:2")
    assert container["imagePullPolicy"] == "Always"
    assert container["args"] == ["--namespace=team", "--gang-scheduling=volcano",
                                 "--launch-agent-image=near/gradus:2"]
    assert container["resources"] == changed["resources"]
    spaces = {one["metadata"].get("namespace") for one in found.values()} | {
        subject["namespace"] for one in found.values() for subject in one.get("subjects", [])}
    assert spaces == {None, "elsewhere"}
    assert found.keys() == of_base().keys() - {("Namespace", "gradus")} - {
        key for key in of_base() if key[0] == "CustomResourceDefinition"}


@pytest.mark.long
@pytest.mark.skipif(not shutil.which("helm"), reason="helm is not installed (go install "
                    "helm.sh/helm/v3/cmd/helm@v3.18.4)")
def test_chart_is_installed_changed_removed_and_installed_again(tmp_path_factory):
    """By Helm, as an archive, in a real kube-apiserver: all that deploy/base has is there, and when
    it is removed the jobs' resources stay."""
    folder = tmp_path_factory.mktemp("helm")
    subprocess.run(["helm", "package", CHART, "-d", folder], check=True, capture_output=True)
    archive, = folder.glob("gradus-operator-*.tgz")
    with control_plane(folder) as cluster:
        def helm(*words):
            done = subprocess.run(["helm", "--kubeconfig", cluster.kubeconfig, *words],
                                  capture_output=True, text=True)
            assert done.returncode == 0, done.stderr
            return done.stdout

        def get(kind, name, space=None):
            return cluster.get(kind, name, *(["-n", space] if space else []))

        flags = ["--set", "image.repository=near/gradus", "--set", "image.tag=2"]
        helm("install", "gradus", archive, *flags)
        for (kind, name), wanted in of_base().items():
            found = get(kind, name, wanted["metadata"].get("namespace"))
            if "rules" in wanted:
                assert found["rules"] == wanted["rules"]
            if kind == "CustomResourceDefinition":
                assert [one["name"] for one in found["spec"]["versions"]] \
                    == [one["name"] for one in wanted["spec"]["versions"]]
        spec = get("deployment", "gradus-operator", "gradus")["spec"]
        assert spec["replicas"] == 2
        assert spec["template"]["spec"]["containers"][0]["image"] == "near/gradus:2"
        helm("upgrade", "gradus", archive, *flags, "--set", "replicas=1", "--set",
             "args={--enable-scheme=gradusjob}", "--set", "launchAgent=true")
        spec = get("deployment", "gradus-operator", "gradus")["spec"]
        assert spec["replicas"] == 1
        assert spec["template"]["spec"]["containers"][0]["args"] == [
            "--enable-scheme=gradusjob", "--launch-agent-image=near/gradus:2"]
        helm("uninstall", "gradus", "--wait")
        assert not cluster.get("clusterroles", "--field-selector",
                               "metadata.name=gradus-operator")["items"]
        assert get("crd", "gradusjobs.gradus.dev")
        cluster.kubectl("wait", "--for=delete", "namespace/gradus", "--timeout=120s")
        helm("install", "gradus", archive, *flags, "--set", "namespace.name=team", "--set",
             "namespace.create=false")
        assert get("deployment", "gradus-operator", "team")["spec"]["replicas"] == 2
