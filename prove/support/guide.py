#!/usr/bin/env python3
"""The fenced blocks of guides, and the commands in tables of the hardening checklist, for the proof that runs them.

    guide.py block GUIDE NAME [PLACEHOLDER=VALUE…]   prints a block with its placeholders replaced, and notes in $GUIDE_RECORD that it was asked for
    guide.py write GUIDE NAME PATH [PLACEHOLDER=…]   the same, as a shell script that writes the block to a file, or to the files that its lines `# /…` name
    guide.py check                                   compares the table below with the guides: each block is in it, and each of its rows has a block
    guide.py check --ran FILE                        and each block that can run here was asked for

A row names a block by words that only this block has. `changed` are the few places in which the block is not run as it is written: addresses of the
release, passwords that a person types, values that differ each time (`{NAME}`, given as NAME=VALUE).
"""

import dataclasses
import os
import pathlib
import re
import shlex
import sys

ROOT = pathlib.Path(__file__).resolve().parent.parent.parent
GUIDES = ROOT / "docs" / "guides"
FENCE = re.compile(r"^(?P<before>\s*(?:\d+\.\s+|-\s+)?)```(?P<language>\w*)\s*$")
# A comment that names the file whose content follows.
FILE_LINE = re.compile(r"^# (/\S+)$")
# Programs whose commands in tables count as commands of the guide.
TABLE_PROGRAMS = ("cynode", "cynode-setup", "cynork", "sh", "lsblk", "getent", "ps", "systemd-analyze", "ss", "runuser", "curl", "nc", "systemctl")

RELEASE = {"https://RELEASES/VERSION": "file:///release", "--release VERSION": "--release {VERSION}"}
NEXT = {"https://RELEASES/NEXT": "file:///next", "--release NEXT": "--release {NEXT}"}
# A person types it where the prompt asks.
TYPED = "echo 'correct horse battery' | "
SETUP = {"cynork setup ": TYPED + "cynork setup --password-stdin "}
# No coding agent is installed here, for which a registry is needed: the status and the doctor say so, and end with 1. Nothing else may be wrong.
STATUS = {f"cynork {command}": f'cynork {command} | tee told; if grep "✗" told | grep -v "✗ agents "; then exit 1; fi' for command in ("doctor", "status")}
PUBLIC_NAME = "a certificate authority on the public network has to reach a public name; prove/security/tls gets certificates from an ACME server of its own"
CLUSTER = "there is no Kubernetes API server here; prove/journeys/install renders, validates and plays the chart, and asks its readiness"


@dataclasses.dataclass(frozen=True)
class Row:
    """A block that runs here."""

    name: str
    words: str
    changed: dict = dataclasses.field(default_factory=dict)


@dataclasses.dataclass(frozen=True)
class NotHere:
    """A block that cannot run here, and why."""

    words: str
    reason: str


