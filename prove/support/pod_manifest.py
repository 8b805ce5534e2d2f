"""Makes a pod for `podman play kube` of the chart's StatefulSet: `pod_manifest.py RENDERED DIRECTORY PORT SOCKETS PROBE`.

podman has no cluster: volumes become folders below DIRECTORY, the claim of a port becomes PORT of this machine's loopback, and the database is reached
by a socket in SOCKETS. The readiness probe of the server goes into the file PROBE, its command or its path: the caller asks it. Containers, commands,
mounts, users and rights are those of the chart.
"""

import pathlib
import sys

import yaml

USER = 12080


def main():
    rendered, directory, port, sockets, probe_file = sys.argv[1:]
    documents = yaml.safe_load_all(pathlib.Path(rendered).read_text(encoding="utf-8"))
    stateful = next(document for document in documents if document and document["kind"] == "StatefulSet")
    spec = stateful["spec"]["template"]["spec"]
    names = [volume["name"] for volume in spec["volumes"]] + [claim["metadata"]["name"] for claim in stateful["spec"]["volumeClaimTemplates"]]
    spec["volumes"] = [{"name": "sockets", "hostPath": {"path": sockets, "type": "Directory"}}]
    for name in names:
        folder = pathlib.Path(directory) / name
        folder.mkdir(parents=True, exist_ok=True)
        spec["volumes"].append({"name": name, "hostPath": {"path": str(folder), "type": "Directory"}})
    # podman restarts an init container that succeeded.
    spec["restartPolicy"] = "OnFailure"
    user = spec.pop("securityContext")
    for container in spec["initContainers"] + spec["containers"]:
        probe = container.pop("readinessProbe", None)
        if probe is not None:
            asked = probe["exec"]["command"][2] if "exec" in probe else probe["httpGet"]["path"]
            pathlib.Path(probe_file).write_text(asked, encoding="utf-8")
        container.pop("livenessProbe", None)
        container.pop("resources", None)
        container["securityContext"] |= {"runAsUser": user["runAsUser"], "runAsGroup": user["runAsGroup"]}
        if container["name"] in ("setup", "server"):
            container["volumeMounts"].append({"name": "sockets", "mountPath": "/var/run/postgresql"})
        for opened in container.get("ports", []):
            opened |= {"hostPort": int(port), "hostIP": "127.0.0.1"}
    assert user["runAsUser"] == USER and user["runAsNonRoot"], user
    pod = {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": stateful["metadata"]["name"]}, "spec": spec}
    print(yaml.safe_dump(pod, sort_keys=False))


if __name__ == "__main__":
    main()
