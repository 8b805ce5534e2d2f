export const promise = "the palette finds an operation by the name that cynork gives it, and opens its page";

export async function run({ makePerson }) {
  const person = await makePerson();
  await person.open("/");
  for (const [words, place] of [
    ["tool disable", "/tools"],
    ["node drain", "/nodes"],
    ["budget set", "/spend"],
  ]) {
    if (person.usesKeyboard) await person.page.keyboard.press("Control+k");
    else await person.button("Find anything").click();
    await person.page.getByRole("searchbox").waitFor();
    await person.page.keyboard.insertText(words);
    await person.page.getByRole("menuitem", { name: words }).waitFor();
    if (person.usesKeyboard) await person.page.keyboard.press("Enter");
    else await person.page.getByRole("menuitem", { name: words }).click();
    await person.page.waitForURL((url) => url.pathname === place);
    await person.settle();
  }
}
