/** Which images may sandboxes use? */

import { useMutation, useQuery, useQueryClient } from "@tanstack/react-query";
import { useState } from "react";
import { Form } from "react-aria-components";
import { api, unwrap } from "../api/client";
import { meQuery } from "../api/queries";
import { imagesQuery } from "../api/queries-tools";
import { formatCount } from "../logic/format";
import { Action, Command, Empty, Foreign, Loaded, Page, PageHead, ProblemNote, SectionHead } from "../ui/basic";
import { usePageCommand } from "../ui/copy";
import { Field } from "../ui/fields";
import { useKeys } from "../ui/keys";
import { ToolsNav } from "../ui/tools-nav";
import { UndoBar } from "../ui/undo";

const IMAGE = /^[A-Za-z0-9._\-/:@]{1,300}$/;

export function ImagesPage() {
  usePageCommand("cynork image list", "/v1/allowed-images");
  const client = useQueryClient();
  const me = useQuery(meQuery);
  const images = useQuery(imagesQuery);
  const [image, setImage] = useState("");
  const [removed, setRemoved] = useState<string | null>(null);
  const renew = () => void client.invalidateQueries({ queryKey: ["images"] });
  const allow = useMutation({
    mutationFn: (name: string) => unwrap(api.POST("/v1/allowed-images", { body: { image: name } })),
    onSuccess: () => {
      setImage("");
      setRemoved(null);
    },
    onSettled: renew,
  });
  const disallow = useMutation({
    mutationFn: (name: string) => unwrap(api.DELETE("/v1/allowed-images", { params: { query: { image: name } } })),
    onSuccess: (_, name) => setRemoved(name),
    onSettled: renew,
  });
  const denied =
    me.data && me.data.installation_role !== "admin" ? "Only an admin of the installation decides this" : null;
  const busy = denied ?? (allow.isPending || disallow.isPending ? "It is being sent" : null);
  const name = image.trim();
  const reason = busy ?? (IMAGE.test(name) ? null : "Type an image with its tag or digest");
  useKeys({ "/": () => document.querySelector<HTMLElement>("#allow input")?.focus() });
  return (
    <Page wide>
      <ToolsNav />
      <PageHead title="Images" lead="Images that sandboxes of coding agents may start from, by their exact name." />
      <div className="grid gap-6">
        <Form
          id="allow"
          className="flex max-w-[640px] flex-wrap items-end gap-2"
          onSubmit={(event) => {
            event.preventDefault();
            if (!reason) allow.mutate(name);
          }}
        >
          <div className="min-w-0 flex-1 basis-60">
            <Field
              label="Image"
              value={image}
              onChange={setImage}
              placeholder="registry.example.org/build/rust:1.90"
              mono
            />
          </div>
          <Action type="submit" tone="primary" reason={reason}>
            Allow image
          </Action>
        </Form>
        {(allow.error ?? disallow.error) && <ProblemNote error={allow.error ?? disallow.error} />}
        <Loaded query={images}>
          {(data) =>
            data.items.length === 0 ? (
              <Empty title="No image is allowed.">
                <p className="text-muted">
                  Sandboxes use what the node itself has. Allow an image above, or on the command line:
                </p>
                <Command line="cynork image allow registry.example.org/build/rust:1.90" />
              </Empty>
            ) : (
              <section className="grid">
                <SectionHead aside={formatCount(data.items.length, "image")}>Allowed</SectionHead>
                <ul aria-label="Allowed images">
                  {data.items.map((entry) => (
                    <li key={entry} className="flex items-center justify-between gap-3 border-line border-b py-1">
                      <code className="min-w-0 font-mono text-code">
                        <Foreign text={entry} />
                      </code>
                      <Action
                        tone="quiet"
                        aria-label={`Disallow ${entry}`}
                        onPress={() => disallow.mutate(entry)}
                        reason={busy}
                      >
                        Disallow
                      </Action>
                    </li>
                  ))}
                </ul>
              </section>
            )
          }
        </Loaded>
      </div>
      {removed !== null && (
        <UndoBar onClose={() => setRemoved(null)} onUndo={() => allow.mutate(removed)} busy={busy}>
          <p>
            <code className="font-mono text-code">
              <Foreign text={removed} />
            </code>{" "}
            is not allowed for new sandboxes any more. Those that run go on.
          </p>
        </UndoBar>
      )}
    </Page>
  );
}
