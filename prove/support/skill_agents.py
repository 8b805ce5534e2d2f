#!/usr/bin/env python3
"""Writes a skill as a person does, and looks at what agents and the manager are told. See prove/conformance/skills.

    skill_agents.py CYNODE WORK --agents DIR [--agent NAME...] [--live URL --live-name NAME]

Each coding agent does the same task twice, before the skill is there and after. The model records every request. With --live a real model at URL, which has at
least 16,000 tokens of context, reads what the agents are told first and begins their work.
"""

import argparse
import json
import pathlib
import re
import sys

sys.dont_write_bytecode = True
import real_agents  # noqa: E402
from knowledge_world import TASK_SECONDS, KnowledgeWorld, LiveModel  # noqa: E402
from review_world import until  # noqa: E402

NAME = "one-more-line"
DESCRIPTION = "When one more line is added to the page README.md"
BODY = "Every line of README.md ends with the words tangerine-4711. Read checklist.md before you end."
FILE = "The checklist says quince-4712."
DESCRIPTION_MARK, BODY_MARK, FILE_MARK = NAME, "tangerine-4711", "quince-4712"
WORDS = "Add one more line to the page README.md."
# What an agent can see of a skill: the command prints every skill's files that its sandbox has.
COMMAND = (
    'for place in $(find . "$HOME" -name SKILL.md -not -path "*/node_modules/*" 2>/dev/null); do '
    'echo "skill at $place"; cat "$(dirname "$place")"/*; done; echo "One more line." >> README.md'
)
# A small model on a processor reads thousands of words.
LIVE_TASK_SECONDS = 1200
# A word of code that has the form of a tool's name.
TOOL_NAME = re.compile(r"`([a-z_]+(?:\.[a-z_]+)+)`")


class SkillWorld(KnowledgeWorld):
    def __init__(self, cynode, work, installed, agents, live):
        super().__init__(cynode, work)
        self.install_agents(installed)
        until(lambda: any(real_agents.has_agents(node, agents) for node in self.expect(200, "GET", "/v1/nodes")["items"]), 120, what="the node has not the agents")
        # The manager's models take skills.
        for tier in ("fast", "standard", "deep"):
            self.set_model(f"recorder-{tier}", "recorder", tier=tier, context_tokens=200000, max_output_tokens=4000, skills=True)
        self.model.command = COMMAND
        self.model.live = live

    def play(self, project, agent, number):
        """One task: what came of it, and what the manager and the agent were told."""
        self.model.forget()
        seconds = LIVE_TASK_SECONDS if self.model.live else TASK_SECONDS
        task, state = self.run_task(project, WORDS, seconds, name=f"{agent}-{number}")
        assert state == "completed", f"{agent}: {state}"
        told = "\n".join(prompt.raw for prompt in self.model.of_agents())
        assert self.model.of_agents(), f"{agent} asked no model"
        return task, told, "\n".join(prompt.raw for prompt in self.model.of_manager())

    def write_skill(self, project):
        body = {"scope": "project", "project_id": project, "name": NAME, "description": DESCRIPTION, "body": BODY,
                "files": [{"path": "checklist.md", "text": FILE}]}  # fmt: skip
        return self.expect(201, "POST", "/v1/skills", body)


def check_agent(world, agent):
    """The same task before the skill and after it."""
    project = world.prepare_project(f"with-{agent}", {"kind": "acp", "agent": agent})
    _, agent_before, manager_before = world.play(project, agent, 1)
    for mark in (DESCRIPTION_MARK, BODY_MARK, FILE_MARK):
        assert mark not in agent_before + manager_before, f"S000-095: {mark} is told before it is written"
    skill = world.write_skill(project)
    task, agent_after, manager_after = world.play(project, agent, 2)
    assert DESCRIPTION_MARK in agent_after, f"S000-095: {agent} is not told that there is a skill"
    assert BODY_MARK in agent_after, f"S000-095: {agent} cannot see the instructions of the skill"
    assert FILE_MARK in agent_after, f"S000-095: {agent} cannot see the files of the skill"
    assert BODY_MARK in manager_after, "S000-095: the manager is not told the skill"
    given = [one for handoff in world.handoffs(project, task) for one in handoff.get("given", [])]
    check_record(given, skill, "handoff_id")
    check_record(world.timeline(task).get("given", []), skill, "job_id")
    return f"{agent} and the manager are told a skill after a person wrote it, not before; the records of decision and job name it with its version"