TABLE = {
    "single-host": [
        Row("install", "apt-get install minisign curl", RELEASE),
        NotHere("acme_domains", PUBLIC_NAME),
        Row("start", "systemctl enable --now cynode\ncynork setup", SETUP | {"cynork status          #": STATUS["cynork status"] + " #"}),
        Row("backup-units", "cynode-backup.service", {"age1…": "{RECIPIENT}"}),
        Row("backup-timer", "systemctl enable --now cynode-backup.timer"),
        Row("upgrade", "https://RELEASES/NEXT", NEXT | {"age1…": "{RECIPIENT}", "cynork doctor": STATUS["cynork doctor"]}),
        Row("downgrade", "--allow-downgrade", RELEASE),
    ],
    "install": [
        Row("verify", "# or: --from ./DIRECTORY", RELEASE),
        Row("start", "cynode doctor\nsystemctl enable --now cynode", SETUP),
        Row("units", "cynode-setup --local-database", SETUP),
        Row("archive", "--prefix ~/.local", RELEASE),
        NotHere("podman-compose up -d", "prove/journeys/install brings the compose file up, upgrades it and takes it down, with other names and ports than its defaults"),
        NotHere("helm install cynode cynode-chart", CLUSTER),
        NotHere("scripts/release OUT", "it compiles the workspace in the release profile; scripts/package made the files of this proof"),
    ],
    "air-gapped": [
        Row("verify", "--from ./release --dry-run"),
        Row("install", "sh install.sh --from ./release\n"),
        Row("check", "cynork doctor\n", {"cynork doctor": STATUS["cynork doctor"]}),
    ],
    "reverse-proxy": [
        Row("same-host", 'trusted_proxies = "127.0.0.1, ::1"'),
        Row("other-host", "behind_proxy = true"),
        Row("caddy", "reverse_proxy 10.0.0.5:12080"),
        Row("nginx", "proxy_pass http://10.0.0.5:12080"),
        Row("check", "curl -sS https://cynode.example.com/readyz", {"cynork login https://cynode.example.com --handle NAME": TYPED + "cynork login https://cynode.example.com --handle ada --password-stdin"}),
    ],
    "three-hosts": [
        Row("postgresql", "listen_addresses"),
        Row("access", "hostssl"),
        Row("roles", "CREATE DATABASE cynode", {"CREATE ROLE cynode_owner LOGIN PASSWORD '…'": "CREATE ROLE cynode_owner LOGIN PASSWORD 'owner-word'", "CREATE ROLE cynode_runtime LOGIN PASSWORD '…'": "CREATE ROLE cynode_runtime LOGIN PASSWORD 'runtime-word'"}),
        Row("install", "db-ca.pem      #", RELEASE),
        Row("setup", "> /root/owner-url", {"cynode_runtime:PASSWORD": "cynode_runtime:runtime-word", "cynode_owner:PASSWORD": "cynode_owner:owner-word"}),
        Row("configuration", 'names = "cynode.internal"'),
        Row("certificates", "cynode-setup --certificates      #"),
        Row("runner", "/etc/cynode/secrets/runner/ca.pem\n"),
        Row("manager", "/etc/cynode/secrets/manager/ca.pem\n"),
        Row("analyst", "/etc/cynode/secrets/analyst/ca.pem\n"),
        Row("renewal-units", "cynode-certificates.service"),
        Row("renewal-timer", "enable --now cynode-certificates.timer"),
        Row("second-server", "cp /usr/lib/systemd/system/cynode-server.service"),
        Row("second-server-ports", "server.listen=10.0.0.5:13080"),
        Row("start", "systemctl enable --now cynode-server-2"),
        Row("haproxy", "frontend people"),
        Row("first-admin", "sed -i", SETUP),
        Row("join-token", "cynode-setup --admin join-token"),
        Row("join", "cynode-node --state /var/lib/cynode-node join", RELEASE),
        Row("upgrade", "https://RELEASES/NEXT", NEXT),
        Row("upgrade-wait", "until curl"),
        Row("upgrade-second", "systemctl restart cynode-server-2"),
    ],
    "hardening": [
        Row("seal", "systemd-creds encrypt"),
        Row("sealed-unit", "LoadCredentialEncrypted=cynode-master-key"),
    ],
    "backup-and-restore": [
        Row("key", "age-keygen -o backup-key.txt"),
        Row("backup", "--keep 14\n", {"age1…": "{RECIPIENT}"}),
        Row("check", "cynode restore --check", {"/backups/cynode-20261118T030000Z-…": "{BACKUP}", "HEX": "{PUBLIC}"}),
        Row("restore", "--public-key HEX\ncynode up", {"/backups/cynode-20261118T030000Z-…": "{BACKUP}", "HEX": "{PUBLIC}"}),
        Row("archive", "database.wal_archive=/archive/cynode-wal"),
        Row("restore-until", "--until 2026-11-18T14:55:00Z", {"/backups/cynode-…": "{BACKUP}", "HEX": "{PUBLIC}", "2026-11-18T14:55:00Z": "{MOMENT}"}),
        Row("role", "CREATE ROLE cynode_runtime LOGIN", {"PASSWORD '…'": "PASSWORD 'runtime-word'"}),
    ],
    "disaster-recovery": [
        Row("restore", "cynode restore /backups/cynode-… ", {"/backups/cynode-…": "{BACKUP}", "HEX": "{PUBLIC}"}),
        Row("epoch", "cynode admin begin-epoch", {"2026-11-18T03:00:00Z": "{MOMENT}"}),
        Row("drill", "cynode restore --check", {"/backups/NEWEST": "{BACKUP}", "HEX": "{PUBLIC}"}),
    ],
    "tls": [
        Row("files", "certificate_file = "),
        NotHere("acme_contact", PUBLIC_NAME),
        Row("user-port", "--set server.listen=0.0.0.0:12080"),
        Row("login", "cynork --ca-file /var/lib/cynode/storage/tls/ca.pem login", {"--handle NAME": "--handle ada --password-stdin", "cynork --ca-file": TYPED + "cynork --ca-file"}),
        Row("internal-port", "--set server.internal_listen=0.0.0.0:12082"),
        Row("join-token", "cynode admin join-token --data-dir"),
        Row("join", "cynode-node join --url https://cynode.internal:12082"),
        Row("runner-files", "cynode admin certificate runner"),
        Row("runner", "cynode-runner --orchestrator"),
        Row("manager-files", "cynode admin certificate manager"),
        Row("manager", "cynode-pma --role=project_manager --instructions"),
        Row("proxy", "behind_proxy = true"),
    ],
    "kubernetes": [
        NotHere("kubectl create namespace cynode", CLUSTER),
        NotHere("service.internal.enabled=true", CLUSTER),
        NotHere("rollout restart", CLUSTER),
    ],
    "sizing": [
        NotHere("prove/run api-load", "each is a proof of its own, which prove/run --all runs with this one"),
    ],
}

