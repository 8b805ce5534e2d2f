/** What the server says about approvals and accepted tools that is not in the generated types yet; delete it when it is. */

import type { Client } from "openapi-fetch";
import { api, type Schema } from "./client";

export type Approval = Schema["ApprovalView"] & {
  /** Who approved or denied it. */
  decided_by?: string | null;
  decided_at?: string | null;
};

export type ServerTool = Schema["ServerToolView"] & {
  /** Who accepted a definition of it last. */
  accepted_by?: string | null;
  accepted_at?: string | null;
};

interface PendingToolsPaths {
  "/v1/approvals": {
    get: {
      parameters: { query?: { decided?: boolean }; header?: never; path?: never; cookie?: never };
      requestBody?: never;
      responses: {
        200: { headers: Record<string, unknown>; content: { "application/json": { items: Approval[] } } };
      };
    };
  };
}

export const pendingApi = api as unknown as Client<PendingToolsPaths>;
