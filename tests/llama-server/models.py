"""Makes the small models that the suite's presets ask for and no package ships.

usage: models.py DIR TINY_LLAMA_GGUF SMOLLM2_GGUF

  DIR/words.gguf   a llama of two narrow layers with SmolLM2's tokenizer and template: as quick as the 260K stories
                   model that most tests are written for, and its prompts have about as many tokens
  DIR/bert.gguf    an encoder with random weights and a vocabulary of whole words, for /v1/embeddings
  DIR/rank.gguf    the same with a classification head, for /v1/rerank
  DIR/infill.gguf  the tiny llama of scripts/make-fixtures.sh, its metadata naming fill-in-the-middle tokens

Random weights: what the tests ask is shapes, counts and errors. Those that ask for a trained model's words or ranks
are listed as such in expected.json.
"""
import pathlib
import sys

import gguf
import numpy as np

WIDTH, HEADS, LAYERS, FORWARD, POSITIONS = 32, 2, 2, 64, 512
SPECIAL = ['[PAD]', '[UNK]', '[CLS]', '[SEP]', '[MASK]']
# The words of the tests' prompts, so that one word is one token as with the model that they were written for.
WORDS = '''i believe the meaning of life is write a joke about ai from very long prompt which will not be truncated this
test another string machine learning which city paris la de capitale b c d hello base64 embedding output'''.split()


def vocabulary():
    """Words with the mark of a word's start, then each letter as a start and as a continuation."""
    letters = [chr(c) for c in range(33, 127) if not chr(c).isupper()]
    starts = list(dict.fromkeys(WORDS + letters))
    return SPECIAL + ['\u2581' + w for w in starts] + letters


def encoder(path, name, ranks):
    tokens = vocabulary()
    random = np.random.default_rng(7)
    out = gguf.GGUFWriter(path, 'bert')
    out.add_name(name)
    out.add_file_type(gguf.LlamaFileType.ALL_F32)
    out.add_context_length(POSITIONS)
    out.add_embedding_length(WIDTH)
    out.add_feed_forward_length(FORWARD)
    out.add_block_count(LAYERS)
    out.add_head_count(HEADS)
    out.add_layer_norm_eps(1e-12)
    out.add_causal_attention(False)
    out.add_pooling_type(gguf.PoolingType.RANK if ranks else gguf.PoolingType.CLS)
    out.add_tokenizer_model('bert')
    out.add_token_list(tokens)
    out.add_token_types([gguf.TokenType.CONTROL] * len(SPECIAL) + [gguf.TokenType.NORMAL] * (len(tokens) - len(SPECIAL)))
    out.add_token_type_count(2)
    out.add_pad_token_id(0)
    out.add_unk_token_id(1)
    out.add_bos_token_id(2)
    out.add_sep_token_id(3)
    out.add_eos_token_id(3)
    out.add_mask_token_id(4)

    def weight(tensor, *shape):  # numpy order: rows first
        out.add_tensor(tensor, random.normal(0, 0.2, shape).astype(np.float32))

    def norm(tensor):
        out.add_tensor(tensor + '.weight', np.ones(WIDTH, np.float32))
        out.add_tensor(tensor + '.bias', random.normal(0, 0.1, WIDTH).astype(np.float32))

    def dense(tensor, rows, columns):
        weight(tensor + '.weight', rows, columns)
        weight(tensor + '.bias', rows)

    weight('token_embd.weight', len(tokens), WIDTH)
    weight('position_embd.weight', POSITIONS, WIDTH)
    weight('token_types.weight', 2, WIDTH)
    norm('token_embd_norm')
    for layer in range(LAYERS):
        for part in ('attn_q', 'attn_k', 'attn_v', 'attn_output'):
            dense(f'blk.{layer}.{part}', WIDTH, WIDTH)
        norm(f'blk.{layer}.attn_output_norm')
        dense(f'blk.{layer}.ffn_up', FORWARD, WIDTH)
        dense(f'blk.{layer}.ffn_down', WIDTH, FORWARD)
        norm(f'blk.{layer}.layer_output_norm')
    if ranks:
        dense('cls', WIDTH, WIDTH)
        dense('cls.output', 1, WIDTH)
    finish(out)


def words(path, donor):
    reader = gguf.GGUFReader(donor)
    random = np.random.default_rng(11)
    n_vocab = len(reader.fields['tokenizer.ggml.tokens'].contents())
    out = gguf.GGUFWriter(path, 'llama')
    out.add_name('tiny-words')
    out.add_file_type(gguf.LlamaFileType.MOSTLY_F16)
    out.add_vocab_size(n_vocab)
    out.add_context_length(2048)
    out.add_embedding_length(64)
    out.add_feed_forward_length(128)
    out.add_block_count(2)
    out.add_head_count(2)
    out.add_head_count_kv(1)
    out.add_rope_dimension_count(32)
    out.add_layer_norm_rms_eps(1e-6)
    copy_keys(out, reader, 'tokenizer.')

    def matrix(tensor, rows, columns, deviation):
        out.add_tensor(tensor, random.normal(0, deviation, (rows, columns)).astype(np.float16))

    matrix('token_embd.weight', n_vocab, 64, 0.5)
    matrix('output.weight', n_vocab, 64, 0.25)  # logits deviate by 2: some tokens are likelier, none is certain
    out.add_tensor('output_norm.weight', np.ones(64, np.float32))
    for layer in range(2):
        for part, rows, columns in (('attn_q', 64, 64), ('attn_k', 32, 64), ('attn_v', 32, 64), ('attn_output', 64, 64),
                                    ('ffn_gate', 128, 64), ('ffn_up', 128, 64), ('ffn_down', 64, 128)):
            matrix(f'blk.{layer}.{part}.weight', rows, columns, columns ** -0.5)
        for part in ('attn_norm', 'ffn_norm'):
            out.add_tensor(f'blk.{layer}.{part}.weight', np.ones(64, np.float32))
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
    encoder(directory / 'bert.gguf', 'tiny-bert', ranks=False)
    encoder(directory / 'rank.gguf', 'tiny-rank', ranks=True)
    infill(directory / 'infill.gguf', sys.argv[2])
    words(directory / 'words.gguf', sys.argv[3])
