/** Is everything there that work needs? */

import { useQuery } from "@tanstack/react-query";
import { RefreshCw } from "lucide-react";
import { doctorQuery } from "../api/queries-chat";
import { CHECK_WORDS, orderChecks } from "../logic/doctor";
import { Backups } from "../ui/backups";
import { Action, Loaded, Page, PageHead } from "../ui/basic";
import { Certificates } from "../ui/certificates";
import { CheckList } from "../ui/checks";
import { usePageCommand } from "../ui/copy";
import { Processes } from "../ui/processes";
import { SettingsNav } from "../ui/settings-nav";

export function DoctorPage() {
  usePageCommand("cynork doctor", "/v1/doctor");
  const doctor = useQuery(doctorQuery);
  return (
    <Page wide>
      <SettingsNav />
      <PageHead title="Doctor" lead={doctor.data ? CHECK_WORDS[doctor.data.state].sentence : undefined}>
        <Action onPress={() => void doctor.refetch()} reason={doctor.isFetching ? "It is being checked" : null}>
          <RefreshCw size={14} aria-hidden="true" /> Check again
        </Action>
      </PageHead>
      <Loaded query={doctor} lines={8}>
        {(data) => (
          <div className="grid gap-4">
            {!data.whole && (
              <p className="text-muted">
                These are the checks that everybody may see. An admin of the installation sees storage, clock, providers
                and processes, too.
              </p>
            )}
            <CheckList checks={orderChecks(data.checks)} />
            {data.whole && <Backups />}
            {data.whole && <Processes />}
            {data.whole && <Certificates />}
          </div>
        )}
      </Loaded>
    </Page>
  );
}
