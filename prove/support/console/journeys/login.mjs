import { check } from "../harness.mjs";

export const promise = "a wrong password is refused with words, a right one opens the inbox; a session that ends loses no input";

export async function run({ world, makePerson }) {
  const person = await makePerson({ anonymous: true });
  await person.open("/tasks/new");
  await person.heading("Log in to CyNode").waitFor();
  await person.fill(person.field("Name"), world.handle);
  await person.fill(person.field("Password"), "wrong");
  await person.press(person.button("Log in"));
  await person.page.getByRole("alert").first().waitFor();
  await person.fill(person.field("Password"), world.password);
  await person.press(person.button("Log in"));
  await person.heading("New task").waitFor();

  const cookies = await person.context.cookies();
  check(cookies.length === 1 && cookies[0].httpOnly && cookies[0].sameSite === "Lax", `cookies: ${JSON.stringify(cookies)}`);
  const stored = await person.page.evaluate(() => JSON.stringify({ ...localStorage, ...sessionStorage }));
  check(!stored.includes(cookies[0].value), "the token is in the reach of scripts");

  await world.setUp();
  await person.open("/tasks/new");
  const words = "Words that were typed before the session ended";
  await person.fill(person.field("What is to be done?"), words);
  await person.fill(person.field("Checks"), "sh tests/names_test.sh");
  await person.context.clearCookies();
  // The next request says that the session has ended: the one for the task, if none that the page makes by itself came before it. By then
  // the question stands over the page, so the button is not waited for as a person would.
  await person.button("Start task").evaluate((button) => button.click());
  await person.heading("Log in again").waitFor();
  await person.fill(person.field("Password"), world.password);
  await person.press(person.button("Log in"));
  await person.heading("Log in again").waitFor({ state: "detached" });
  const kept = await person.field("What is to be done?").inputValue();
  check(kept === words, `after the login the field has ${JSON.stringify(kept)}`);
}
