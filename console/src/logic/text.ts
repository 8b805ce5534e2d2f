/** Foreign text made harmless and whole: what a reader would not see is written out. */

const NAMES: Record<number, string> = {
  0: "NUL",
  7: "BEL",
  8: "BS",
  13: "CR",
  27: "ESC",
  127: "DEL",
  160: "NBSP",
  173: "SHY",
  8203: "ZWSP",
  8204: "ZWNJ",
  8205: "ZWJ",
  8206: "LRM",
  8207: "RLM",
  8234: "LRE",
  8235: "RLE",
  8236: "PDF",
  8237: "LRO",
  8238: "RLO",
  8288: "WJ",
  8294: "LRI",
  8295: "RLI",
  8296: "FSI",
  8297: "PDI",
  65279: "BOM",
};

/**
 * Control, format and ignorable characters and odd spaces, except line feed and tab. The two that join and colour pictographs are
 * visible by what they do there.
 */
const HIDDEN =
  /(?![\n\t])(?!(?<=\p{Extended_Pictographic})\ufe0f)(?!(?<=\p{Extended_Pictographic}\ufe0f?)\u200d(?=\p{Extended_Pictographic}))(?:\p{Cc}|\p{Cf}|\p{Cs}|\p{Default_Ignorable_Code_Point}|\p{Zl}|\p{Zp}|\u00a0|\u2007|\u202f|\u205f)/gu;

export interface TextPiece {
  text: string;
  hidden: boolean;
}

/** Splits a text into what is visible and the names of what is not. */
export function splitHidden(text: string): TextPiece[] {
  const pieces: TextPiece[] = [];
  let end = 0;
  for (const match of text.matchAll(HIDDEN)) {
    if (match.index > end) pieces.push({ text: text.slice(end, match.index), hidden: false });
    pieces.push({ text: nameCharacter(match[0]), hidden: true });
    end = match.index + match[0].length;
  }
  if (end < text.length) pieces.push({ text: text.slice(end), hidden: false });
  return pieces;
}

function nameCharacter(character: string): string {
  const code = character.codePointAt(0) ?? 0;
  return NAMES[code] ?? `U+${code.toString(16).toUpperCase().padStart(4, "0")}`;
}

/** Returns a text in one piece with hidden characters as `⟨NAME⟩`, for titles and attributes. */
export function writeOutHidden(text: string): string {
  return splitHidden(text)
    .map((piece) => (piece.hidden ? `⟨${piece.text}⟩` : piece.text))
    .join("");
}

/** Removes the colours of terminals and what else a terminal would obey; what remains hidden is written out by the view. */
export function stripTerminal(text: string): string {
  return text
    .replace(/\u001b\[[0-9;:?]*[ -/]*[@-~]/g, "")
    .replace(/\u001b\][^\u0007\u001b]*(?:\u0007|\u001b\\)/g, "")
    .replace(/\r\n/g, "\n");
}

/** Returns the first line of a text. */
export function firstLine(text: string): string {
  const end = text.indexOf("\n");
  return end < 0 ? text : text.slice(0, end);
}

/** Returns a message with a capital letter, unless it begins with a name, an id or code. */
export function toSentence(message: string): string {
  return /^[a-z]+(?:'[a-z]+)?[ ,:]/.test(message) ? message.charAt(0).toUpperCase() + message.slice(1) : message;
}

/** Returns the first sentence of a text. A point ends one only before a capital letter or the end of the line. */
export function firstSentence(text: string): string {
  const line = firstLine(text);
  return /^.+?[.!?](?=\s+["“`(]?\p{Lu}|\s*$)/u.exec(line)?.[0] ?? line;
}

/**
 * Returns the direction of a text: that of its first letter. Browsers do not find it by themselves, because they skip the isolated parts
 * that foreign text is put in.
 */
export function directionOf(text: string): "ltr" | "rtl" {
  const letter = /\p{L}/u.exec(text)?.[0] ?? "";
  return /[\p{Script=Arabic}\p{Script=Hebrew}\p{Script=Syriac}\p{Script=Thaana}\p{Script=Nko}]/u.test(letter)
    ? "rtl"
    : "ltr";
}

export interface TextItem {
  /** The number of an ordered item as it is written; null for a bullet. */
  number: string | null;
  text: string;
}

export type TextBlock = { kind: "text"; text: string } | { kind: "list"; items: TextItem[] };

const ITEM = /^ {0,3}(?:[-*•]|(\d{1,3}[.)])) +(?=\S)/;

/** Splits a text of several lines into paragraphs and lists. An indented line after an item belongs to it. */
export function splitBlocks(text: string): TextBlock[] {
  const blocks: TextBlock[] = [];
  let isOpen = false;
  for (const line of text.split("\n")) {
    const last = isOpen ? blocks.at(-1) : undefined;
    const item = ITEM.exec(line);
    if (item) {
      const entry = { number: item[1] ?? null, text: line.slice(item[0].length) };
      if (last?.kind === "list") last.items.push(entry);
      else blocks.push({ kind: "list", items: [entry] });
      isOpen = true;
    } else if (line.trim() === "") {
      isOpen = false;
    } else if (last?.kind === "list" && /^\s{2,}/.test(line)) {
      const entry = last.items.at(-1);
      if (entry) entry.text += `\n${line.trim()}`;
    } else if (last?.kind === "text") {
      last.text += `\n${line}`;
    } else {
      blocks.push({ kind: "text", text: line });
      isOpen = true;
    }
  }
  return blocks;
}

/** Quotes words for a shell, so that a copied command means what is shown. */
export function quoteShell(words: readonly string[]): string {
  return words.map((word) => (/^[\w@%+=:,./-]+$/.test(word) ? word : `'${word.replaceAll("'", `'\\''`)}'`)).join(" ");
}

/** Returns the command of a check as a person would type it. */
export function describeCommand(argv: readonly string[]): string {
  const [program, flag, line] = argv;
  if (argv.length === 3 && program === "sh" && flag === "-c" && line !== undefined) return line;
  return quoteShell(argv);
}
