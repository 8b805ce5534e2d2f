import { until } from "../harness.mjs";

export const promise = "a person is made and can log in; disabled, their session ends and they cannot log in";

export async function run({ world, browser, makePerson, variant }) {
  const handle = `ada-${Date.now().toString(36)}`;
  const password = "another horse battery staple";
  const person = await makePerson();
  await person.open("/settings/people");
  await person.press(person.button(["New person", "Add person", "New user", "Create user"]).or(person.link(["New person", "Add person"])));
  await person.fill(person.field(["Handle", "Name to log in"]), handle);
  await person.fill(person.field(["Display name", "Full name", "Name"]).last(), "Ada");
  await person.fill(person.field("Password"), password);
  await person.press(person.button(["Save person", "Add person", "Create person", "Create user", "Make account"]).last());
  const find = async () => (await world.api.ask("GET", "/v1/users?limit=100")).items.find((it) => it.handle === handle);
  const user = await until("the person", find);
  const ada = await browser.person(variant, { anonymous: true });
  try {
    await ada.logIn(handle, password);
    await person.open(`/settings/people?user=${user.id}`);
    await person.press(person.button(["Disable person", "Disable account", "Disable"]));
    const confirm = person.button(["Disable person", "Disable account", "Disable"], person.dialog());
    if (await confirm.isVisible()) await person.press(confirm);
    await until("the disabled account", async () => (await find()).disabled === true || (await find()).active === false || (await find()).disabled_at);
    await ada.page.reload();
    await ada.heading(/^Log in/).waitFor();
  } finally {
    await ada.close();
  }
}
