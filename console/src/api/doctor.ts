/** The checks of an installation. */

import { api, type Schema, unwrap } from "./client";
import { Problem } from "./problem";
import type { DoctorCheck, DoctorReport, DoctorState } from "./types";

/** Reads the doctor; what everybody may see of it, where it is refused or the server has none. */
export async function readDoctor(signal: AbortSignal): Promise<DoctorReport & { whole: boolean }> {
  try {
    return { ...(await unwrap(api.GET("/v1/doctor", { signal }))), whole: true };
  } catch (error) {
    if (!(error instanceof Problem) || (error.status !== 403 && error.status !== 404)) throw error;
  }
  const readiness = await unwrap(api.GET("/v1/readiness", { signal }));
  const checks = readiness.checks.map(toDoctorCheck);
  return { state: worstState(checks), checks, whole: false };
}

const STATES: Record<Schema["ReadinessStatus"], DoctorState> = { ok: "ok", warning: "warn", failed: "fail" };

export function toDoctorCheck(check: Schema["ReadinessCheck"]): DoctorCheck {
  return {
    name: check.name,
    state: STATES[check.status],
    detail: check.detail,
    ...(check.fix ? { fix: check.fix } : {}),
    commands: check.commands ?? [],
    blocks_work: check.blocks_work ?? false,
  };
}

function worstState(checks: readonly DoctorCheck[]): DoctorState {
  return (["fail", "warn"] as const).find((state) => checks.some((check) => check.state === state)) ?? "ok";
}
