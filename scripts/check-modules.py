#!/usr/bin/env python3
"""Holds the sources to the module picture of docs/architecture.md; `make test` and `make lint` run it.

A file of src/X may include "Y/….h" only when kvasir_module(X DEPS …) in CMakeLists.txt names kv_Y, or names a module
that does. The engine's headers stay in src/engine, libmicrohttpd's in src/http. Also: files under 1,000 lines, functions
at most 120, one C++ file, and no left-over notes.

usage: scripts/check-modules.py [ROOT]      prints one line for each finding; status 1 when there is any
"""
import pathlib
import re
import sys

ROOT = pathlib.Path(sys.argv[1] if len(sys.argv) > 1 else pathlib.Path(__file__).parent.parent)
# Headers from outside that only one module may see.
ONLY_IN = {
    r"(llama|ggml|gguf|common|chat|sampling)[\w-]*\.h|json-schema-to-grammar\.h|nlohmann/.*|log\.h": "engine",
    r"microhttpd\.h": "http",
}
MAX_FILE, MAX_FUNCTION = 1000, 120
LEFT_OVER = re.compile(r"\b(TODO|FIXME|XXX)\b|not implemented", re.IGNORECASE)


def declared_modules():
    """{module: set of modules it may include}, transitively, itself among them."""
    text = (ROOT / "CMakeLists.txt").read_text(encoding="utf-8")
    direct = {}
    for name, rest in re.findall(r"^kvasir_module\((\w+)([^)]*)\)", text, re.MULTILINE):
        direct[name] = set(re.findall(r"\bkv_(\w+)", rest))
    closed = {}

    def close(name):
        if name not in closed:
            closed[name] = {name}
            for dep in direct.get(name, ()):
                closed[name] |= close(dep)
        return closed[name]

    for name in direct:
        close(name)
    return closed


def check_includes(path, module, allowed, modules):
    for number, line in enumerate(path.read_text(encoding="utf-8").splitlines(), 1):
        found = re.match(r'\s*#\s*include\s*([<"])([^">]+)[">]', line)
        if not found:
            continue
        header = found.group(2)
        own = found.group(1) == '"' and "/" in header and header.split("/")[0] in modules
        if own and header.split("/")[0] not in allowed:
            yield f"{path.relative_to(ROOT)}:{number}: module {module} may not include {header}"
        if own:
            continue
        for pattern, home in ONLY_IN.items():
            beside = found.group(1) == '"' and (path.parent / header).exists()
            if module != home and not beside and re.fullmatch(pattern, header):
                yield f"{path.relative_to(ROOT)}:{number}: {header} belongs to module {home} alone"


def check_sizes(path):
    lines = path.read_text(encoding="utf-8").splitlines()
    if len(lines) > MAX_FILE:
        yield f"{path.relative_to(ROOT)}: {len(lines)} lines, at most {MAX_FILE}"
    start = None
    for number, line in enumerate(lines, 1):
        # A definition begins at the left margin, its parameters may take further lines, and "}" at the margin ends it.
        if re.match(r"^[A-Za-z_][^=;]*\(", line) and not line.endswith(";"):
            start = number
        elif line.startswith("}"):
            if start and number - start > MAX_FUNCTION:
                yield f"{path.relative_to(ROOT)}:{start}: a function of {number - start} lines, at most {MAX_FUNCTION}"
            start = None


def main():
    modules = declared_modules()
    findings = []
    sources = sorted(p for p in (ROOT / "src").rglob("*") if p.suffix in (".c", ".h", ".cpp"))
    for path in sources:
        module = path.relative_to(ROOT / "src").parts[0]
        if module not in modules:
            findings.append(f"{path.relative_to(ROOT)}: no kvasir_module({module} …) in CMakeLists.txt")
            continue
        findings += check_includes(path, module, modules[module], modules)
        findings += check_sizes(path)
    cpp = [p for p in sources if p.suffix == ".cpp"]
    if len(cpp) > 1:
        findings.append("more than one C++ file: " + ", ".join(str(p.relative_to(ROOT)) for p in cpp))
    for folder in ("src", "tests", "tools", "fuzz", "bench"):
        for path in (ROOT / folder).rglob("*"):
            if path.suffix in (".c", ".h", ".cpp", ".mjs") and "node_modules" not in path.parts:
                for number, line in enumerate(path.read_text(encoding="utf-8").splitlines(), 1):
                    if LEFT_OVER.search(line):
                        findings.append(f"{path.relative_to(ROOT)}:{number}: left over: {line.strip()[:80]}")
    for finding in findings:
        print(finding)
    print(f"check-modules: {len(sources)} files, {len(modules)} modules, {len(findings)} findings")
    return 1 if findings else 0


if __name__ == "__main__":
    sys.exit(main())
