/** Changed files as a tree, in rows. */

import type { Schema } from "../api/client";

export type ChangedFile = Schema["ChangedFile"];

export type TreeRow =
  | { kind: "directory"; depth: number; name: string; path: string }
  | { kind: "file"; depth: number; name: string; file: ChangedFile };

interface Directory {
  name: string;
  directories: Map<string, Directory>;
  files: ChangedFile[];
}

/** Returns the rows of the tree. A directory that holds nothing but one directory is one row with it. */
export function toTreeRows(files: readonly ChangedFile[]): TreeRow[] {
  const root: Directory = { name: "", directories: new Map(), files: [] };
  for (const file of files) {
    let place = root;
    for (const name of file.path.split("/").slice(0, -1)) {
      const known = place.directories.get(name);
      const next = known ?? { name, directories: new Map<string, Directory>(), files: [] };
      if (!known) place.directories.set(name, next);
      place = next;
    }
    place.files.push(file);
  }
  const rows: TreeRow[] = [];
  const compare = (a: string, b: string) => (a < b ? -1 : a > b ? 1 : 0);
  const add = (directory: Directory, depth: number, path: string) => {
    for (let child of [...directory.directories.values()].sort((a, b) => compare(a.name, b.name))) {
      let name = child.name;
      for (;;) {
        const only =
          child.directories.size === 1 && child.files.length === 0 ? [...child.directories.values()][0] : null;
        if (!only) break;
        child = only;
        name = `${name}/${child.name}`;
      }
      const own = path === "" ? name : `${path}/${name}`;
      rows.push({ kind: "directory", depth, name, path: own });
      add(child, depth + 1, own);
    }
    for (const file of directory.files.toSorted((a, b) => compare(a.path, b.path))) {
      rows.push({ kind: "file", depth, name: file.path.slice(file.path.lastIndexOf("/") + 1), file });
    }
  };
  add(root, 0, "");
  return rows;
}

/** Files whose changes a person rarely reads. They are shown when they are asked for. */
const LOCK_FILES = /(^|\/)(package-lock\.json|Cargo\.lock|yarn\.lock|pnpm-lock\.yaml|poetry\.lock|uv\.lock|go\.sum)$/;

/** Returns whether a file is written by a program that resolves packages. */
export function isLockFile(path: string): boolean {
  return LOCK_FILES.test(path);
}
