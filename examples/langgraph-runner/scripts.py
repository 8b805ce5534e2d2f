"""Agents that play a script: plans, findings and failures come from a file. Put a model in the place of this.

The first word of a task's description names its script.
"""

import json
import time
from pathlib import Path


class Scripts:
    def __init__(self, path):
        self._scripts = json.loads(Path(path).read_text())

    def _of(self, task):
        name = task["description"].split()[0]
        script = self._scripts[name]
        time.sleep(script.get("think_ms", 0) / 1000)
        return name, script

    def plan(self, task, feedback):
        """A plan; what people said since becomes one unit each."""
        name, script = self._of(task)
        payload = {"script": name, "work_ms": script.get("work_ms", 0)}
        said = [{"key": f"feedback-{n}", "title": one["text"]} for n, one in enumerate(feedback, 1)]
        steps = [{"depends_on": []} | unit | {"payload": payload} for unit in script["plan"]["steps"] + said]
        return {"steps": steps, "assumptions": script["plan"].get("assumptions", [])}

    def verify(self, task, unit, attempt, output):
        """A judgement of a result."""
        name, _ = self._of(task)
        if self.becomes(name, unit, attempt) != "bad":
            return {"status": "pass", "findings": [], "recommended_actions": []}
        findings = [{"severity": "major", "text": "scripted finding"}]
        return {"status": "fail", "findings": findings, "recommended_actions": []}

    def becomes(self, name, unit, attempt):
        """What becomes of an attempt of a unit; when the script says nothing more, all is well."""
        planned = self._scripts[name].get("attempts", {}).get(unit, [])
        return planned[attempt - 1] if attempt <= len(planned) else "good"
