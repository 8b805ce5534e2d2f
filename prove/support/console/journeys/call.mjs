import { check, until } from "../harness.mjs";
import { askForCall } from "../calls.mjs";

export const promise = "a call is approved after it was seen whole, another is denied; hidden characters are written out";

export async function run({ world, makePerson, variant }) {
  const person = await makePerson();
  for (const decision of ["approved", "denied"]) {
    const approval = await askForCall(world, `pay\u202e7${"\n".repeat(90)}the end`);
    await person.open(`/?item=${approval.approval_id}`);
    await person.sees("https://billing.example.org/v1/refunds");
    await person.sees("RLO");
    if (decision === "approved") {
      const button = person.button("Approve call");
      check(await button.getAttribute("aria-disabled"), "the call can be approved before its end was seen");
      if (person.usesKeyboard) {
        await person.reach(button);
        await person.page.keyboard.press("End");
      } else {
        await person.page.getByText("RLO").first().hover();
        await person.page.mouse.wheel(0, 4000);
      }
      await until("the button", async () => !(await button.getAttribute("aria-disabled")));
    }
    const key = decision === "approved" ? "a" : "d";
    if (variant.input === "keyboard") await person.page.keyboard.press(key);
    else await person.button(decision === "approved" ? "Approve call" : "Deny call").click();
    const decided = await until("the decision", async () => {
      const now = await world.api.ask("GET", `/v1/approvals/${approval.approval_id}`);
      return now.state === "asked" ? null : now;
    });
    check(decided.state.startsWith(decision === "approved" ? "approved" : "refused"), `the call is ${decided.state}`);
    await person.sees(decision === "approved" ? "You approved this call" : "You denied this call");
  }
}
