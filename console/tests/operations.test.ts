import { readdirSync, readFileSync } from "node:fs";
import { describe, expect, it } from "vitest";
import { addressOf, OPERATION_COMMANDS, OPERATIONS, TERMINAL_COMMANDS } from "../src/logic/operations";
import { makeRouter } from "../src/router";

const METHODS = ["get", "put", "post", "delete", "patch"] as const;

interface Document {
  paths: Record<string, Partial<Record<(typeof METHODS)[number], { operationId: string }>>>;
}
interface Contract {
  commands: { command: string; hidden: boolean; operations: string[] }[];
}

const readJson = <T>(path: string) => JSON.parse(readFileSync(new URL(path, import.meta.url), "utf8")) as T;
const contract = readJson<Contract>("../../docs/cynork.json");
const operations = Object.entries(readJson<Document>("../../docs/openapi.json").paths).flatMap(([path, methods]) =>
  METHODS.flatMap((method) => {
    const id = methods[method]?.operationId;
    return id ? [{ id, method: method.toUpperCase(), path }] : [];
  }),
);
const ids = operations.map((operation) => operation.id);

/** A line for the table, to paste. */
function suggest(id: string): string {
  const commands = contract.commands.filter((entry) => entry.operations.includes(id)).map((entry) => entry.command);
  return `${id}: { place: "/", cynork: ${JSON.stringify(commands)} },`;
}

/** Operations that no page needs to call, and why. */
const NOT_NEEDED: Record<string, string> = {};

/** Operations whose page does not offer them yet. Only ever delete lines here; the goal is an empty list. */
const NOT_OFFERED_YET: readonly string[] = ["bootstrap"];

describe("operations", () => {
  it("has a place or a written reason for each operation of the interface, and no more", () => {
    expect(ids.filter((id) => !(id in OPERATIONS)).map(suggest)).toEqual([]);
    expect(Object.keys(OPERATIONS).filter((id) => !ids.includes(id))).toEqual([]);
  });

  it("names only places that are routes", () => {
    const routes = Object.keys(makeRouter().routesByPath);
    const places = Object.entries(OPERATIONS).flatMap(([id, entry]) => ("place" in entry ? [[id, entry.place]] : []));
    expect(places.filter(([, place]) => !routes.includes(place ?? ""))).toEqual([]);
  });

  it("writes each reason as a sentence", () => {
    const reasons = [
      ...Object.values(OPERATIONS).flatMap((entry) => ("reason" in entry ? [entry.reason] : [])),
      ...Object.values(TERMINAL_COMMANDS),
      ...Object.values(NOT_NEEDED),
    ];
    expect(reasons.filter((reason) => !/^[A-Z].{15,}\.$/.test(reason))).toEqual([]);
  });

  it("finds a place by each command of cynork, once, or says why there is none", () => {
    const meant = contract.commands.filter((entry) => !entry.hidden).map((entry) => entry.command);
    const named = [...OPERATION_COMMANDS.map((entry) => entry.cynork), ...Object.keys(TERMINAL_COMMANDS)];
    expect(named.toSorted()).toEqual(meant.toSorted());
  });

  it("names commands that do the operation", () => {
    const wrong = Object.entries(OPERATIONS).flatMap(([id, entry]) =>
      "place" in entry
        ? entry.cynork.filter(
            (name) => !contract.commands.find((command) => command.command === name)?.operations.includes(id),
          )
        : [],
    );
    expect(wrong).toEqual([]);
  });

  it("is called by a page wherever it has a place", () => {
    const folder = new URL("../src/", import.meta.url);
    const source = readdirSync(folder, { recursive: true, encoding: "utf8" })
      .filter((file) => /\.tsx?$/.test(file) && !file.endsWith(".gen.ts"))
      .map((file) => readFileSync(new URL(file, folder), "utf8"))
      .join("\n");
    // The path in quotes after the method, or an address that a link or `fetch` is made of.
    const isCalled = ({ method, path }: { method: string; path: string }) => {
      const literal = path.replaceAll(/[{}/.]/g, "\\$&");
      const address = path.replaceAll(/[/.]/g, "\\$&").replaceAll(/\{\w+\}/g, "\\$\\{[^}]+\\}");
      return (
        new RegExp(`\\.${method}\\(\\s*"${literal}"`).test(source) ||
        (method === "GET" && new RegExp(`(?:(?:fetch|send)\\(|href=\\{)["\`]${address}["\`?]`).test(source))
      );
    };
    const uncalled = operations.filter(({ id }) => "place" in (OPERATIONS[id] ?? {})).filter((it) => !isCalled(it));
    const excused = [...Object.keys(NOT_NEEDED), ...NOT_OFFERED_YET];
    expect(uncalled.map(({ id }) => id).filter((id) => !excused.includes(id))).toEqual([]);
    // What is offered by now is deleted from the lists.
    expect(excused.filter((id) => !uncalled.some((it) => it.id === id))).toEqual([]);
  });

  it("opens the page of the task or project at hand, and otherwise the list", () => {
    const evidence = { place: "/tasks/$task", tab: "evidence" } as const;
    expect(addressOf(evidence, { task: "tsk_1" })).toBe("/tasks/tsk_1?tab=evidence");
    expect(addressOf(evidence, { project: "prj_1" })).toBe("/tasks");
    expect(addressOf({ place: "/projects/$project", tab: undefined }, { project: "prj_1" })).toBe("/projects/prj_1");
    expect(addressOf({ place: "/projects/$project", tab: undefined }, {})).toBe("/projects");
    expect(addressOf({ place: "/projects/$project", tab: "secrets" }, { project: "prj_1" })).toBe(
      "/projects/prj_1?tab=secrets",
    );
    expect(addressOf({ place: "/models", tab: "providers" }, {})).toBe("/models?tab=providers");
    expect(addressOf({ place: "/tools", tab: undefined }, { task: "tsk_1" })).toBe("/tools");
  });
});
