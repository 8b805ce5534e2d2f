import { Link } from "@tanstack/react-router";
import { Key, Page } from "../ui/basic";

export function NotFound() {
  return (
    <Page>
      <div className="grid gap-3 py-10">
        <h1 className="text-lead">There is no page at this address.</h1>
        <p className="text-muted">
          <Link to="/" className="text-accent underline">
            Go to the inbox
          </Link>{" "}
          <span className="max-small:hidden">
            or press <Key name="Ctrl K" /> to find a task or a project
          </span>
          <span className="small:hidden">or search for a task or a project above</span>.
        </p>
      </div>
    </Page>
  );
}
