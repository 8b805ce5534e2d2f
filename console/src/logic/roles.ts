/** Roles in words. */

import type { Schema } from "../api/client";

export type Role = Schema["Role"];
export type RoleChange = Schema["RoleChange"];

export const ROLE_CHANGES: readonly { value: RoleChange; name: string }[] = [
  { value: "none", name: "None" },
  { value: "viewer", name: "Viewer: sees everything" },
  { value: "operator", name: "Operator: starts and steers work" },
  { value: "admin", name: "Admin: changes everything" },
];

/** A password is at least so long. */
export const MIN_PASSWORD_CHARS = 12;

export interface NewUser {
  handle: string;
  name: string;
  email: string;
  password: string;
  role: RoleChange;
}

/** Returns what to send, or what is missing. */
export function toUserRequest(draft: NewUser): { body: Schema["CreateUser"] } | { missing: string } {
  const handle = draft.handle.trim();
  if (handle === "") return { missing: "Write a handle" };
  if (draft.password.length < MIN_PASSWORD_CHARS) {
    return { missing: `Write a password of at least ${MIN_PASSWORD_CHARS} characters` };
  }
  const email = draft.email.trim();
  return {
    body: {
      handle,
      display_name: draft.name.trim() || handle,
      password: draft.password,
      ...(email === "" ? {} : { email }),
      ...(draft.role === "none" ? {} : { role: draft.role }),
    },
  };
}
