/** The certificates of the installation, for its admins. */

import { useQuery } from "@tanstack/react-query";
import { certificatesQuery } from "../api/queries-admin";
import {
  CERTIFICATE_ORIGINS,
  CERTIFICATE_USES,
  type Certificate,
  describeExpiry,
  judgeCertificate,
  orderCertificates,
} from "../logic/certificates";
import { CHECK_WORDS } from "../logic/doctor";
import { Command, cx, Foreign, Loaded, SectionHead } from "./basic";

export function Certificates() {
  const certificates = useQuery(certificatesQuery);
  return (
    <section aria-labelledby="certificates" className="grid gap-2">
      <SectionHead>
        <span id="certificates">Certificates</span>
      </SectionHead>
      <Loaded query={certificates} lines={3}>
        {(data) =>
          data.items.length === 0 ? (
            <p className="text-muted">Neither port speaks TLS: only this machine or a trusted proxy reaches them.</p>
          ) : (
            <ul aria-label="Certificates">
              {orderCertificates(data.items).map((certificate) => (
                <CertificateRow key={`${certificate.used_for} ${certificate.serial ?? ""}`} certificate={certificate} />
              ))}
            </ul>
          )
        }
      </Loaded>
      <Command line="cynork certificate list" />
    </section>
  );
}

function CertificateRow({ certificate }: { certificate: Certificate }) {
  const words = CHECK_WORDS[judgeCertificate(certificate)];
  return (
    <li className="grid grid-cols-1 gap-1 border-line border-b py-2 small:grid-cols-[200px_1fr_auto]">
      <div className="flex items-baseline gap-2">
        <span className={cx("inline-flex items-baseline gap-1.5 whitespace-nowrap", words.tone)}>
          <span aria-hidden="true" className="inline-block w-[1.1em] text-center font-mono">
            {words.sign}
          </span>
          <span className="sr-only">{words.word}</span>
        </span>
        <span className="font-medium">{CERTIFICATE_USES[certificate.used_for]}</span>
      </div>
      <div className="grid min-w-0 gap-1">
        <p className="break-words">
          <Foreign text={certificate.name || "no name"} />{" "}
          <span className="text-muted">{CERTIFICATE_ORIGINS[certificate.origin]}</span>
        </p>
        {certificate.host_names.length > 0 && (
          <p className="break-words text-meta text-muted">
            <Foreign text={certificate.host_names.join(", ")} />
          </p>
        )}
        {certificate.problems.map((problem) => (
          <p key={problem} className={words.tone}>
            <Foreign text={problem} />
          </p>
        ))}
        {certificate.used_for === "authority" && certificate.pin && (
          <p className="break-all font-mono text-meta text-muted">{certificate.pin}</p>
        )}
      </div>
      <span className="whitespace-nowrap tabular-nums">{describeExpiry(certificate)}</span>
    </li>
  );
}
