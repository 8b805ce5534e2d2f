// A tool server over HTTP whose definitions change when a journey wants it.
import { createServer } from "node:http";

const SCHEMA = { type: "object", properties: { text: { type: "string" } }, additionalProperties: false };

/** Serves tools; each has a name and a description, and answers with its text. */
export async function serveTools(given) {
  const tools = given.map((tool) => ({ inputSchema: SCHEMA, ...tool }));
  const answer = ({ method, params }) => {
    if (method === "initialize") {
      const serverInfo = { name: "journey", version: "1" };
      return { protocolVersion: params.protocolVersion, capabilities: { tools: {} }, serverInfo };
    }
    if (method === "tools/list") return { tools };
    if (method === "tools/call") return { content: [{ type: "text", text: `did ${params.arguments?.text ?? ""}` }] };
    return {};
  };
  const server = createServer((request, response) => {
    let text = "";
    request.on("data", (piece) => {
      text += piece;
    });
    request.on("end", () => {
      if (request.method !== "POST") return response.writeHead(405).end();
      const message = JSON.parse(text);
      if (message.id === undefined) return response.writeHead(202).end();
      response.writeHead(200, { "Content-Type": "application/json" });
      return response.end(JSON.stringify({ jsonrpc: "2.0", id: message.id, result: answer(message) }));
    });
  });
  await new Promise((resolve) => server.listen(0, "127.0.0.1", resolve));
  const url = `http://127.0.0.1:${server.address().port}/mcp`;
  return {
    url,
    tools,
    close: () => {
      server.closeAllConnections();
      server.close();
    },
    /** Installs it under a name and accepts what it offers; returns its id. Its tools are called `proof.NAME.…`. */
    async install(api, name) {
      const made = await api.ask("POST", "/v1/tool-servers", {
        name, scope: "both", audience: "everybody", prefix: `proof.${name}`, timeout_ms: 10_000, max_in_flight: 10, allow_private: true,
        transport: { type: "http", url },
      });
      const seen = await api.ask("POST", `/v1/tool-servers/${made.server_id}/refresh`, "null");
      if (seen.failure) throw new Error(`the tool server: ${JSON.stringify(seen.failure)}`);
      const accepted = Object.fromEntries(seen.tools.map((tool) => [tool.tool, tool.definition_digest]));
      await api.ask("POST", `/v1/tool-servers/${made.server_id}/accept`, { tools: accepted });
      return made.server_id;
    },
  };
}
