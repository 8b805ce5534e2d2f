/** Colours of code, a line at a time: comments, strings and words of the language. What spans lines is not known, which keeps it cheap. */

export interface CodePiece {
  text: string;
  tone: "plain" | "comment" | "string" | "keyword";
}

/** Lines that are longer are shown plain. */
const MAX_COLOURED_LENGTH = 1000;

const SLASH_KEYWORDS =
  "abstract|as|async|await|break|case|catch|class|const|continue|crate|default|defer|delete|do|else|enum|export|extends|extern|false|final|finally|fn|for|from|func|function|go|if|impl|implements|import|in|instanceof|interface|let|loop|match|mod|move|mut|new|nil|null|of|package|private|protected|pub|public|ref|return|self|static|struct|super|switch|this|throw|trait|true|try|type|typeof|undefined|unsafe|use|var|void|where|while|yield";
const HASH_KEYWORDS =
  "and|as|assert|async|await|break|case|class|continue|def|del|do|done|elif|else|end|esac|except|false|False|fi|finally|for|from|function|global|if|import|in|is|lambda|local|None|nonlocal|not|or|pass|raise|return|self|set|then|true|True|try|unless|until|while|with|yield";

const STRINGS = String.raw`"(?:[^"\\]|\\.)*"|'(?:[^'\\]|\\.)*'`;
const SLASH = new RegExp(
  `(//.*|/\\*.*?(?:\\*/|$))|(${STRINGS}|\`(?:[^\`\\\\]|\\\\.)*\`)|\\b(${SLASH_KEYWORDS})\\b`,
  "g",
);
const HASH = new RegExp(`((?<=^|\\s)#.*)|(${STRINGS})|\\b(${HASH_KEYWORDS})\\b`, "g");

const SLASH_FILES = /\.(?:[cm]?[jt]sx?|rs|go|java|kt|kts|swift|c|h|cc|cpp|hpp|cs|scala|dart|php|proto|css|scss|zig)$/;
const HASH_FILES =
  /(?:\.(?:py|sh|bash|rb|toml|ya?ml|pl|r|jl|ex|exs|nix|tf|conf|cfg|mk)|(?:^|\/)(?:Makefile|Dockerfile|justfile))$/;

/** Returns what finds the pieces of the lines of a file; null when nothing is known about it. */
export function patternOf(path: string): RegExp | null {
  if (SLASH_FILES.test(path)) return SLASH;
  return HASH_FILES.test(path) ? HASH : null;
}

/** Splits a line into pieces. */
export function colourLine(text: string, pattern: RegExp | null): CodePiece[] {
  if (!pattern || text.length > MAX_COLOURED_LENGTH) return [{ text, tone: "plain" }];
  const pieces: CodePiece[] = [];
  let end = 0;
  for (const match of text.matchAll(pattern)) {
    if (match.index > end) pieces.push({ text: text.slice(end, match.index), tone: "plain" });
    const tone = match[1] !== undefined ? "comment" : match[2] !== undefined ? "string" : "keyword";
    pieces.push({ text: match[0], tone });
    end = match.index + match[0].length;
  }
  if (end < text.length) pieces.push({ text: text.slice(end), tone: "plain" });
  return pieces;
}
