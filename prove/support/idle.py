"""What an installation costs while nothing happens.

idle.py PID URL SECONDS MAX_TRANSACTIONS MAX_PERCENT [BARE]: watches the process PID and all its descendants for SECONDS. Prints the
transactions a second of the database at URL and the share of one core of each program. Fails when the transactions or the sum
of the shares are above their bars. A bar of `-` is not held. BARE is a process that is watched beside it: the sum of the shares
has to be below its share.
"""

import os
import subprocess
import sys
import time

TICKS = os.sysconf("SC_CLK_TCK")


def transactions(url):
    query = "SELECT sum(xact_commit + xact_rollback) FROM pg_stat_database WHERE datname = current_database()"
    return int(subprocess.run(["psql", "-XAtq", url, "-c", query], check=True, capture_output=True, text=True).stdout)


def processes():
    """All processes: id to (parent, name, own ticks, ticks of its children that have ended)."""
    found = {}
    for entry in os.listdir("/proc"):
        if not entry.isdigit():
            continue
        try:
            with open(f"/proc/{entry}/stat", encoding="utf-8", errors="replace") as file:
                text = file.read()
        except OSError:
            continue
        name = text[text.index("(") + 1 : text.rindex(")")]
        fields = text[text.rindex(")") + 2 :].split()
        found[int(entry)] = (int(fields[1]), name, int(fields[11]) + int(fields[12]), int(fields[13]) + int(fields[14]))
    return found


def cpu(root):
    """Ticks of each program below `root`. A child that ended is counted with its parent."""
    found = processes()
    below, known = {}, {root}
    grew = True
    while grew:
        grew = False
        for pid, (parent, *_) in found.items():
            if pid not in known and parent in known:
                known.add(pid)
                grew = True
    for pid in known & found.keys():
        _, name, own, ended = found[pid]
        below[name] = below.get(name, 0) + own + ended
    return below


def main():
    root, url, seconds, max_transactions, max_percent, *bare = sys.argv[1:]
    root, seconds, bare = int(root), float(seconds), [int(pid) for pid in bare]
    before, ticks, bare_ticks, began = transactions(url), cpu(root), [sum(cpu(pid).values()) for pid in bare], time.monotonic()
    time.sleep(seconds)
    took = time.monotonic() - began
    after, bare_after, transacted = cpu(root), [sum(cpu(pid).values()) for pid in bare], transactions(url)
    # What this proof itself asked is not counted: one transaction and one connection.
    rate = max(transacted - before - 1, 0) / took
    shares = {name: (after.get(name, 0) - ticks.get(name, 0)) / TICKS / took * 100 for name in sorted(after)}
    total = sum(shares.values())
    print(f"idle for {took:.0f} s: {rate:.2f} transactions/s, {total:.2f} % of a core")
    for name, share in shares.items():
        print(f"  {name:16} {share:5.2f} %")
    bars = [("transactions/s", rate, max_transactions), ("% of a core", total, max_percent)]
    for begun, ended in zip(bare_ticks, bare_after, strict=True):
        share = (ended - begun) / TICKS / took * 100
        print(f"  a bare engine, beside it: {share:.2f} %; ours together are {total / share if share else float('inf'):.2f} times that")
        bars.append(("% of a core", total, f"{share:.2f}"))
    good = True
    for what, value, bar in bars:
        if bar != "-" and value >= float(bar):
            print(f"NOT SO: {value:.2f} {what}, under {bar} were promised", file=sys.stderr)
            good = False
    sys.exit(0 if good else 1)


if __name__ == "__main__":
    main()
