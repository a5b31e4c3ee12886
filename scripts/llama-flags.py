#!/usr/bin/env python3
"""Lists llama-server's options and environment variables, read from the source of the pinned engine.

tests/options/llama-flags.txt has one line an option: its names, the names that turn it off ("-" for none), how many
values it takes, its variable ("-" for none), "removed" for one that llama-server itself only complains about, and what
kvasir does with it, which is ours to fill in and is kept:

  honoured  kvasir does it               refused   start-up stops, and says what is missing
  accepted  one warning, without effect  quiet     taken without a word: it is so anyway

"refused,quiet": the option is refused, the spelling that turns it off is quiet. Variables that belong to no option follow
as lines that begin with "env".

usage: scripts/llama-flags.py           rewrites the list; a new option gets "?" for a class
       scripts/llama-flags.py --check   says what the list lacks or has too much, status 1 if anything
"""
import pathlib
import re
import sys

ROOT = pathlib.Path(__file__).parent.parent
SOURCE = ROOT / "build/engine/source"
LIST = ROOT / "tests/options/llama-flags.txt"
CLASSES = {"honoured", "accepted", "refused", "quiet"}
# Read by programs, libraries and tests around the server, and by the shell: not settings of llama-server.
NOT_SETTINGS = {"HOME", "USERPROFILE", "LOCALAPPDATA", "APPDATA", "PROGRAMDATA", "TERM", "LLAMACPP_TEST_MODELFILE"}
STRING = re.compile(r'"((?:[^"\\]|\\.)*)"')
TOKEN = re.compile(r'//[^\n]*|/\*.*?\*/|R"\((?:.*?)\)"|"(?:[^"\\]|\\.)*"|\'(?:[^\'\\]|\\.)*\'|[(){}\[\],]|[^(){}\[\],"\'/]+|/',
                   re.DOTALL)


def arguments(text, start):
    """The comma-separated arguments of the call whose '(' is at text[start - 1], and where it ends."""
    depth, args, now, at = 1, [], "", start
    for m in TOKEN.finditer(text, start):
        t, at = m.group(), m.end()
        if t.startswith(("//", "/*")):
            continue
        if t in ("(", "{", "["):
            depth += 1
        elif t in (")", "}", "]"):
            depth -= 1
            if depth == 0:
                break
        if t == "," and depth == 1:
            args.append(now.strip())
            now = ""
        else:
            now += t
    return args + [now.strip()], at


def options(text):
    """(names, negative names, values, variable, removed) of each option that llama-server takes."""
    for m in re.finditer(r"^ *add_opt\(common_arg\(", text, re.MULTILINE):
        args, end = arguments(text, m.end())
        _, whole = arguments(text, text.index("(", m.start()) + 1)
        chain = text[end:whole]  # .set_env("…").set_examples({…}) …
        only = re.search(r"set_examples\(\{(.*?)\}\)", chain, re.DOTALL)
        examples = set(re.findall(r"LLAMA_EXAMPLE_(\w+)", only.group(1))) if only else {"COMMON"}
        banned = re.search(r"set_excludes\(\{(.*?)\}\)", chain)
        if not examples & {"SERVER", "COMMON"} or banned and "SERVER" in banned.group(1):
            continue
        names = STRING.findall(args[0])
        off = STRING.findall(args[1]) if args[1].startswith("{") else []
        takes = re.match(r"\[[^\]]*\]\(([^)]*)\)", args[-1])
        values = takes.group(1).count("std::string") + bool(re.search(r"\bint\b", takes.group(1)))
        env = re.search(r'set_env\("(\w+)"\)', chain)
        yield names, off, values, env and env.group(1), "arg_removed(" in args[-1]


def lone_variables():
    files = list((SOURCE / "common").glob("*.cpp")) + list((SOURCE / "tools/server").glob("*.cpp"))
    found = set()
    for file in files:
        text = file.read_text(encoding="utf-8")
        found |= set(re.findall(r'get_?env\("(\w+)"', text)) | set(re.findall(r'\{"([A-Z][A-Z_]+)", +fs::path', text))
    return sorted(found - NOT_SETTINGS)


def rows():
    out = []  # an option that the engine lists twice stands once
    for names, off, values, env, removed in options((SOURCE / "common/arg.cpp").read_text(encoding="utf-8")):
        row = (",".join(names), ",".join(off) or "-", str(values), env or "-", "removed" if removed else "-")
        if row not in out:
            out.append(row)
    for name in lone_variables():
        out.append(("env", "-", "1", name, "-"))
    return out


def read_list():
    """{row: class}"""
    known = {}
    for line in LIST.read_text(encoding="utf-8").splitlines() if LIST.exists() else []:
        if line and not line.startswith("#"):
            *row, kind = line.split()
            known[tuple(row)] = kind
    return known


def main():
    wanted, known = rows(), read_list()
    if "--check" in sys.argv:
        wrong = [f"missing: {' '.join(r)}" for r in wanted if r not in known]
        wrong += [f"not in the engine: {' '.join(r)}" for r in known if r not in wanted]
        wrong += [f"no class: {' '.join(r)}" for r, kind in known.items() if not set(kind.split(",")) <= CLASSES]
        print("\n".join(wrong), end="\n" if wrong else "")
        return 1 if wrong else 0
    by_name = {r[0] if r[0] != "env" else r[3]: kind for r, kind in known.items()}
    release = (ROOT / "build/engine/RELEASE").read_text(encoding="utf-8").strip()
    with LIST.open("w", encoding="utf-8") as f:
        print(f"# llama-server {release}: options and variables, by scripts/llama-flags.py; the last column is ours.", file=f)
        print("# names  off  values  variable  removed  class", file=f)
        for r in wanted:
            print(*r, known.get(r) or by_name.get(r[0] if r[0] != "env" else r[3], "?"), file=f)
    return 0


if __name__ == "__main__":
    sys.exit(main())
