"""Makes the small models that the suite's presets ask for and no package ships.

usage: models.py DIR TINY_LLAMA_GGUF SMOLLM2_GGUF UNIT_TESTS_DIR

  DIR/words.gguf   a llama of two narrow layers with SmolLM2's tokenizer and template: as quick as the 260K stories
                   model that most tests are written for, and its prompts have about as many tokens
  DIR/embed.gguf   a bert of two narrow layers whose vocabulary is the words of the tests about embeddings: as with
                   the trained one, a token a word and a mark at either end
  DIR/rank.gguf    the words model as a qwen3 with a reranker's head and template, for /v1/rerank
  DIR/infill.gguf  the tiny llama of scripts/make-fixtures.sh, its metadata naming fill-in-the-middle tokens

Random weights: what the tests ask is shapes, counts and errors. Those that ask for a trained model's words or ranks
are listed as such in expected.json.
"""
import pathlib
import re
import sys

import gguf
import numpy as np


def words(path, donor, arch='llama', ranks=False, pooling=None):
    """Two narrow layers around the tokenizer of `donor`. With `ranks` (architecture qwen3): the two-way head and the
    template of a reranker."""
    reader = gguf.GGUFReader(donor)
    random = np.random.default_rng(11)
    n_vocab = len(reader.fields['tokenizer.ggml.tokens'].contents())
    out = gguf.GGUFWriter(path, arch)
    out.add_name(f'tiny-{pathlib.Path(path).stem}')
    out.add_file_type(gguf.LlamaFileType.MOSTLY_F16)
    out.add_vocab_size(n_vocab)
    out.add_context_length(2048)
    out.add_embedding_length(64)
    out.add_feed_forward_length(128)
    out.add_block_count(2)
    out.add_head_count(2)
    out.add_head_count_kv(1)
    out.add_key_length(32)
    out.add_value_length(32)
    out.add_rope_dimension_count(32)
    out.add_layer_norm_rms_eps(1e-6)
    if pooling is not None:
        out.add_pooling_type(pooling)
    if ranks:
        out.add_array(f'{arch}.classifier.output_labels', ['yes', 'no'])
        out.add_string('tokenizer.chat_template.rerank', 'Is {document} about {query}?')
    copy_keys(out, reader, 'tokenizer.')

    def matrix(tensor, rows, columns, deviation):
        out.add_tensor(tensor, random.normal(0, deviation, (rows, columns)).astype(np.float16))

    matrix('token_embd.weight', n_vocab, 64, 0.5)
    matrix('output.weight', n_vocab, 64, 0.25)  # logits deviate by 2: some tokens are likelier, none is certain
    out.add_tensor('output_norm.weight', np.ones(64, np.float32))
    if ranks:
        matrix('cls.output.weight', 2, 64, 0.25)
    for layer in range(2):
        for part, rows, columns in (('attn_q', 64, 64), ('attn_k', 32, 64), ('attn_v', 32, 64), ('attn_output', 64, 64),
                                    ('ffn_gate', 128, 64), ('ffn_up', 128, 64), ('ffn_down', 64, 128)):
            matrix(f'blk.{layer}.{part}.weight', rows, columns, columns ** -0.5)
        norms = [('attn_norm', 64), ('ffn_norm', 64)]
        if arch == 'qwen3':
            norms += [('attn_q_norm', 32), ('attn_k_norm', 32)]
        for part, width in norms:
            out.add_tensor(f'blk.{layer}.{part}.weight', np.ones(width, np.float32))
    finish(out)


