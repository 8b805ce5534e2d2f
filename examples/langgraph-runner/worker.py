"""Works on jobs by the script that their payload names, and writes one line for each into a ledger."""

import argparse
import signal
import sys
import time
from pathlib import Path
from uuid import uuid4

from contract import Client, Fenced, Refused
from scripts import Scripts


def work(client, scripts, job, ledger):
    # The payload has the unit's own payload in it, beside its title and what is to be done better this time.
    unit, attempt, payload = job["unit"], job["attempt"], job["payload"]["unit"]
    becomes = scripts.becomes(payload["script"], unit, attempt)
    time.sleep(payload["work_ms"] / 1000)
    ledger.write(f"{job['task_id']} {unit} {attempt}\n")
    ledger.flush()
    if becomes == "vanishes":
        return
    outcome = "failed" if becomes == "fails" else "succeeded"
    report = {"fencing_token": job["fencing_token"], "outcome": outcome}
    report["result"] = {"unit": unit, "attempt": attempt}
    try:
        client.post(f"/v1/jobs/{job['job_id']}/result", report)
    except (Fenced, Refused) as why:
        print(f"the result of {job['job_id']} is not wanted: {why}", flush=True)


def main():
    # To be told to stop is no failure.
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(0))
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--orchestrator", metavar="URL", default="http://127.0.0.1:12082", help="its internal port")
    parser.add_argument("--token-file", required=True, help="holds the token from `cynode admin token worker`")
    parser.add_argument("--scripts", required=True, help="the file of scripts")
    parser.add_argument("--ledger", required=True, help="the file that gets a line for each job")
    args = parser.parse_args()
    client = Client(args.orchestrator, Path(args.token_file).read_text().strip())
    scripts = Scripts(args.scripts)
    with open(args.ledger, "a") as ledger:
        while True:
            # Few at a time: they are worked on one after the other.
            claim = {"claim_id": str(uuid4()), "max_jobs": 4, "expires_in_seconds": 60}
            jobs = client.post("/v1/jobs/claim", claim)["jobs"]
            for job in jobs:
                work(client, scripts, job, ledger)
            if not jobs:
                time.sleep(0.02)


if __name__ == "__main__":
    main()
