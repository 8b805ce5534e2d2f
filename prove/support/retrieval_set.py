"""Makes a labelled set of questions over documentation and code of public packages, without a model; used by `prove/performance/memory`.

The packages are downloaded at pinned versions into a cache and never stored in the repository. A question is a sentence that people wrote about a
place; the sentence is removed from the text that is searched:

- `section`: the first sentence of a section of a page; the place is the section.
- `docstring`: the first sentence about a function or a type; the place is its definition.
- `reference`: a sentence that refers to a section or a definition by a link; the place is the target.
- `changelog`: an entry of a changelog that names one definition; the place is that definition.

A sentence that is still somewhere in the text is no question. Which sentences are taken is decided by their SHA-256, so that the set is always the
same.

    retrieval_set.py --cache DIR --proof PROGRAM --out DIR

writes `chunks.jsonl` and `questions.jsonl` ({"question", "kind", "package", "evidence": number of the chunk, "half": "tune" or "report"}).
"""

import argparse
import ast
import collections
import dataclasses
import hashlib
import json
import pathlib
import re
import shutil
import subprocess
import sys
import tarfile

PYTHON = ["flask==3.1.0", "click==8.1.8", "requests==2.32.3", "httpx==0.28.1", "attrs==24.3.0", "Jinja2==3.1.5"]
CRATES = {"axum": "0.8.1", "clap_builder": "4.5.27", "tower": "0.5.2", "anyhow": "1.0.95"}
NPM = ["fastify@5.2.1", "commander@13.1.0", "pino@9.6.0", "ws@8.18.0"]

DOCUMENTS = (".md", ".rst")
CODE = (".py", ".rs", ".js", ".ts", ".mjs")
SKIPPED = ("test", "tests", "node_modules", "vendor", "benchmarks", "bench", "benches", "_emoji_codes", "_unicode_data", "locale", "licenses")
MAX_FILE_BYTES = 400_000
# How many questions of each kind a package gives at most.
LIMITS = {"section": 45, "docstring": 35, "reference": 22, "changelog": 15}
MIN_WORDS, MAX_WORDS = 6, 40
STOP = set("a about an and any are as at be been but by can do for from has have how if in into is it its may more no not of on only or other same see should so such than that the their them then there these they this to use used uses using was we what when which will with you your".split())
SENTENCE_END = re.compile(r"(?<=[a-z0-9)`\"'*_])[.!?](?=\s+[A-Z`*:\[\"(]|\s*$)")
# What may stand between two words of a sentence: spaces, and what begins a line of a comment.
BETWEEN = r"\s*(?:\n[ \t]*(?:///?|//!|\*|\#)?[ \t]*)?\s*"


@dataclasses.dataclass
class Question:
    """A sentence about a place, both in files of one package."""

    kind: str
    package: str
    sentence: str
    source: str
    offset: int
    target: str
    line: int
    text: str = ""

    @property
    def key(self):
        return hashlib.sha256(f"{self.package}\0{self.source}\0{self.sentence}".encode()).hexdigest()


def run(*command, **options):
    subprocess.run(command, check=True, stdout=subprocess.DEVNULL, **options)


def download(cache):
    """Fills the cache once; returns the folder of each package."""
    done = cache / "done.json"
    wanted = json.dumps([PYTHON, CRATES, NPM])
    folders = cache / "packages"
    if not done.exists() or done.read_text() != wanted:
        archives = cache / "archives"
        for folder in (folders, archives):
            shutil.rmtree(folder, ignore_errors=True)
            folder.mkdir(parents=True)
        run(sys.executable, "-m", "pip", "download", "-q", "--no-deps", "--no-binary=:all:", "-d", str(archives), *PYTHON, stderr=subprocess.DEVNULL)
        for name in NPM:
            run("npm", "pack", "--silent", "--pack-destination", str(archives), name)
        for archive in sorted([*archives.glob("*.tar.gz"), *archives.glob("*.tgz")]):
            unpack(archive, folders / re.sub(r"\.(tar\.gz|tgz)$", "", archive.name).lower())
        vendor(cache / "vendor", folders)
        done.write_text(wanted)
    return sorted(path for path in folders.iterdir() if path.is_dir())


def unpack(archive, folder):
    with tarfile.open(archive) as tar:
        for member in tar.getmembers():
            inner = pathlib.PurePosixPath(member.name).parts[1:]
            if member.isfile() and inner and ".." not in inner and not member.name.startswith("/"):
                path = folder.joinpath(*inner)
                path.parent.mkdir(parents=True, exist_ok=True)
                path.write_bytes(tar.extractfile(member).read())


