/** An answer of a model: prose, headings, code and calls of tools. All of it is text; nothing of it is markup. */

import { Wrench } from "lucide-react";
import { memo, useMemo } from "react";
import { type AnswerBlock, splitAnswer } from "../logic/chat";
import { CopyButton, Foreign, Inline, Prose } from "./basic";

export function Answer({ text }: { text: string }) {
  const blocks = useMemo(() => splitAnswer(text), [text]);
  return (
    <div className="grid max-w-[760px] grid-cols-1 gap-2.5">
      {blocks.map((block, index) => (
        // biome-ignore lint/suspicious/noArrayIndexKey: blocks only ever come at the end
        <Block key={index} kind={block.kind} text={block.text} />
      ))}
    </div>
  );
}

/** A block is drawn again only when its own text has changed. */
const Block = memo(function Block({ kind, text }: AnswerBlock) {
  switch (kind) {
    case "prose":
      return <Prose text={text} />;
    case "heading":
      return (
        <p className="font-semibold">
          <Inline text={text} />
        </p>
      );
    case "code":
      return (
        <div className="relative">
          <pre
            className="overflow-x-auto rounded-box border border-line bg-surface p-2.5 pr-9 font-mono text-code"
            tabIndex={0}
          >
            <Foreign text={text} />
          </pre>
          <span className="absolute top-1 right-1">
            <CopyButton text={text} label="Copy the code" />
          </span>
        </div>
      );
    case "call":
      return (
        <p className="flex items-center gap-1.5 text-meta text-muted">
          <Wrench size={12} aria-hidden="true" />
          calls{" "}
          <code className="font-mono">
            <Foreign text={text} />
          </code>
        </p>
      );
  }
});