# The commands in tables of the hardening checklist: the words with which they begin, and the machine of the proof on which they run.
TABLE_COMMANDS = {
    "hardening": {
        "sh install.sh --dry-run": "units",
        "lsblk -f": "units",
        "cynork node list": "units",
        "getent passwd": "units",
        "cynork doctor": "units",
        "ps -eo user,cmd": "units",
        "systemd-analyze security": "units",
        "ss -ltnp": "units",
        "runuser -u postgres -- psql": "units",
        "curl -sI https://HOST/": "edge",
        "nc -z": "edge",
        "cynork session list": "edge",
        "cynode config check": "units",
        "cynork settings": "units",
        "systemctl cat cynode-server": "units",
        "cynode admin keys": "units",
        "cynork api-key list": "units",
        "cynode admin break-glass": "units",
        "cynork audit sink list": "units",
        "cynode audit key": "units",
        "cynode audit verify": "units",
        "cynode doctor --restore": "single",
        "cynode up": "single",
        "cynode-setup --admin": "units",
        "cynode-setup --run audit key": "units",
        "cynode-setup --run audit verify": "units",
    }
}


def read_blocks(guide):
    """The fenced blocks of a guide, without the indentation of a list."""
    blocks, lines, indent = [], None, 0
    for line in (GUIDES / f"{guide}.md").read_text(encoding="utf-8").splitlines():
        match = FENCE.match(line)
        if lines is None and match:
            lines, indent = [], len(match["before"])
        elif lines is not None and line.strip() == "```":
            blocks.append("\n".join(lines) + "\n")
            lines = None
        elif lines is not None:
            lines.append(line[indent:] if not line[:indent].strip() else line)
    return blocks


def find_block(guide, words):
    found = [block for block in read_blocks(guide) if words in block]
    if len(found) != 1:
        sys.exit(f"{len(found)} blocks of docs/guides/{guide}.md contain {words!r}, not one: mend the guide, or the table in prove/support/guide.py")
    return found[0]


