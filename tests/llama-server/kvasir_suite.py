"""A pytest plugin (-p kvasir_suite) for llama-server's own tests: local models instead of downloaded ones, and each
test's outcome in a file.

KVASIR_SUITE_MODELS  directory with embed.gguf, rank.gguf, infill.gguf, words.gguf (models.py)
KVASIR_SUITE_TINY    the tiny llama of scripts/make-fixtures.sh; its adapter is in lora/ beside it
KVASIR_SUITE_RESULT  the file to write: one JSON object a line {test, outcome, message}
"""
import json
import os
import pathlib

import pytest

MODELS = pathlib.Path(os.environ['KVASIR_SUITE_MODELS'])
TINY = pathlib.Path(os.environ['KVASIR_SUITE_TINY'])
WORDS = MODELS / 'words.gguf'

# What stands in for a model of the hub: (repository, file) as the presets name them.
STAND_INS = {
    ('ggml-org/test-model-stories260K', None): WORDS,
    ('ggml-org/models', 'bert-bge-small/ggml-model-f16.gguf'): MODELS / 'embed.gguf',
    ('ggml-org/models', 'jina-reranker-v1-tiny-en/ggml-model-f16.gguf'): MODELS / 'rank.gguf',
    ('ggml-org/test-model-stories260K-infill', None): MODELS / 'infill.gguf',
    ('ggml-org/stories15M_MOE', 'stories15M_MOE-F16.gguf'): TINY,
    # Its own tests are about images; text alone needs no other model.
    ('ggml-org/tinygemma3-GGUF:Q8_0', None): WORDS,
}
# Files that tests download by address: the end of the address.
DOWNLOADS = {'moe_shakespeare15M.gguf': TINY.parent / 'lora' / TINY.name}
# These files are about the router, which runs without a model. Others start one only because it is quick.
ROUTER_FILES = {'test_router', 'test_mcp_servers', 'test_tools_builtin', 'test_stream'}

running = {'module': ''}  # of the test that runs now


def pytest_collection_modifyitems(items):
    """After collection `utils` is imported, so its classes can be given their stand-ins before the first test."""
    import utils

    start = utils.ServerProcess.start

    def start_on_stand_in(self, *args, **kwargs):
        source = (self.model_hf_repo, self.model_hf_file)
        if self.model_hf_repo:
            if source not in STAND_INS:
                pytest.skip(f'needs {"/".join(s for s in source if s)}')
            self.model_file = str(STAND_INS[source])
            self.model_hf_repo = self.model_hf_file = None
            self.offline = True
        elif not self.model_file and running['module'] not in ROUTER_FILES:
            self.model_file = str(WORDS)
        return start(self, *args, **kwargs)

    def local_file(url, output_file_path=None):
        name = url.split('/')[-1]
        if name not in DOWNLOADS:
            pytest.skip(f'needs {name}')
        return str(DOWNLOADS[name])

    utils.ServerProcess.start = start_on_stand_in
    utils.ServerPreset.load_all = staticmethod(lambda: None)  # there is nothing to download
    for module in {item.module for item in items}:
        if hasattr(module, 'download_file'):
            module.download_file = local_file
    for item in items:
        if item.get_closest_marker('slow'):
            item.add_marker(pytest.mark.skip(reason='slow: needs models of several GB'))


def pytest_runtest_setup(item):
    running['module'] = item.module.__name__.split('.')[-1]


@pytest.hookimpl(hookwrapper=True)
def pytest_runtest_makereport(item, call):
    report = (yield).get_result()
    kept = getattr(item, 'kvasir_outcome', ('passed', ''))
    # The worst of set-up, test and tear-down; teardown's failures count only when the test itself was well.
    if report.outcome != 'passed' and kept[0] == 'passed':
        kept = (report.outcome, first_line(report))
    item.kvasir_outcome = kept
    if report.when == 'teardown':
        record = {'test': item.nodeid.removeprefix('unit/'), 'outcome': kept[0], 'message': kept[1]}
        with open(os.environ['KVASIR_SUITE_RESULT'], 'a', encoding='utf-8') as out:
            out.write(json.dumps(record) + '\n')


def first_line(report):
    if report.skipped and isinstance(report.longrepr, tuple):
        return report.longrepr[2].removeprefix('Skipped: ')
    crash = getattr(report.longrepr, 'reprcrash', None)
    return (crash.message if crash else str(report.longrepr)).split('\n')[0][:200]
