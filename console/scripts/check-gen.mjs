// Fails when src/api/schema.gen.ts is not what `npm run gen` makes of docs/openapi.json.
import { execFileSync } from "node:child_process";
import { mkdtempSync, readFileSync, rmSync } from "node:fs";
import { tmpdir } from "node:os";
import { join } from "node:path";

const directory = mkdtempSync(join(tmpdir(), "console-gen-"));
try {
  const fresh = join(directory, "schema.ts");
  execFileSync("npx", ["--no-install", "openapi-typescript", "../docs/openapi.json", "--output", fresh], {
    stdio: ["ignore", "ignore", "inherit"],
  });
  if (readFileSync(fresh, "utf8") !== readFileSync("src/api/schema.gen.ts", "utf8")) {
    console.error("src/api/schema.gen.ts differs from docs/openapi.json: run `npm run gen` and commit the file");
    process.exitCode = 1;
  }
} finally {
  rmSync(directory, { recursive: true });
}
