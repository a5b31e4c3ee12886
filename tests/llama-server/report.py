"""Compares the outcomes of llama-server's tests with expected.json, prints a table, and writes docs/compat.md.

usage: report.py [--only-print] [--page FILE] RESULTS EXPECTED

RESULTS   lines {test, outcome, message} of kvasir_suite.py
EXPECTED  {groups: [{kind, reason, tests: [pattern …]}]}; kind is "not applicable" or "different". A pattern is a test's
          name, its file first; * stands for anything. A test that no pattern meets must pass; one that a pattern meets
          must not. A group with "flaky": true may pass too (its reason says what decides).

Status 1 when an outcome is not the expected one, or a pattern meets no test in a run of everything (--page).
"""
import argparse
import collections
import json
import pathlib
import re
import sys

SAYS = {'not applicable': 'not applicable', 'different': 'different on purpose'}


def read_expected(path):
    groups = json.loads(pathlib.Path(path).read_text(encoding='utf-8'))['groups']
    rules = []
    for group in groups:
        assert group['kind'] in SAYS and group['reason'], group
        for pattern in group['tests']:
            regex = re.compile('.*'.join(re.escape(part) for part in pattern.split('*')), re.DOTALL)
            rules.append((pattern, regex, group))
    return rules


def rule_for(test, rules):
    """The first rule that meets the test: exact names come before wildcards in expected.json's order."""
    return next(((pattern, group) for pattern, regex, group in rules if regex.fullmatch(test)), (None, None))


def judge(results, rules):
    """Gives lines (test, verdict, reason) and the list of what is wrong."""
    lines, wrong, used = [], [], set()
    for result in results:
        test, passed = result['test'], result['outcome'] == 'passed'
        pattern, group = rule_for(test, rules)
        used.add(pattern)
        if group is None:
            lines.append((test, 'pass' if passed else 'FAILED', '' if passed else result['message']))
            if not passed:
                wrong.append(f'{test}: {result["outcome"]}: {result["message"]}')
        else:
            lines.append((test, SAYS[group['kind']], group['reason']))
            if passed and not group.get('flaky'):
                wrong.append(f'{test}: passes, though expected.json says "{group["reason"]}"')
    return lines, wrong, used


def table(lines):
    files = collections.defaultdict(collections.Counter)
    for test, verdict, _ in lines:
        files[test.split('::')[0]][verdict] += 1
    columns = ['pass', *SAYS.values(), 'FAILED']
    total = collections.Counter()
    for counts in files.values():
        total.update(counts)
    rows = [(name, *(counts[c] for c in columns)) for name, counts in sorted(files.items())]
    rows.append(('all', *(total[c] for c in columns)))
    print(f'{"":34}' + ''.join(f'{c:>22}' for c in columns))
    for name, *counts in rows:
        print(f'{name:34}' + ''.join(f'{c or "":>22}' for c in counts))
    return total


def cell(text):
    """A test's name may hold line ends, bars and marks of Markdown."""
    text = json.dumps(text, ensure_ascii=False)[1:-1].replace('\\"', '"')
    return text.replace('`', "'").replace('|', '\\|')


def page(path, lines, total):
    head = f'''# llama-server's own tests, on kvasir

`make compat` runs the test suite of llama-server v0.5.0 (`tools/server/tests` in the engine's source) with kvasir in its
place and writes this page. The models that the tests name are not to be had without a model hub, so small ones stand in
(`tests/llama-server/models.py`): what a test asks of a trained model's words cannot pass, here or with llama-server.

- **pass**: {total["pass"]}
- **not applicable**: {total["not applicable"]}: the test needs something that is not there, and the reason says what
- **different on purpose**: {total["different on purpose"]}: kvasir answers, and otherwise; the reason says why

Expectations are in `tests/llama-server/expected.json`; a failure that is not explained there, or a pass of a test that is
listed there, fails the run. `tests/compat/` compares answers one by one with those of a recorded llama-server.
'''
    out = [head]
    last = None
    for test, verdict, reason in sorted(lines):
        file, name = test.split('::', 1)
        if file != last:
            out.append(f'\n## {file}\n\n| test | outcome |\n|---|---|\n')
            last = file
        out.append(f'| `{cell(name)[:160]}` | {verdict}{": " + cell(reason) if reason else ""} |\n')
    pathlib.Path(path).write_text(''.join(out), encoding='utf-8')


def main():
    args = argparse.ArgumentParser()
    args.add_argument('--only-print', action='store_true')
    args.add_argument('--page')
    args.add_argument('results')
    args.add_argument('expected')
    args = args.parse_args()
    results = [json.loads(line) for line in pathlib.Path(args.results).read_text(encoding='utf-8').splitlines()]
    if args.only_print:
        for result in results:
            print(f'{result["outcome"]:8} {result["test"]}  {result["message"]}')
        return 0
    rules = read_expected(args.expected)
    lines, wrong, used = judge(results, rules)
    total = table(lines)
    if args.page:
        wrong += [f'expected.json: {pattern} meets no test' for pattern, _, _ in rules if pattern not in used]
        if not wrong:
            page(args.page, lines, total)
    for line in wrong:
        print(f'not as expected: {line}')
    print(f'{total["pass"]} passed, {total["FAILED"]} failed, {len(lines) - total["pass"] - total["FAILED"]} explained')
    return 1 if wrong else 0


sys.exit(main())
