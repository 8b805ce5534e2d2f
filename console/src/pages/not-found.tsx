import { Link } from "@tanstack/react-router";
import { Page } from "../ui/basic";

export function NotFound() {
  return (
    <Page>
      <div className="grid gap-3 py-10">
        <h1 className="text-lead">There is no page at this address.</h1>
        <p className="text-muted">
          <Link to="/" className="text-accent underline">
            Go to the inbox
          </Link>{" "}
          or press Ctrl K to find a task or project.
        </p>
      </div>
    </Page>
  );
}