def vendor(work, folders):
    """Copies crates by `cargo vendor`, which checks their digests."""
    shutil.rmtree(work, ignore_errors=True)
    (work / "src").mkdir(parents=True)
    (work / "src/lib.rs").write_text("")
    lines = "\n".join(f'{name} = {{ version = "={version}", default-features = false }}' for name, version in CRATES.items())
    (work / "Cargo.toml").write_text(f'[package]\nname = "set"\nversion = "0.0.0"\nedition = "2021"\n[workspace]\n[dependencies]\n{lines}\n')
    run("cargo", "vendor", "--quiet", "--versioned-dirs", "all", cwd=work, stderr=subprocess.DEVNULL)
    for name, version in CRATES.items():
        shutil.copytree(work / "all" / f"{name}-{version}", folders / f"{name}-{version}")


def read_files(folders):
    """The text of each file of a package that is searched, by its path `PACKAGE/...`."""
    files = {}
    for folder in folders:
        for path in sorted(folder.rglob("*")):
            inner = path.relative_to(folder)
            if path.suffix not in DOCUMENTS + CODE or any(part in SKIPPED for part in inner.with_suffix("").parts) or ".min." in path.name or not path.is_file():
                continue
            if path.stat().st_size <= MAX_FILE_BYTES and (text := read(path)):
                files[f"{folder.name}/{inner}"] = text
    return files


def read(path):
    try:
        return path.read_text(encoding="utf-8").replace("\r\n", "\n")
    except UnicodeDecodeError:
        return ""


def plain(sentence):
    """The words of a sentence, without markup."""
    text = re.sub(r"!?\[([^\]]*)\](?:\([^)]*\)|\[[^\]]*\])?", r"\1", sentence)
    text = re.sub(r":[\w:+-]+:`~?([^`<]*?)(?:\s*<[^>]*>)?`", lambda found: found[1].split(".")[-1] if "." in found[1] and " " not in found[1] else found[1], text)
    text = re.sub(r"`([^`<]*?)\s*<[^>]*>`_+", r"\1", text)
    text = re.sub(r"[`*]+|\\(?=.)", "", text)
    return " ".join(text.split()).rstrip(".").strip()


def is_question(text):
    words = re.findall(r"[A-Za-z_][\w.']*", text)
    return MIN_WORDS <= len(words) <= MAX_WORDS and len({word.lower() for word in words} - STOP) >= 4 and "http" not in text and text[:1].isalpha()


def first_sentence(paragraph):
    found = SENTENCE_END.search(paragraph)
    return paragraph[: found.end()] if found else paragraph


def line_of(text, offset):
    return text.count("\n", 0, offset) + 1


def is_prose(block):
    return bool(re.match(r"[A-Z`*\[]", block)) and not re.match(r"[-*+]\s|\|", block) and "|" not in block and not re.match(r"(\.\.|```|[=~^-]{3})", block)


def headings(path, text):
    """(offset of the section, offset of its end) of a page."""
    pattern = r"^#{1,6} .+$" if path.endswith(".md") else r"^(?=\S)[^\n]+\n([=\-~^\"'`#*+.])\1{2,}[ \t]*$"
    masked = re.sub(r"(?ms)^(```|~~~).*?^\1", lambda found: re.sub(r"[^\n]", " ", found[0]), text)
    found = list(re.finditer(pattern, masked, re.M))
    ends = [it.start() for it in found[1:]] + [len(text)] * bool(found)
    return [(it.start(), it.end(), end) for it, end in zip(found, ends, strict=True)]


def section_questions(package, path, text):
    for _, begin, end in headings(path, text):
        body = text[begin:end]
        block = re.search(r"(?m)^\S.*(?:\n(?!\s*\n).+)*", body)
        if not block or not is_prose(block[0]) or len(body) - len(block[0]) < 0:
            continue
        sentence = first_sentence(block[0])
        if len(body) - len(sentence) >= 250:
            offset = begin + block.start()
            yield Question("section", package, sentence, path, offset, path, line_of(text, offset))


