/** The environment of a project in lines that a person can judge. */

import type { Schema } from "../api/client";

type EnvironmentSpec = Schema["EnvironmentSpec"];

export function describeBase(spec: EnvironmentSpec): string {
  if (spec.base === "host") return "the node's own, read-only";
  if ("image" in spec.base) return `image ${spec.base.image}`;
  return `Debian ${spec.base.debian}`;
}

export interface SpecPart {
  name: string;
  /** `key` is the line as a reason names it, such as `setup: npm ci`. */
  lines: { key: string; text: string }[];
}

/** Returns the parts that say something, in the order of the specification. */
export function listSpec(spec: EnvironmentSpec): SpecPart[] {
  const lines = (prefix: string, texts: readonly string[] | undefined) =>
    (texts ?? []).map((text) => ({ key: `${prefix}: ${text}`, text }));
  const pairs = (values: Record<string, unknown> | undefined) =>
    Object.entries(values ?? {})
      .filter(([, value]) => value !== null && value !== undefined)
      .map(([name, value]) => `${name}=${String(value)}`);
  const parts: SpecPart[] = [
    { name: "Packages", lines: lines("system_packages", spec.system_packages) },
    { name: "Set-up", lines: lines("setup", spec.setup) },
    {
      name: "Checks",
      lines: (spec.checks ?? []).map((check) => ({
        key: `${check.kind}: ${check.command}`,
        text: `${check.command}  (${check.kind})`,
      })),
    },
    {
      name: "Services",
      lines: (spec.services ?? []).map((it) => ({ key: `service: ${it.name}`, text: `${it.name}: ${it.command}` })),
    },
    { name: "Variables", lines: lines("variables", pairs(spec.variables)) },
    { name: "Secrets", lines: lines("secrets", pairs(spec.secrets)) },
    { name: "Kept between jobs", lines: lines("caches", spec.caches) },
    { name: "Set up again after", lines: lines("lock_files", spec.lock_files) },
    { name: "Registries", lines: lines("package_sources", spec.package_sources) },
    {
      name: "During work",
      lines: spec.packages_during_work
        ? [{ key: "packages_during_work: true", text: "agents and checks may fetch packages" }]
        : [],
    },
    { name: "Limits", lines: lines("limits", pairs(spec.limits)) },
  ];
  return parts.filter((part) => part.lines.length > 0);
}
