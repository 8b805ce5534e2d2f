import { describe, expect, it } from "vitest";
import {
  describeDevice,
  describeMethod,
  describeRefusal,
  missingInDraft,
  NEW_PROVIDER,
  readCode,
  returnPath,
  toRequest,
} from "../src/logic/sign-on";

describe("single sign-on", () => {
  it("says why a login was refused, and never shows text of the address", () => {
    expect(describeRefusal(undefined)).toBeNull();
    expect(describeRefusal("no_account")).toBe("You have no account here. Ask an admin for one.");
    expect(describeRefusal("<b>pay here</b>")).toBe(describeRefusal("failed"));
    expect(describeRefusal("constructor")).toBe(describeRefusal("failed"));
  });

  it("returns to the page that was open", () => {
    expect(returnPath("/tasks/tsk_1", "?tab=plan")).toBe("/tasks/tsk_1?tab=plan");
    expect(returnPath("/login", "?sso=stale")).toBe("/");
  });

  it("names a device by its browser and system, or as it calls itself", () => {
    const firefox = "Mozilla/5.0 (X11; Linux x86_64; rv:130.0) Gecko/20100101 Firefox/130.0";
    const edge = "Mozilla/5.0 (Windows NT 10.0) AppleWebKit/537.36 Chrome/130.0 Safari/537.36 Edg/130.0";
    expect(describeDevice(firefox)).toBe("Firefox on Linux");
    expect(describeDevice(edge)).toBe("Edge on Windows");
    expect(describeDevice("cynork on build-3")).toBe("cynork on build-3");
    expect(describeDevice(null)).toBe("Unknown device");
  });

  it("says how a session was started", () => {
    expect(describeMethod({ method: "password", provider: null })).toBe("With a password");
    expect(describeMethod({ method: "provider", provider: "Company" })).toBe("By Company");
    expect(describeMethod({ method: "device", provider: "Company" })).toBe("Confirmed for a device, by Company");
    expect(describeMethod({ method: "break_glass", provider: null })).toBe("With a link made on the host");
    expect(describeMethod({ method: null, provider: null })).toBe("Before this was recorded");
  });

  it("says what a new provider needs, and sends no secret that was not typed", () => {
    expect(missingInDraft(NEW_PROVIDER)).toBe("Write a name of small letters, digits and dashes");
    const draft = {
      ...NEW_PROVIDER,
      name: "company",
      displayName: "Company",
      issuer: "https://id.example.com",
      clientId: "cynode",
    };
    expect(missingInDraft(draft)).toBeNull();
    expect(missingInDraft({ ...draft, issuer: "id.example.com" })).toBe("Write the issuer as an address");
    expect(toRequest({ ...draft, scopes: " openid  profile groups" })).toEqual({
      display_name: "Company",
      issuer: "https://id.example.com",
      client_id: "cynode",
      scopes: ["profile", "groups"],
      groups_claim: "groups",
      create_accounts: true,
      links_directory: false,
      second_factor_contexts: [],
    });
  });

  it("reads a code however it is written", () => {
    expect(readCode("bcdf ghjk")).toEqual({ code: "BCDF-GHJK" });
    expect(readCode("BCDF-GHJ")).toEqual({ reason: "Write the eight letters that the device shows" });
    expect(readCode("BCDF-GHJA")).toEqual({ reason: "A code has eight letters and no vowels" });
  });
});
