import { describe, expect, it } from "vitest";
import { staleKeys } from "../src/events/invalidate";
import {
  canCancel,
  describeAuthor,
  describeOrigin,
  describeProgress,
  formatScore,
  standingOfIngest,
} from "../src/logic/memory";
import {
  changedRows,
  describeSpec,
  EMPTY_SPEC,
  formatSpec,
  fromLines,
  fromRules,
  nameProblem,
  parseSpec,
  toLines,
  toRules,
} from "../src/logic/profile";
import { COMMON, describeOwner, folderProblem, pathInFolder } from "../src/logic/skill";

describe("a profile", () => {
  const spec = {
    description: "Writes the documentation",
    tools: ["memory.*", "web.fetch"],
    network: [
      { domain: "docs.rs", methods: ["GET"] },
      { domain: "*", methods: ["GET", "HEAD"] },
    ],
    variables: ["*"],
    paths: { read: ["**"], write: ["docs/**"] },
    models: [],
    memory: "read" as const,
    sandbox: { memory_mib: 2048, cpu_percent: 150 },
    budget_micros: 2_000_000,
  };

  it("is shown row by row, and what it does not name is said to be missing", () => {
    expect(Object.fromEntries(describeSpec(spec))).toEqual({
      Tools: "memory.*, web.fetch",
      Network: "docs.rs GET, every host GET HEAD",
      Variables: "all",
      Reads: "every file",
      Changes: "docs/**",
      Models: "none",
      Memory: "search",
      Sandbox: expect.stringMatching(/^at most .*1\.5 CPU$/),
      Budget: expect.stringContaining("2.00"),
    });
    expect(Object.fromEntries(describeSpec({}))).toMatchObject({ Tools: "none", Network: "none", Memory: "none" });
  });

  it("is typed in lines, and a host without methods may be read", () => {
    expect(fromLines(toLines(spec.tools))).toEqual(spec.tools);
    expect(fromRules(toRules(spec.network))).toEqual(spec.network);
    expect(fromRules("  Docs.RS get\n\nexample.org")).toEqual([
      { domain: "docs.rs", methods: ["GET"] },
      { domain: "example.org", methods: ["GET", "HEAD"] },
    ]);
  });

  it("is read as JSON, or it is said what is wrong", () => {
    expect(parseSpec(formatSpec(EMPTY_SPEC))).toEqual({ spec: EMPTY_SPEC, error: null });
    expect(parseSpec("[]").error).toBe("A profile is an object");
    expect(parseSpec("{").error).toMatch(/^Not JSON: /);
  });

  it("has a history that names what changed", () => {
    expect(changedRows(spec, { ...spec, tools: ["*"], description: "Other" })).toEqual(["Tools", "Description"]);
    expect(changedRows(spec, spec)).toEqual([]);
  });

  it("has a name that nobody else has", () => {
    expect(nameProblem("docs-writer", ["default"])).toBeNull();
    expect(nameProblem("default", ["default"])).toBe("There is one of this name");
    for (const name of ["", "Docs", "-a", "a--b", "a_b", "x".repeat(64)]) expect(nameProblem(name, [])).not.toBeNull();
  });
});

describe("a record of memory", () => {
  it("says where it comes from and who wrote it", () => {
    expect(describeOrigin({ source: "files:docs", path: "a/b.md" })).toBe("files:docs: a/b.md");
    expect(describeOrigin({ source: "repository", path: "a.rs", commit: "0123456789abcdef" })).toBe(
      "repository: a.rs at 0123456789",
    );
    expect(describeOrigin({ source: "note" })).toBe("note");
    expect(describeAuthor({ author: "agent", role: "project_manager" })).toBe("the project manager");
    expect(describeAuthor({ author: "system" })).toBe("CyNode");
    expect(formatScore(0.8765)).toBe("0.88");
  });

  it("is read again when memory changes", () => {
    const event = { kind: "memory.accepted", project_id: "prj_1", task_id: null };
    expect(staleKeys(event)).toContainEqual(["memories"]);
    expect(staleKeys({ ...event, kind: "profile.updated" })).toContainEqual(["profiles"]);
  });
});

describe("an ingest", () => {
  it("says how far it is, and can be stopped until it ends", () => {
    const progress = { files: 3, read: 1, unchanged: 2, skipped: 0, removed: 0, records: 7 };
    expect(describeProgress(progress)).toBe("3 files, 1 read, 2 unchanged, 7 records");
    expect(canCancel({ state: "running" })).toBe(true);
    expect(canCancel({ state: "done" })).toBe(false);
    expect(standingOfIngest({ state: "failed" })).toBe("failed");
  });
});

describe("a skill", () => {
  it("belongs to somebody, and comes as a folder with a SKILL.md", () => {
    expect(describeOwner(undefined)).toBe("the project");
    expect(describeOwner("person")).toBe("one person");
    expect(pathInFolder({ name: "SKILL.md", webkitRelativePath: "release/SKILL.md" })).toBe("SKILL.md");
    expect(pathInFolder({ name: "a.sh", webkitRelativePath: "release/scripts/a.sh" })).toBe("scripts/a.sh");
    expect(folderProblem([])).toBe("Choose the folder first");
    expect(folderProblem([{ path: "a.md", text: "" }])).toBe("The folder has no SKILL.md");
    expect(folderProblem([{ path: "SKILL.md", text: "" }])).toBeNull();
    expect(COMMON).toBe("common");
  });
});
