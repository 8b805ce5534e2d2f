import { Link } from "@tanstack/react-router";
import { Empty, Page } from "../ui/basic";

export function NotFound() {
  return (
    <Page>
      <Empty title="There is no page at this address.">
        <p className="text-muted">
          <Link to="/" className="text-accent underline">
            Go to the inbox
          </Link>{" "}
          or press Ctrl K to find a task or project.
        </p>
      </Empty>
    </Page>
  );
}