def python_definitions(text):
    try:
        tree = ast.parse(text)
    except SyntaxError:
        return
    stack = [(tree, "")]
    while stack:
        node, owner = stack.pop()
        for child in ast.iter_child_nodes(node):
            if isinstance(child, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
                name = f"{owner}.{child.name}" if owner else child.name
                yield name, child
                if isinstance(child, ast.ClassDef):
                    stack.append((child, name))
            elif not isinstance(child, ast.expr):
                stack.append((child, owner))


def docstring_questions(package, path, text):
    lines = text.split("\n")
    starts = [0]
    for line in lines:
        starts.append(starts[-1] + len(line) + 1)
    if path.endswith(".py"):
        for _, node in python_definitions(text):
            if ast.get_docstring(node) and isinstance(node.body[0], ast.Expr):
                quoted = node.body[0]
                raw = text[starts[quoted.lineno - 1] : starts[quoted.end_lineno]]
                found = re.match(r"\s*[rRuU]?(\"\"\"|''')\s*(\S(?:.|\n)*?)(?:\n\s*\n|\1)", raw)
                if found and node.end_lineno - node.lineno >= 4:
                    yield make_docstring(package, path, text, starts[quoted.lineno - 1] + found.start(2), found[2], node.lineno)
    elif path.endswith(".rs"):
        yield from rust_questions(package, path, text, lines, starts)
    else:
        for found in re.finditer(r"/\*\*\s*\n\s*\*\s+(\S.*(?:\n\s*\*[ \t]+[^@\s].*)*)(?:\n\s*\*.*)*?\*/\s*\n[^\n]*(?:function|class|\)\s*\{|=>)", text):
            yield make_docstring(package, path, text, found.start(1), re.sub(r"\n\s*\*[ \t]+", "\n", found[1]), line_of(text, found.end()))


def rust_questions(package, path, text, lines, starts):
    """The first paragraphs of documentation comments before public items."""
    begin = None
    for at, line in enumerate(lines):
        code = line.strip()
        if code.startswith("///"):
            begin = at if begin is None else begin
        elif begin is not None and not code.startswith("#["):
            if re.match(r"pub (?:const |async |unsafe )*(?:fn|struct|enum|trait|type) ", code):
                words = [it.strip()[3:].strip() for it in lines[begin:at]]
                paragraph = "\n".join(words[: words.index("")] if "" in words else [it for it in words if it])
                if paragraph and lines[begin].strip() != "///":
                    yield make_docstring(package, path, text, starts[begin], paragraph.split("\n#[")[0], at + 1)
            begin = None


def make_docstring(package, path, text, offset, paragraph, line):
    return Question("docstring", package, first_sentence(paragraph), path, offset, path, line)


def definitions_by_name(files):
    """The one place of each definition whose name occurs once in its package."""
    places = collections.defaultdict(list)
    for path, text in files.items():
        package = path.split("/")[0]
        if path.endswith(".py"):
            for name, node in python_definitions(text):
                for known in {name, name.split(".")[-1]}:
                    places[package, known].append((path, node.lineno))
        elif path.endswith(".rs"):
            for found in re.finditer(r"(?m)^[ \t]*pub (?:const |async |unsafe )*(?:fn|struct|enum|trait) (\w+)", text):
                places[package, found[1]].append((path, line_of(text, found.start())))
    return {key: found[0] for key, found in places.items() if len(set(found)) == 1 and len(key[1]) > 3}


def labels(files):
    """The section behind each label or anchor of a page."""
    places = {}
    for path, text in files.items():
        package = path.split("/")[0]
        for start, begin, _ in headings(path, text) if path.endswith(DOCUMENTS) else []:
            title = text[start:begin].split("\n")[0].strip("# ").lower()
            slug = re.sub(r"[^\w\- ]", "", title).strip().replace(" ", "-")
            places.setdefault((package, pathlib.PurePosixPath(path).name, slug), (path, line_of(text, start)))
        if path.endswith(".rst"):
            for found in re.finditer(r"(?m)^\.\. _([^:\n]+):\s*\n\s*\n(?=\S)", text):
                places[package, "", found[1].strip().lower()] = (path, line_of(text, found.end()))
    return places


def sentences(text):
    """(offset, sentence) of the prose of a page."""
    for block in re.finditer(r"(?m)^(?:[-*+] +)?\S.*(?:\n(?!\s*\n|[-*+] ).+)*", text):
        marker = re.match(r"[-*+] +", block[0])
        begin = marker.end() if marker else 0
        if not is_prose(block[0][begin:]):
            continue
        for found in [*SENTENCE_END.finditer(block[0], begin)]:
            yield block.start() + begin, block[0][begin : found.end()]
            begin = found.end() + len(re.match(r"\s*", block[0][found.end() :])[0])


def reference_questions(package, path, text, places, names):
    for offset, sentence in sentences(text):
        target = None
        if link := re.search(r"\]\(([\w./-]*)#([\w-]+)\)", sentence):
            target = places.get((package, pathlib.PurePosixPath(link[1] or path).name, link[2].lower()))
        elif label := re.search(r":ref:`(?:[^`<]*<)?([^`>]+)>?`", sentence):
            target = places.get((package, "", label[1].strip().lower()))
        elif len(found := re.findall(r":(?:func|meth|class|attr):`[~.]?([\w.]+?)(?:\(\))?`", sentence)) == 1:
            parts = found[0].split(".")
            target = names.get((package, ".".join(parts[-2:]))) or names.get((package, parts[-1]))
        if target and (target[0] != path or abs(target[1] - line_of(text, offset)) > 5):
            yield Question("reference", package, sentence, path, offset, *target)


def changelog_questions(package, path, text, names):
    for found in re.finditer(r"(?m)^[-*+] +(\S.*(?:\n[ \t]+\S.*)*)", text):
        named = set(re.findall(r"`+(?:[\w.]*\.)?([A-Za-z_]\w+(?:\.\w+)?)(?:\(\))?`", found[1]))
        targets = {names[package, name] for name in named if (package, name) in names}
        if len(targets) == 1:
            yield Question("changelog", package, first_sentence(found[1]), path, found.start(1), *targets.pop())


def collect(files):
    names, places = definitions_by_name(files), labels(files)
    for path, text in files.items():
        package, base = path.split("/")[0], pathlib.PurePosixPath(path).stem.lower()
        if base in ("changes", "changelog", "history"):
            yield from changelog_questions(package, path, text, names)
        elif path.endswith(DOCUMENTS):
            yield from section_questions(package, path, text)
            yield from reference_questions(package, path, text, places, names)
        else:
            yield from docstring_questions(package, path, text)


def choose(candidates):
    """The questions of each kind and package with the lowest digests; a sentence and a place give one question."""
    chosen, counts, used = [], collections.Counter(), set()
    for question in sorted(candidates, key=lambda it: it.key):
        question.text = plain(question.sentence)
        place, group = (question.target, question.line), (question.package, question.kind)
        if counts[group] >= LIMITS[question.kind] or not is_question(question.text) or {question.text, place} & used:
            continue
        used |= {question.text, place}
        counts[group] += 1
        chosen.append(question)
    return chosen


def remove(files, question):
    """Removes the sentence; lines keep their numbers. False if it is not where it was."""
    pattern = BETWEEN.join(re.escape(word) for word in question.sentence.split())
    text = files[question.source]
    found = next((it for it in re.finditer(pattern, text) if abs(it.start() - question.offset) < 3000), None)
    if not found:
        return False
    kept = "\n".join(re.match(r"[ \t]*(?:///?!?|\*|#)?", line)[0] if at else "" for at, line in enumerate(found[0].split("\n")))
    files[question.source] = text[: found.start()] + kept + text[found.end() :]
    return True


def squeeze(text):
    return re.sub(r"\W+", " ", text.lower()).strip()


def chunk(program, folder, files):
    for path, text in files.items():
        (folder / path).parent.mkdir(parents=True, exist_ok=True)
        (folder / path).write_text(text, encoding="utf-8")
    done = subprocess.run([program, "memory", "chunks", folder], input="\n".join(files), check=True, capture_output=True, text=True)
    return [json.loads(line) for line in done.stdout.splitlines()]


def main():
    arguments = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    for name in ("--cache", "--proof", "--out"):
        arguments.add_argument(name, required=True, type=pathlib.Path)
    given = arguments.parse_args()
    given.cache.mkdir(parents=True, exist_ok=True)
    given.out.mkdir(parents=True, exist_ok=True)
    files = read_files(download(given.cache))
    chosen = [question for question in choose(collect(files)) if remove(files, question)]
    corpus = given.out / "corpus"
    shutil.rmtree(corpus, ignore_errors=True)
    chunks = chunk(given.proof.resolve(), corpus, files)
    by_path = collections.defaultdict(list)
    for number, it in enumerate(chunks):
        by_path[it["path"]].append((it["start_line"], it["end_line"], number))
    everything = squeeze(" ".join(it["text"] for it in chunks))
    questions = []
    for question in chosen:
        places = [number for first, last, number in by_path[question.target] if first <= question.line <= last]
        after = [number for first, _, number in by_path[question.target] if first > question.line]
        evidence = places[:1] or (after[:1] if question.kind in ("section", "reference") else [])
        if evidence and squeeze(question.text) not in everything:
            half = "tune" if int(question.key[-1], 16) % 2 else "report"
            questions.append({"question": question.text, "kind": question.kind, "package": question.package, "evidence": evidence[0], "half": half})
    for name, rows in (("chunks", chunks), ("questions", questions)):
        with open(given.out / f"{name}.jsonl", "w", encoding="utf-8") as file:
            file.writelines(json.dumps(row, ensure_ascii=False) + "\n" for row in rows)
    kinds = collections.Counter((it["kind"], it["half"]) for it in questions)
    print(f"{len(questions)} questions over {len(chunks)} chunks of {len(files)} files: " + ", ".join(f"{kind} {half} {count}" for (kind, half), count in sorted(kinds.items())))


if __name__ == "__main__":
    main()
