/** Certificates of the installation, in words. */

import type { Schema } from "../api/client";
import type { DoctorState } from "../api/types";
import { formatCount } from "./format";

export type Certificate = Schema["UnpagedList_CertificateView"]["items"][number];

export const CERTIFICATE_USES: Record<Certificate["used_for"], string> = {
  user_port: "User-facing port",
  internal_port: "Internal port",
  authority: "Certificate authority",
  node: "Node",
  service: "Service",
};

export const CERTIFICATE_ORIGINS: Record<Certificate["origin"], string> = {
  files: "from files",
  acme: "by ACME",
  own: "of the installation's own authority",
};

/** Returns how a certificate stands: expired ones fail, others with a problem are to be looked at. */
export function judgeCertificate(certificate: Certificate): DoctorState {
  if (certificate.problems.length === 0) return "ok";
  return (certificate.days_left ?? -1) < 0 ? "fail" : "warn";
}

/** Says how long a certificate is valid. */
export function describeExpiry(certificate: Certificate): string {
  const days = certificate.days_left;
  if (days === undefined || days === null) return "not there yet";
  return days < 0 ? `expired ${formatCount(-days, "day")} ago` : `${formatCount(days, "day")} left`;
}

/** Returns the certificates, first those that somebody has to look at; others keep their order. */
export function orderCertificates(certificates: readonly Certificate[]): Certificate[] {
  const ranks: Record<DoctorState, number> = { fail: 0, warn: 1, unknown: 2, ok: 3 };
  return certificates.toSorted((a, b) => ranks[judgeCertificate(a)] - ranks[judgeCertificate(b)]);
}
