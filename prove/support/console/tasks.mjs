// Tasks that journeys need, made by the interface.
import { until } from "./harness.mjs";

let counter = 0;

/** A task of a project of the set-up, or of one by its id; with `asks`, until its plan waits for a decision. */
export async function startTask(world, project, { asks = false, description, name } = {}) {
  const facts = await world.setUp();
  counter += 1;
  const { id } = await world.api.ask("POST", "/v1/tasks", {
    project_id: facts[project] ?? project,
    name: name ?? `journey-${Date.now().toString(36)}-${counter}`,
    description: description ?? "Add an option --max LENGTH to slug: no name is longer, and names are cut between words.",
    acceptance_criteria: [{ text: "its tests pass", check: { argv: ["sh", "tests/max_test.sh"] } }],
    budget: { max_cost_micros: 500_000, max_tokens: null },
    approve_plan: asks,
  });
  if (asks) await waitFor(world, id, "approval");
  return world.api.ask("GET", `/v1/tasks/${id}`);
}

/** Until the task waits for a person because of that. */
export function waitFor(world, task, reason) {
  return until(`${reason} of ${task}`, async () => {
    const { status, text } = await world.api.send("GET", `/v1/tasks/${task}/timeline`);
    if (status !== 200) return null;
    return JSON.parse(text).waits.find((wait) => wait.reason === reason && !wait.resolved_at);
  });
}
