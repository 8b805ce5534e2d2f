import { describe, expect, it } from "vitest";
import { describeRecipients, describeVerification, judgeBackup, judgeProcess } from "../src/logic/processes";

describe("programs", () => {
  it("fails for one that does not fit the server while it is there", () => {
    expect(judgeProcess({ present: true, skewed: false })).toBe("ok");
    expect(judgeProcess({ present: true, skewed: true })).toBe("fail");
    expect(judgeProcess({ present: false, skewed: true })).toBe("warn");
  });
});

describe("backups", () => {
  const good = { verified_at: "2026-11-18T12:00:00Z", problems: [] };

  it("does not call one good that was never restored", () => {
    expect(judgeBackup(good)).toBe("ok");
    expect(judgeBackup({ ...good, verified_at: null })).toBe("warn");
    expect(judgeBackup({ ...good, problems: ["the audit log: x", "y"] })).toBe("fail");
  });

  it("says what the verification found", () => {
    expect(describeVerification(good)).toBe("Restored for a trial, good");
    expect(describeVerification({ ...good, verified_at: null })).toBe("Never restored for a trial");
    expect(describeVerification({ ...good, problems: ["x", "y"] })).toBe("2 problems, the first: x");
  });

  it("says who can open one", () => {
    expect(describeRecipients({ recipients: [] })).toBe("opened by a passphrase");
    expect(describeRecipients({ recipients: ["age1a", "age1b"] })).toBe("opened by age1a, age1b");
  });
});
