// Prints what a browser loads for the shell and for each page on top of it, in KB after gzip, and fails above the limits.
import { readdirSync, readFileSync, statSync } from "node:fs";
import { join } from "node:path";
import { gzipSync } from "node:zlib";

const SHELL_LIMIT_KB = 220;
const TASK_PAGE_LIMIT_KB = 180;
const PAGE_LIMIT_KB = 80;
const EMBEDDED_LIMIT_KB = 3072;

const manifest = JSON.parse(readFileSync("dist/manifest.json", "utf8"));
const gzipSize = (file) => gzipSync(readFileSync(join("dist", file)), { level: 9 }).length / 1024;

/** Files of a chunk and of everything that it imports statically. */
function filesOf(key, found = new Set()) {
  const chunk = manifest[key];
  if (found.has(chunk.file)) return found;
  found.add(chunk.file);
  for (const css of chunk.css ?? []) found.add(css);
  for (const dependency of chunk.imports ?? []) filesOf(dependency, found);
  return found;
}

const sum = (files) => [...files].reduce((total, file) => total + gzipSize(file), 0);
const shell = filesOf("index.html");
shell.add("index.html");
let tooLarge = false;

function report(name, size, limit) {
  const mark = size > limit ? "  ! above the limit" : "";
  tooLarge ||= size > limit;
  console.log(`${name.padEnd(28)} ${size.toFixed(1).padStart(8)} KB gz   limit ${limit}${mark}`);
}

report("shell", sum(shell), SHELL_LIMIT_KB);
for (const key of Object.keys(manifest)
  .filter((key) => manifest[key].isDynamicEntry)
  .sort()) {
  const added = [...filesOf(key)].filter((file) => !shell.has(file));
  const name = key.replace("src/pages/", "+ ").replace(/\.tsx$/, "");
  report(name, sum(added), key.includes("/task/") ? TASK_PAGE_LIMIT_KB : PAGE_LIMIT_KB);
}
const files = readdirSync("dist", { recursive: true, withFileTypes: true }).filter((entry) => entry.isFile());
const bytes = files.reduce((total, entry) => total + statSync(join(entry.parentPath, entry.name)).size, 0);
report("embedded, all forms (raw)", bytes / 1024, EMBEDDED_LIMIT_KB);
process.exitCode = tooLarge ? 1 : 0;
