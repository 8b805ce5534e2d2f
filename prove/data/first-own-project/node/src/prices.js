// Prices as people write them.

/** The cents of a price, with commas between thousands. */
export function parse(text) {
  const [whole, cents = ""] = text.replaceAll(",", "").split(".");
  return Number(whole) * 100 + Number(cents.padEnd(2, "0").slice(0, 2));
}