def encoder(path, tests):
    """As bge-small: attention both ways, a vector for each of 512 positions, the first token's vector is the text's."""
    random = np.random.default_rng(12)
    found = sorted({w for text in tests for w in re.findall(r'[a-z]+', text.read_text(encoding='utf-8').lower())})
    letters = [c for c in map(chr, range(33, 127)) if not c.isupper()]
    marks = ['[PAD]', '[UNK]', '[CLS]', '[SEP]', '[MASK]']
    tokens = list(dict.fromkeys(marks + [f'\u2581{w}' for w in found + letters] + letters))
    out = gguf.GGUFWriter(path, 'bert')
    out.add_name('tiny-bert')
    out.add_vocab_size(len(tokens))
    out.add_context_length(512)
    out.add_embedding_length(64)
    out.add_feed_forward_length(128)
    out.add_block_count(2)
    out.add_head_count(2)
    out.add_layer_norm_eps(1e-6)
    out.add_causal_attention(False)
    out.add_pooling_type(gguf.PoolingType.CLS)
    out.add_tokenizer_model('bert')
    out.add_tokenizer_pre('default')
    out.add_token_list(tokens)
    out.add_token_types([gguf.TokenType.CONTROL if t in marks else gguf.TokenType.NORMAL for t in tokens])
    out.add_token_type_count(2)
    for name, mark in (('padding', 0), ('unknown', 1), ('bos', 2), ('cls', 2), ('seperator', 3), ('mask', 4)):
        out.add_uint32(f'tokenizer.ggml.{name}_token_id', mark)

    def matrix(tensor, rows, columns, deviation):
        out.add_tensor(f'{tensor}.weight', random.normal(0, deviation, (rows, columns)).astype(np.float32))

    def vector(tensor, value, width=64):
        out.add_tensor(tensor, np.full(width, value, np.float32))

    for tensor, rows in (('token_embd', len(tokens)), ('token_types', 2), ('position_embd', 512)):
        matrix(tensor, rows, 64, 0.5)
    norms = ['token_embd_norm']
    for layer in range(2):
        for part, rows, columns in (('attn_q', 64, 64), ('attn_k', 64, 64), ('attn_v', 64, 64), ('attn_output', 64, 64),
                                    ('ffn_up', 128, 64), ('ffn_down', 64, 128)):
            matrix(f'blk.{layer}.{part}', rows, columns, columns ** -0.5)
            vector(f'blk.{layer}.{part}.bias', 0, rows)
        norms += [f'blk.{layer}.attn_output_norm', f'blk.{layer}.layer_output_norm']
    for norm in norms:
        vector(f'{norm}.weight', 1)
        vector(f'{norm}.bias', 0)
    finish(out)


def infill(path, donor):
    """Copies `donor`; tokens 1 to 3 become the prefix, suffix and middle marks."""
    reader = gguf.GGUFReader(donor)
    out = gguf.GGUFWriter(path, reader.fields['general.architecture'].contents())
    copy_keys(out, reader, '')
    for token, mark in enumerate(('pre', 'suf', 'mid'), start=1):
        out.add_uint32(f'tokenizer.ggml.fim_{mark}_token_id', token)
    for tensor in reader.tensors:
        out.add_tensor(tensor.name, tensor.data, raw_shape=tensor.data.shape, raw_dtype=tensor.tensor_type)
    finish(out)


def copy_keys(out, reader, prefix):
    for key, field in reader.fields.items():
        if key.startswith('GGUF.') or key == 'general.architecture' or not key.startswith(prefix):
            continue
        if key == 'tokenizer.ggml.merges' and not field.contents():
            out.add_token_merges(['!! !!'])  # the donor has none; the writer refuses an empty list, the engine a missing one
            continue
        kind = field.types[0]
        out.add_key_value(key, field.contents(), kind, field.types[-1] if kind == gguf.GGUFValueType.ARRAY else None)


def finish(out):
    out.write_header_to_file()
    out.write_kv_data_to_file()
    out.write_tensors_to_file()
    out.close()


if __name__ == '__main__':
    directory = pathlib.Path(sys.argv[1])
    directory.mkdir(parents=True, exist_ok=True)
    infill(directory / 'infill.gguf', sys.argv[2])
    words(directory / 'words.gguf', sys.argv[3])
    unit = pathlib.Path(sys.argv[4])
    encoder(directory / 'embed.gguf', [unit / 'test_embedding.py', unit / 'test_metrics.py'])
    words(directory / 'rank.gguf', sys.argv[3], 'qwen3', ranks=True, pooling=gguf.PoolingType.RANK)