def check_record(given, skill, owner):
    """The record of what was given names the skill and its version."""
    named = [one for one in given if one.get(owner) and {"skill_id": skill["skill_id"], "name": NAME, "version": skill["version"]} in one["skills"]]
    assert named, f"no record of a {owner} names the skill: {json.dumps(given)[:800]}"


def check_version(world):
    """A new version is told, and the record says which one it was."""
    project = world.prepare_project("versions", {"kind": "scripted", "moves": moves()})
    skill = world.write_skill(project)
    world.expect(200, "PUT", f"/v1/skills/{skill['skill_id']}", {"description": DESCRIPTION, "body": "It ends with medlar-4713.", "expected_version": skill["version"]})
    world.model.forget()
    task, state = world.run_task(project, WORDS)
    assert state == "completed", state
    told = "\n".join(prompt.raw for prompt in world.model.of_manager())
    assert "medlar-4713" in told and BODY_MARK not in told, "the manager is told an old version"
    given = [one for handoff in world.handoffs(project, task) for one in handoff.get("given", [])]
    check_record(given, skill | {"version": skill["version"] + 1}, "handoff_id")
    return "a changed skill is told in its new version, and the record names that version"


def check_default_skill(world):
    """The skill that comes with the product names only tools that exist and that the manager may call."""
    prompts = [prompt.whole for prompt in world.model.of_manager()]
    skills = [part for prompt in prompts for part in re.findall(r"## Skill\n(.*?)(?=\n# Part|\Z)", prompt, re.DOTALL)] or prompts
    named = {name for skill in skills for name in TOOL_NAME.findall(skill)}
    tools = {tool["name"]: tool for tool in world.expect(200, "GET", "/v1/tools")["items"]}
    groups = {name.split(".")[0] for name in tools}
    # A word such as `README.md` is no tool: what begins with a group of tools is meant as one.
    meant = {name for name in named if name.split(".")[0] in groups}
    assert meant, "S000-095: the manager was not given the default skill"
    missing = {name for name in meant if name not in tools}
    assert not missing, f"S000-095: the default skill names {missing}, which do not exist"
    forbidden = {name for name in meant if not tools[name]["enabled"] or "project_manager" not in tools[name]["roles"]}
    assert not forbidden, f"S000-095: the default skill names {forbidden}, which the manager may not call"
    return f"the default skill names {len(meant)} tools; all exist and are allowed"


def moves():
    return [{"move": "run", "argv": ["sh", "-c", "echo 'One more line.' >> README.md"]},
            {"move": "tool", "name": "pm.report", "arguments": {"kind": "work_completed", "summary": "The line is there."}}]  # fmt: skip


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("cynode")
    parser.add_argument("work")
    parser.add_argument("--agents", required=True, help="directory of installed agents")
    parser.add_argument("--agent", nargs="*", default=list(real_agents.AGENTS))
    parser.add_argument("--live", metavar="URL")
    parser.add_argument("--live-name", default="local")
    options = parser.parse_args()
    live = LiveModel(options.live, options.live_name) if options.live else None
    world = SkillWorld(options.cynode, pathlib.Path(options.work), options.agents, options.agent, live)
    try:
        checks = [(agent, lambda agent=agent: check_agent(world, agent)) for agent in options.agent]
        checks += [("another version", lambda: check_version(world)), ("the default skill", lambda: check_default_skill(world))]
        good = world.report_checks(checks)
        print(f"{len(options.agent)} coding agents and the manager")
        if live is not None:
            # Each agent does two tasks.
            good = good and len(live.answers) >= 2 * len(options.agent)
            called = sum(bool(answer.get("tool_calls")) for answer in live.answers)
            print(f"a real model began the work {len(live.answers)} times, {called} times with a call of a tool")
        sys.exit(0 if good else 1)
    finally:
        world.stop()


if __name__ == "__main__":
    main()
