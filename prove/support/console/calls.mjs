// Calls of agents through the gateway.
import { check, until } from "./harness.mjs";
import { startTask } from "./tasks.mjs";

const PROTOCOL = { Accept: "application/json, text/event-stream", "MCP-Protocol-Version": "2025-06-18" };

/** An agent's token for a task of the web project; the same for all journeys. */
export function makeAgent(world) {
  world.agent ??= issueToken(world);
  return world.agent;
}

async function issueToken(world) {
  const facts = await world.setUp();
  const task = await startTask(world, "web", { description: "Make the greeting friendlier." });
  await world.api.ask("POST", "/v1/profiles", {
    name: "networked",
    project_id: facts.web,
    spec: { tools: ["*", "proof.*"], network: [{ domain: "*", methods: ["*"] }], paths: { read: ["**"] } },
  });
  return world.api.ask("POST", "/v1/agent-tokens", {
    role: "developer",
    project_id: facts.web,
    task_id: task.id,
    profile: "networked",
    network: true,
    expires_in_seconds: 36_000,
  });
}

/** What the gateway answers to a call of an agent. */
export async function callTool(world, name, input) {
  const agent = await makeAgent(world);
  const body = { jsonrpc: "2.0", id: 1, method: "tools/call", params: { name, arguments: input } };
  const options = { base: world.internal, token: agent.token, headers: PROTOCOL };
  const { status, text } = await until(`an answer of the gateway to ${name}`, async () => {
    const answer = await world.api.send("POST", "/mcp", body, options);
    // On a busy machine the gateway may not know its policy for a moment, and says so.
    return answer.status === 503 ? null : answer;
  });
  check(status === 200, `the gateway answers ${status}: ${text.slice(0, 300)}`);
  const data = text.startsWith("{") ? text : text.split("\n").findLast((line) => line.startsWith("data: ")).slice(6);
  return JSON.parse(data);
}

/** A call that a rule of the set-up wants a person to see; returns its approval. */
export async function askForCall(world, text) {
  const before = new Set((await world.api.ask("GET", "/v1/approvals")).items.map((it) => it.approval_id));
  const body = `invoice ${Math.random()}: ${text}`;
  await callTool(world, "api__call", { method: "POST", url: "https://billing.example.org/v1/refunds", body });
  return until("the approval", async () => {
    const { items } = await world.api.ask("GET", "/v1/approvals");
    return items.find((it) => !before.has(it.approval_id));
  });
}
