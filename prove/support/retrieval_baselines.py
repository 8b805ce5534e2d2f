#!/usr/bin/env python3
"""Measures other retrievers on the labelled set of retrieval_set.py, with the measures of `cynode-proof memory evaluate`.

    retrieval_baselines.py SET HALF fulltext DATABASE_URL [--limit N]
    retrieval_baselines.py SET HALF minilm CACHE

Prints a line of JSON per retriever: recall@10 and nDCG@10 in percent. `fulltext` is PostgreSQL's own full text search, with any of the words and `ts_rank`.
`minilm` is all-MiniLM-L6-v2 in float32, with mean pooling and cosines; it needs numpy and the model's files in CACHE/minilm, and keeps vectors there.
"""

import argparse
import hashlib
import json
import math
import pathlib
import struct
import subprocess
import sys
import unicodedata

TOP = 10
MAX_TOKENS = 256
BATCH_TOKENS = 8192
HEADS = 12


def read_lines(path):
    return [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()]


def read_set(folder, half):
    questions = read_lines(folder / "questions.jsonl")
    return read_lines(folder / "chunks.jsonl"), [it for it in questions if half in ("all", it["half"])]


def report(name, questions, rankings):
    """recall@10 and nDCG@10: each question has one chunk as its evidence."""
    ranks = [found[:TOP].index(question["evidence"]) if question["evidence"] in found[:TOP] else None for question, found in zip(questions, rankings, strict=True)]
    recall = 100 * sum(rank is not None for rank in ranks) / len(ranks)
    gain = 100 * sum(1 / math.log2(rank + 2) for rank in ranks if rank is not None) / len(ranks)
    print(json.dumps({"retriever": name, "recall_at_10": round(recall, 2), "ndcg_at_10": round(gain, 2), "questions": len(questions)}), flush=True)


# PostgreSQL.

STATEMENTS = r"""
\set QUIET on
CREATE TEMP TABLE chunks_raw (no serial, line jsonb);
\copy chunks_raw (line) FROM '{chunks}' (FORMAT csv, QUOTE e'\x01', DELIMITER e'\x02')
CREATE TEMP TABLE questions_raw (no serial, line jsonb);
\copy questions_raw (line) FROM '{questions}' (FORMAT csv, QUOTE e'\x01', DELIMITER e'\x02')
CREATE TEMP TABLE chunks AS
    SELECT no - 1 AS no, to_tsvector('english', (line ->> 'title') || ' ' || (line ->> 'text')) AS words FROM chunks_raw;
CREATE INDEX ON chunks USING gin (words);
ANALYZE chunks;
CREATE TEMP TABLE questions AS
    SELECT no, (SELECT string_agg(quote_literal(lexeme), ' | ')::tsquery FROM unnest(to_tsvector('english', line ->> 'question'))) AS query
    FROM questions_raw;
SELECT json_agg(found ORDER BY no) FROM (
    SELECT q.no, ARRAY(SELECT c.no FROM chunks c WHERE c.words @@ q.query ORDER BY ts_rank(c.words, q.query) DESC, c.no LIMIT {top}) AS found
    FROM questions q) answers;
"""


def measure_fulltext(folder, questions, database, work):
    asked = work / "asked.jsonl"
    asked.write_text("".join(json.dumps(question, ensure_ascii=False) + "\n" for question in questions), encoding="utf-8")
    script = STATEMENTS.replace("{chunks}", str(folder / "chunks.jsonl")).replace("{questions}", str(asked)).replace("{top}", str(TOP))
    done = subprocess.run(["psql", database, "-XAtq", "-v", "ON_ERROR_STOP=1", "-f", "-"], input=script, capture_output=True, text=True, check=False)
    asked.unlink()
    if done.returncode != 0:
        sys.exit(f"full text search failed: {done.stderr[-1000:]}")
    report("fulltext", questions, json.loads(done.stdout))


# MiniLM.


class WordPiece:
    """The tokens of BERT's uncased vocabulary."""

    def __init__(self, path):
        self.ids = {token: number for number, token in enumerate(path.read_text(encoding="utf-8").splitlines())}

    def words(self, text):
        word = ""
        for letter in unicodedata.normalize("NFD", text.lower()):
            kind = unicodedata.category(letter)
            if kind == "Mn" or letter == "\ufffd" or (kind in ("Cc", "Cf") and letter not in "\t\n\r"):
                continue
            is_mark = kind.startswith("P") or letter in "$+<=>^`|~" or "\u4e00" <= letter <= "\u9fff"
            if letter.isspace() or is_mark:
                if word:
                    yield word
                word = ""
                if is_mark:
                    yield letter
            else:
                word += letter
        if word:
            yield word

    def pieces(self, word):
        start, found = 0, []
        while start < len(word):
            end = len(word)
            while end > start and ("##" if start else "") + word[start:end] not in self.ids:
                end -= 1
            if end == start:
                return [self.ids["[UNK]"]]
            found.append(self.ids[("##" if start else "") + word[start:end]])
            start = end
        return found

    def encode(self, text):
        pieces = []
        for word in self.words(text):
            pieces += self.pieces(word) if len(word) <= 100 else [self.ids["[UNK]"]]
            if len(pieces) >= MAX_TOKENS - 2:
                break
        return [self.ids["[CLS]"], *pieces[: MAX_TOKENS - 2], self.ids["[SEP]"]]