def replace_placeholders(guide, row, values):
    text = find_block(guide, row.words)
    for written, run in row.changed.items():
        if written not in text:
            sys.exit(f"docs/guides/{guide}.md, {row.name}: {written!r} is not in the block any more")
        for name in re.findall(r"\{([A-Z]+)\}", run):
            if name not in values:
                sys.exit(f"{guide}, {row.name}: say {name}=VALUE")
            run = run.replace("{" + name + "}", values[name])
        text = text.replace(written, run)
    return text


def find_row(guide, name):
    found = [row for row in TABLE[guide] if isinstance(row, Row) and row.name == name]
    if not found:
        sys.exit(f"the table has no block {name} of {guide}")
    return found[0]


def take_block(guide, name, words):
    values = dict(word.split("=", 1) for word in words)
    text = replace_placeholders(guide, find_row(guide, name), values)
    record = os.environ.get("GUIDE_RECORD")
    if record:
        with open(record, "a", encoding="utf-8") as file:
            file.write(f"{guide}/{name}\n")
    return text


def write_script(text, path):
    """A script that writes the block. A block of several files names each by a line `# /path`."""
    files, current = {}, path
    for line in text.splitlines():
        match = FILE_LINE.match(line)
        if match:
            current = match[1]
        else:
            files.setdefault(current, []).append(line)
    script = ["set -e"]
    for target, lines in files.items():
        if target == "-":
            sys.exit("the block names no file: give one")
        script.append(f"mkdir -p {shlex.quote(os.path.dirname(target))}")
        script.append(f"printf '%s\\n' {' '.join(shlex.quote(line) for line in lines)} >{shlex.quote(target)}")
    return "\n".join(script) + "\n"


def table_commands(guide):
    """Commands in cells of tables."""
    found = []
    for line in (GUIDES / f"{guide}.md").read_text(encoding="utf-8").splitlines():
        if line.startswith("|"):
            found += [code.replace("\\|", "|") for code in re.findall(r"`([^`]+)`", line) if code.split()[0] in TABLE_PROGRAMS and " " in code]
    return found


def check(ran):
    problems, runs, listed = [], 0, 0
    for guide, rows in TABLE.items():
        blocks = read_blocks(guide)
        claimed = []
        for row in rows:
            block = find_block(guide, row.words)
            claimed.append(block)
            if isinstance(row, NotHere):
                listed += 1
                print(f"not here: {guide}: {row.words.splitlines()[0]}: {row.reason}")
                continue
            runs += 1
            for written in row.changed:
                if written not in block:
                    problems.append(f"{guide}, {row.name}: {written!r} is not in the block any more")
            if ran is not None and f"{guide}/{row.name}" not in ran:
                problems.append(f"{guide}, {row.name}: was not run")
        for block in blocks:
            if claimed.count(block) != 1:
                problems.append(f"docs/guides/{guide}.md has a block that {'nothing runs or lists' if block not in claimed else 'two rows claim'}:\n{block}")
    for guide, commands in TABLE_COMMANDS.items():
        written = table_commands(guide)
        for command in written:
            if not any(command.startswith(words) for words in commands):
                problems.append(f"docs/guides/{guide}.md has a command in a table that nothing runs: {command}")
        for words in commands:
            if not any(command.startswith(words) for command in written):
                problems.append(f"{guide}: {words!r} is not in a table any more")
            elif ran is not None and f"{guide}: {words}" not in ran:
                problems.append(f"{guide}: {words!r} was not run")
    if problems:
        sys.exit("\n".join(problems))
    print(f"{len(TABLE)} guides: {runs} blocks run here, {listed} are listed with the reason why not")


def main():
    match sys.argv[1:]:
        case ["block", guide, name, *words]:
            sys.stdout.write(take_block(guide, name, words))
        case ["write", guide, name, path, *words]:
            sys.stdout.write(write_script(take_block(guide, name, words), path))
        case ["check"]:
            check(None)
        case ["check", "--ran", file]:
            check(set(pathlib.Path(file).read_text(encoding="utf-8").splitlines()))
        case _:
            sys.exit(__doc__)


if __name__ == "__main__":
    main()