class MiniLm:
    """The model as its makers published it; GELU by its usual approximation."""

    def __init__(self, folder):
        import numpy

        self.numpy = numpy
        self.tokens = WordPiece(folder / "vocab.txt")
        data = (folder / "model.safetensors").read_bytes()
        size = struct.unpack("<Q", data[:8])[0]
        self.weights = {}
        for name, about in json.loads(data[8 : 8 + size]).items():
            if name != "__metadata__" and about["dtype"] == "F32":
                begin, end = about["data_offsets"]
                values = numpy.frombuffer(data[8 + size + begin : 8 + size + end], dtype="<f4")
                self.weights[name.removeprefix("bert.")] = values.reshape(about["shape"])
        self.layers = 1 + max(int(name.split(".")[2]) for name in self.weights if name.startswith("encoder.layer."))

    def linear(self, values, name):
        return values @ self.weights[f"{name}.weight"].T + self.weights[f"{name}.bias"]

    def normalize(self, values, name):
        values = values - values.mean(-1, keepdims=True)
        values /= self.numpy.sqrt((values * values).mean(-1, keepdims=True) + 1e-12)
        return values * self.weights[f"{name}.weight"] + self.weights[f"{name}.bias"]

    def attend(self, values, mask, name):
        numpy = self.numpy
        rows, length, width = values.shape

        def split(part):
            return self.linear(values, f"{name}.self.{part}").reshape(rows, length, HEADS, width // HEADS).transpose(0, 2, 1, 3)

        query, key, value = split("query"), split("key"), split("value")
        scores = query @ key.transpose(0, 1, 3, 2) / numpy.float32(math.sqrt(width // HEADS)) + mask[:, None, None, :]
        scores = numpy.exp(scores - scores.max(-1, keepdims=True))
        scores /= scores.sum(-1, keepdims=True)
        mixed = (scores @ value).transpose(0, 2, 1, 3).reshape(rows, length, width)
        return self.normalize(values + self.linear(mixed, f"{name}.output.dense"), f"{name}.output.LayerNorm")

    def embed_batch(self, batch):
        numpy = self.numpy
        length = max(map(len, batch))
        ids = numpy.zeros((len(batch), length), dtype=numpy.int64)
        seen = numpy.zeros((len(batch), length), dtype=numpy.float32)
        for row, tokens in enumerate(batch):
            ids[row, : len(tokens)] = tokens
            seen[row, : len(tokens)] = 1
        embeddings = "embeddings."
        values = self.weights[f"{embeddings}word_embeddings.weight"][ids] + self.weights[f"{embeddings}position_embeddings.weight"][:length]
        values = self.normalize(values + self.weights[f"{embeddings}token_type_embeddings.weight"][0], f"{embeddings}LayerNorm")
        mask = (seen - 1) * numpy.float32(1e9)
        for layer in range(self.layers):
            name = f"encoder.layer.{layer}"
            values = self.attend(values, mask, f"{name}.attention")
            inner = self.linear(values, f"{name}.intermediate.dense")
            inner = inner * numpy.float32(0.5) * (1 + numpy.tanh(numpy.float32(0.7978845608) * (inner + numpy.float32(0.044715) * inner**3)))
            values = self.normalize(values + self.linear(inner, f"{name}.output.dense"), f"{name}.output.LayerNorm")
        pooled = (values * seen[:, :, None]).sum(1) / seen.sum(1, keepdims=True)
        return pooled / numpy.linalg.norm(pooled, axis=1, keepdims=True)

    def embed(self, texts):
        """Vectors of length one, in the order of the texts."""
        encoded = sorted(((self.tokens.encode(text), number) for number, text in enumerate(texts)), key=lambda pair: len(pair[0]))
        vectors = self.numpy.zeros((len(texts), self.weights["embeddings.word_embeddings.weight"].shape[1]), dtype=self.numpy.float32)
        batch = []
        for tokens, number in encoded:
            if batch and (len(batch) + 1) * len(tokens) > BATCH_TOKENS:
                self.fill(vectors, batch)
                batch = []
            batch.append((tokens, number))
        self.fill(vectors, batch)
        return vectors

    def fill(self, vectors, batch):
        if batch:
            vectors[[number for _, number in batch]] = self.embed_batch([tokens for tokens, _ in batch])


def measure_minilm(chunks, questions, cache):
    import numpy

    folder = cache / "minilm"
    model = MiniLm(folder)
    texts = [f"{chunk['title']}\n{chunk['text']}" for chunk in chunks]
    kept = folder / f"{hashlib.sha256(json.dumps(texts).encode()).hexdigest()[:16]}.npy"
    if kept.exists():
        vectors = numpy.load(kept)
    else:
        vectors = model.embed(texts)
        numpy.save(kept, vectors)
    scores = model.embed([question["question"] for question in questions]) @ vectors.T
    report("minilm", questions, [row.tolist() for row in numpy.argsort(-scores, axis=1, kind="stable")[:, :TOP]])


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("set", type=pathlib.Path)
    parser.add_argument("half", choices=("tune", "report", "all"))
    parser.add_argument("retriever", choices=("fulltext", "minilm"))
    parser.add_argument("place", help="the database, or the directory with the model")
    parser.add_argument("--limit", type=int, help="ask the first questions only")
    options = parser.parse_args()
    chunks, questions = read_set(options.set, options.half)
    questions = questions[: options.limit]
    if options.retriever == "fulltext":
        measure_fulltext(options.set, questions, options.place, options.set)
    else:
        measure_minilm(chunks, questions, pathlib.Path(options.place))


if __name__ == "__main__":
    main()
