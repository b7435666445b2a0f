"""Makes known mistakes in copies of the source, one at a time, and shows the test that catches each.

`python scripts/mutations.py [NAME…]`: the exit status is the number of mistakes that no test caught.
"""

import argparse
import os
import queue
import re
import shutil
import subprocess
import sys
import tempfile
import time
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).parents[1]
COPIED = ("mlxbert", "cli", "weights", "tests", "pyproject.toml")


@dataclass(frozen=True)
class Mutation:
    """A mistake that somebody has made, here or in another project.

    Attributes:
        name: A description of the mistake.
        file: The file with the mistake.
        old: The correct source, which must occur exactly once.
        new: The source with the mistake.
        test: The test that must fail: a file, two colons, a function, optionally parameters in brackets.
    """

    name: str
    file: str
    old: str
    new: str
    test: str


_GOLDENS = "tests/nn/test_parity_goldens.py::test_outputs_equal_those_of_transformers"
# fmt: off
MUTATIONS = tuple(Mutation(*row) for row in (
    ("a token sees those that follow it", "weights/families/qwen.py",
     'config.flag("is_causal", default=True)', 'config.flag("is_causal", default=False)',
     f"{_GOLDENS}[qwen3 ForTokenClassification-float32]"),
    ("queries and keys are not normed", "weights/families/qwen.py", 'query_key_norm="head"', "query_key_norm=None",
     f"{_GOLDENS}[qwen3 ForTokenClassification-float32]"),
    ("every query head has the keys of the next group", "mlxbert/cpu/backend.py",
     "q = qk.q.reshape(len(qk.q), shared, groups, *qk.q.shape[2:])",
     "q = qk.q.reshape(len(qk.q), groups, shared, *qk.q.shape[2:]).swapaxes(1, 2)",
     f"{_GOLDENS}[qwen3 ForTokenClassification-float32]"),
    ("Gemma's window is all that its file says", "weights/families/gemma3.py",
     "near = window - 1 if window % 2 else window // 2", "near = window",
     f"{_GOLDENS}[gemma3 ForSequenceClassification-float32]"),
    ("Gemma's window excludes its ends", "weights/families/gemma3.py",
     "near = window - 1 if window % 2 else window // 2", "near = window // 2 - 1",
     f"{_GOLDENS}[gemma3 ForSequenceClassification-float32]"),
    ("Gemma's norms are times their weights", "mlxbert/nn/ops.py",
     "weight = 1 + self.weight.astype(mx.float32) if self.plus_one else self.weight", "weight = self.weight",
     f"{_GOLDENS}[gemma3 ForSequenceClassification-float32]"),
    ("Gemma's scale is that of its heads", "weights/families/gemma3.py",
     'config.number("query_pre_attn_scalar", low=1e-3, high=1e6, default=256) ** -0.5', "size ** -0.5",
     f"{_GOLDENS}[gemma3 ForSequenceClassification-float32]"),
    ("Gemma's embeddings are not scaled", "weights/families/gemma3.py",
     'embedding_scale=math.sqrt(config.integer("hidden_size"))', "embedding_scale=math.sqrt(1)",
     f"{_GOLDENS}[gemma3 ForSequenceClassification-float32]"),
    ("Gemma's local layers have the base of global ones", "weights/families/gemma3.py",
     '("rope_local_base_freq", 1e4)', '("rope_theta", 1e4)',
     "tests/weights/test_families.py::test_gemma_has_two_bases_in_older_files"),
    ("EuroBERT classifies the first token", "weights/families/eurobert.py", 'late=pooling == "late"',
     "late=False", f"{_GOLDENS}[eurobert ForSequenceClassification-float32]"),
    ("float16 is taken to hold Gemma's values", "weights/families/gemma3.py", "wide_range=True", "wide_range=False",
     "tests/weights/test_families.py::test_models_whose_values_float16_cannot_hold_have_another_dtype"),
    ("a classifier pools the token that pads", "weights/families/llama.py", "skipped=pad)", "skipped=None)",
     "tests/weights/test_families.py::test_a_classifier_does_not_pool_the_token_that_pads_not_even_within_a_text"),
    ("language models are mean-pooled", "weights/families/config_reader.py",
     '"last_token" if generates', '"mean" if generates',
     "tests/weights/test_families.py::test_without_modules_a_model_is_pooled_as_its_family_is"),
    ("the shares of experts add up to 1", "mlxbert/nn/blocks.py",
     "weights = mx.take_along_axis(shares, chosen, axis=-1).astype(x.dtype)",
     "weights = mx.softmax(mx.take_along_axis(shares, chosen, axis=-1), axis=-1).astype(x.dtype)",
     f"{_GOLDENS}[nomic moe ForMaskedLM-float32]"),
    ("documents get the prompt of queries", "mlxbert/tasks/similarity.py", 'own_prompt(prompts, "document")',
     'own_prompt(prompts, "query")',
     "tests/tasks/test_similarity.py::test_queries_and_texts_get_their_prompts[options0-man is : -in ]"),
    ("a file gets its place in the cache from the hub", "weights/hub/download.py",
     '"local_dir": folder, "cache_dir": folder, ', "",
     "tests/weights/hub/test_lies.py::test_nothing_that_a_hub_says_becomes_a_path"),
    ("a file of another hash is kept", "weights/hub/download.py",
     "wrong = mismatch(path, announced)", "wrong = mismatch(path, AnnouncedFile())",
     "tests/weights/hub/test_lies.py::test_other_bytes_elsewhere_are_noticed"),
    ("options of a call are lost", "mlxbert/tasks/keywords.py",
     "values[owners[keyword]][keyword] = keywords.pop(keyword)", "keywords.pop(keyword)",
     "tests/tasks/test_keywords.py::test_keywords_become_options_and_errors_name_them"),
    ("contradiction counts as entailment", "mlxbert/tasks/zero_shot.py", "_softmax(pair)[0]", "_softmax(pair)[1]",
     "tests/tasks/test_zero_shot.py::test_several_labels_are_each_judged_against_contradiction"),
    ("the hypothesis is truncated with the text", "mlxbert/text/tokenizer.py", "[first.slice(0, room), second]",
     "[first.slice(0, room + 1), second.slice(1, len(second))]",
     "tests/tasks/test_zero_shot.py::test_only_the_text_is_truncated"),
    ("a token is judged at the edge of a window", "mlxbert/text/window_stitching.py", "context > best[position][0]",
     "context < best[position][0]",
     "tests/text/test_blocks.py::test_every_token_once_in_order_and_where_it_has_most_context"),
    ("offsets count from the beginning of a block", "mlxbert/text/token_blocks.py",
     "offsets = [(start + first, start + last)", "offsets = [(first, last)",
     "tests/text/test_blocks.py::test_they_are_those_of_the_whole_text"),
    ("a CRF counts padding", "mlxbert/nn/crf.py", "paths = mx.where(words[:, word : word + 1], longer, paths)",
     "paths = longer", "tests/nn/test_crf.py::test_padding_and_empty_rows_change_nothing"),
    ("a CRF's transitions are transposed", "mlxbert/nn/crf.py", "start + wide[:, 0], transitions.T",
     "start + wide[:, 0], transitions", "tests/nn/test_crf.py::test_loss_and_gradients_are_those_over_all_paths"),
    ("RoBERTa's positions start at 0", "weights/families/roberta.py", "config_reader.absolute(config, pad + 1)",
     "config_reader.absolute(config)",
     "tests/nn/test_parity_goldens.py::test_embeddings_are_those_made_by_hand[roberta]"),
    ("segment 0 is not added when there are no segment ids", "mlxbert/nn/encoder.py", "            return table[0]",
     "            return 0 * table[0]",
     "tests/nn/test_parity_goldens.py::test_embeddings_are_those_made_by_hand[bert]"),
    ("the second text of a pair has segment 0", "weights/tokenizers/tokenizer_classes.py", '["$B:1", f"{last[0]}:1"]',
     '["$B:0", f"{last[0]}:0"]', "tests/text/test_tokenizer.py::test_a_pair_has_segments_and_both_separators"),
    ("the post-processor of a file comes before that of the class", "weights/tokenizers/tokenizer_classes.py",
     '_BERT = Ends("cls", "sep", "segments")', '_BERT = Ends("cls", "sep", "segments", used="missing")',
     "tests/weights/tokenizers/test_ends.py::test_a_class_replaces_the_special_tokens_of_a_file[BertTokenizer-True]"),
    ("masked scores are -inf", "mlxbert/cpu/mlx_kernels.py", "MASKED = -1e30", "MASKED = -math.inf",
     "tests/cpu/test_kernels.py::test_a_row_that_may_see_nothing_gives_no_nan"),
    ("a query without any key has weights of 0 / 0", "mlxbert/cpu/numpy_attention.py",
     "if not (inputs.plain and bounded):", "if not bounded:",
     "tests/cpu/test_vectorized.py::test_attention_is_that_of_the_kernels_in_blocks_of_any_size"),
    ("gelu_new is computed as gelu", "mlxbert/nn/activations.py", '"gelu_new": gelu_tanh', '"gelu_new": gelu',
     "tests/nn/test_parity_goldens.py::test_activations_equal_those_of_transformers[gelu_new]"),
    ("layer_norm_eps is ignored", "mlxbert/nn/norms.py", "eps=config.layer_norm_eps, bias", "bias",
     "tests/nn/test_parity_goldens.py::test_layer_norm_eps_reaches_every_norm[bert-ForPreTraining]"),
    ("RoBERTa's masked-LM head follows hidden_act", "weights/families/roberta.py", "heads=config_reader.heads(",
     'heads={"masked_lm": masked_lm.MaskedLMFacts(Transform(config.string("hidden_act"), norm=True))}'
     "| config_reader.heads(",
     f"{_GOLDENS}[roberta, other activation ForMaskedLM-float32]"),
    ("RoBERTa's classifier has gelu", "weights/families/roberta.py", 'Transform("tanh")', 'Transform("gelu")',
     f"{_GOLDENS}[roberta ForSequenceClassification-float32]"),
    ("the bias of the decoder is not added", "mlxbert/nn/heads/masked_lm.py",
     'logits + self.bias if "bias" in self else logits', "logits",
     f"{_GOLDENS}[bert ForPreTraining-float32]"),
    ("class 1 means that the second text follows", "mlxbert/tasks/next_sentence.py", "scores[:, 0]", "scores[:, 1]",
     "tests/tasks/test_next_sentence.py::test_the_score_is_the_share_of_class_zero"),
    ("ids that are not in the vocabulary are accepted", "mlxbert/nn/encoder.py",
     "if not 0 <= low <= high < rows:", "if False:",
     "tests/nn/test_encoder.py::test_batches_from_outside_are_checked"),
    ("gamma and beta are unknown", "weights/families/tensor_names.py",
     '{r"\\.gamma$": ".weight", r"\\.beta$": ".bias"}',
     "{}", "tests/weights/test_checkpoint.py::test_every_spelling_of_the_names_loads_the_same_weights[old]"),
    ("the prefix of names is not removed", "weights/checkpoint.py", "name = name.removeprefix(prefix)", "pass",
     "tests/weights/test_checkpoint.py::test_every_spelling_of_the_names_loads_the_same_weights[prefix]"),
    ("the buffer of position ids is taken for a weight", "weights/families/tensor_names.py",
     "(position_ids|token_type_ids)", "(token_type_ids)",
     "tests/weights/test_checkpoint.py::test_buffers_and_heads_of_other_tasks_are_listed_as_not_used"),
    ("unknown tensors are skipped", "weights/checkpoint.py", "    if unknown:\n", "    if False:\n",
     "tests/weights/test_checkpoint.py::test_what_does_not_fit_is_refused_by_name"),
    ("a vector classifier is where transformers finds its encoder", "mlxbert/folders/copied_files.py",
     "return inner or ENCODER", "return inner", "tests/train/test_few_shot.py::test_what_is_written"),
    ("the labels of a vector classifier are those of another head", "mlxbert/labels/labels.py",
     '"id2label": None if of_vectors else {', '"id2label": {', "tests/train/test_few_shot.py::test_what_is_written"),
    ("a head that is not there is claimed", "weights/save.py",
     "changed |= _without_claims(architecture, changed)", "pass",
     "tests/folders/test_save.py::test_a_head_that_is_not_there_is_not_claimed"),
    ("a decoder of its own is ignored", "weights/build.py", "if not differ:", "if True:",
     "tests/weights/test_checkpoint.py::test_a_decoder_that_differs_is_run"),
    ("queries and keys are swapped", "weights/families/tensor_names.py",
     '"attention.self.query"),\n    same("attention.key", "attention.self.key")',
     '"attention.self.key"),\n    same("attention.key", "attention.self.query")',
     f"{_GOLDENS}[bert ForPreTraining-float32]"),
    ("a fused matrix is split in the wrong order", "weights/families/keymap.py", "mx.split(arrays[0], count, axis=0)",
     "mx.split(arrays[0], count, axis=0)[::-1]",
     f"{_GOLDENS}[modernbert ForMaskedLM-float32]"),
    ("TensorFlow's kernels are not transposed", "mlxbert/export/tensorflow/reader.py",
     "array.T if is_transposed(name) else array", "array",
     "tests/export/test_tensorflow.py::test_names_shapes_and_numbers_are_those_of_the_model"),
    ("the offsets of quantized groups are ignored", "weights/formats/quantized.py",
     "mx.dequantize(packed, scales, biases,", "mx.dequantize(packed, scales, 0 * biases,",
     "tests/export/test_quantized.py::test_other_widths_are_read"),
    ("errors of quantized columns are not made up for", "weights/formats/rounding.py",
     "rest[:, j:end] -= np.outer(error, factor[j, j:end])", "rest[:, j] = 0",
     "tests/export/test_quantized.py::test_4_bits_are_rounded_for_the_inputs"),
    ("a quantized model agrees whatever it computes", "mlxbert/export/compare/outputs.py",
     "if not share >= least:", "if share < 0:",
     "tests/export/test_verify.py::test_what_is_kept_is_judged_by_use"),
    ("numbers too large for float16 are written as infinity", "weights/save.py",
     "if overflows.any().item():", "if False:",
     "tests/export/test_convert.py::test_a_number_that_float16_does_not_hold_is_refused"),
    ("quotes at the ends of a text in a .tsv are dropped", "mlxbert/readers/delimited.py",
     "return all(writer(field) == enclosed for field, enclosed in fields)", "return True",
     "tests/readers/test_records.py::test_quotes_that_no_program_would_write_are_part_of_the_text"),
    ("a longer text is truncated silently", "mlxbert/text/tokenizer.py", 'overflow: str = "error") -> Encoding:',
     'overflow: str = "truncate") -> Encoding:',
     "tests/text/test_tokenizer.py::test_a_text_of_exactly_the_longest_length_fits_and_one_token_more_does_not"),
    ("offsets end one character early", "mlxbert/text/tokenizer.py", "offsets = encoded.offsets",
     "offsets = [(start, end - 1) for start, end in encoded.offsets]",
     "tests/text/test_tokenizer.py::test_offsets_count_code_points"),
    ("windows do not overlap", "mlxbert/text/tokenizer.py", "room - stride)", "room)",
     "tests/text/test_tokenizer.py::test_windows_cover_every_token_and_overlap_by_the_stride"),
    ("a filled mask replaces the space before it", "mlxbert/tasks/fill_mask.py",
     "start + len(span) - len(span.lstrip())", "start",
     "tests/tasks/test_fill_mask.py::test_a_mask_whose_offsets_include_spaces_does_not_include_them"),
    ("the results of a batch lose their order", "mlxbert/tasks/runner.py", "zip(group, self._computed(number)",
     "zip(sorted(group), self._computed(number)",
     "tests/tasks/test_runner.py::test_results_come_in_the_order_of_the_inputs"),
    ("the halves of a batch that is too large change places", "mlxbert/tasks/runner.py",
     "[items[:middle], items[middle:]]",
     "[items[middle:], items[:middle]]",
     "tests/tasks/test_runner.py::test_halves_until_they_fit"),
    ("a batch waits until the one in front of it is read", "mlxbert/tasks/runner.py", "self.start_ahead(number + 1)",
     "pass", "tests/tasks/test_runner.py::test_a_gpu_has_the_next_batch_before_one_is_read"),
    ("a window waits until the one in front of it is read", "mlxbert/tasks/runner.py", "(more and on_gpu())", "0",
     "tests/tasks/test_runner.py::test_a_gpu_has_the_next_window_before_one_is_read"),
    ("rows that are padding have outputs", "mlxbert/tasks/runner.py", "array[: len(group)]", "array",
     "tests/tasks/test_runner.py::test_a_gpu_gets_rows_of_padding_whose_outputs_nobody_sees"),
    ("parts of an output do not end with windows", "cli/session.py", "out.end_part()", "pass",
     "tests/cli/test_output.py::test_a_run_resumes_with_the_windows_that_are_left"),
    ("the first window of a file is smaller than those of a resumed run", "mlxbert/tasks/runner.py",
     "not items.waited_for", "False",
     "tests/tasks/test_runner.py::test_results_in_a_file_have_windows_of_one_size"),
    ("progress counts records that have no result yet", "mlxbert/readers/stream.py",
     "record, self.finished, self.window_ends = self._waiting.popleft()",
     "record, self.finished = self._waiting.popleft()[0], self.done",
     "tests/cli/test_progress.py::test_what_is_read_ahead_is_not_done"),
    ("all files are read before the first one is embedded", "mlxbert/search/index_writer.py", "if count >= size or (",
     "if (", "tests/search/test_index.py::test_files_are_read_and_embedded_alternately[1-9.0-sriEsriEsriE]"),
    ("an assistant finds files that are gone", "mlxbert/search/mcp.py", "path is None or lexists(path)", "True",
     "tests/search/test_mcp.py::test_what_is_gone_is_neither_found_nor_read_nor_listed"),
    ("lists of tokens keep vectors that are removed", "mlxbert/search/sparse_vectors.py",
     'before[~np.isin(before["vector"], changed)]', "before",
     "tests/search/test_text_vectors.py::test_scores_are_exact_after_every_change"),
    ("answers of passages are compared by their share of one passage", "mlxbert/search/answers.py",
     "math.log(max(answer.score, _TINY)) - math.log(max(answer.no_answer_score, _TINY))", "answer.score",
     "tests/search/test_index.py::test_the_passage_that_is_surest_has_the_answer"),
    ("documents go into an index as they were read", "mlxbert/search/index_writer.py", "in map(_cleaned, documents)",
     "in documents", "tests/search/test_index.py::test_what_no_database_stores_is_replaced_in_files"),
    ("a window of a GPU has any number of characters", "mlxbert/readers/stream.py", "total >= most",
     "False", "tests/readers/test_stream.py::test_larger_windows_hold_no_more_text_than_usual_ones"),
    ("ids of batches are not checked", "mlxbert/text/batch.py", "ids.check(config)", "pass",
     "tests/text/test_batch.py::test_ids_that_are_not_in_the_vocabulary_make_no_batch"),
    ("the mean includes padding", "mlxbert/nn/pooling.py", "/ mx.maximum(real.sum(axis=1), 1)",
     "/ hidden.shape[1]", "tests/nn/test_pooling.py::test_pooling_is_what_its_name_says"),
    ("the maximum includes zeros for padding", "mlxbert/nn/pooling.py", "mx.where(real > 0, hidden, -mx.inf)",
     "(hidden * real)", "tests/nn/test_pooling.py::test_pooling_is_what_its_name_says"),
    ("every model is mean-pooled", "weights/sentence_transformers.py", "replace(config, poolings=poolings, ",
     "replace(config, ", "tests/weights/test_sentence_transformers.py::test_settings_of_the_model_are_read"),
    ("NaN is returned as a score", "mlxbert/tasks/task.py", "if not finite:", "if False:",
     "tests/tasks/test_fill_mask.py::test_scores_that_are_no_numbers_are_an_error"),
    ("a half-written folder looks finished", "mlxbert/export/convert.py",
     "save.write_config(checkpoint, view / inner,", "save.write_config(checkpoint, partial / inner,",
     "tests/export/test_convert.py::test_nothing_looks_finished_while_it_is_measured"),
    ("the parts of another run are resumed", "mlxbert/resumable_folder.py", "if message is not None and not overwrite:",
     "if False:", "tests/cli/test_resumable_file.py::test_the_work_of_another_command_is_refused_and_kept"),
    ("a device is replaced by a file", "mlxbert/paths.py", "if not stat.S_ISREG(mode):", "if stat.S_ISLNK(mode):",
     "tests/test_files.py::test_a_fifo_is_neither_replaced_nor_waited_for"),
    ("a link that has come into a folder is followed", "mlxbert/search/file_walk.py",
     "_FOLDER | os.O_NOFOLLOW", "_FOLDER",
     "tests/search/test_walk.py::test_a_folder_that_becomes_a_link_is_not_followed"),
    ("an option does not say that its path is written", "mlxbert/train/command_options.py",
     'OutputPath("file")] = None\n    tensorboard', '] = None\n    tensorboard',
     "tests/whole/test_written_paths.py::test_every_option_of_a_path_says_whether_it_is_written"),
    ("a document type in a .docx is accepted", "mlxbert/search/documents/office.py",
     "parser.StartElementHandler = declared, begun", "parser.StartElementHandler = None, begun",
     "tests/search/documents/test_documents.py::test_a_part_of_word_with_a_document_type_is_refused_in_any_encoding"),
    ("a part of an archive with a document type is parsed", "mlxbert/search/documents/office.py",
     "if _declares_type(archive, archive.NameToInfo[name]):", "if False:",
     "tests/search/documents/test_office.py::test_a_document_type_is_refused"),
    ("a missing slide is not said", "mlxbert/search/documents/office.py", "if reason:", "if False:",
     "tests/search/documents/test_office.py::test_slides"),
    ("an attached message is left out", "mlxbert/search/documents/mail.py",
     'if kind in ("message/rfc822", "message/global") and parts:', "if False:",
     "tests/search/documents/test_documents.py::test_an_attached_message_is_a_document_of_its_own"),
    ("long words are taken for data", "mlxbert/search/documents/embedded_data.py",
     "sum(map(len, stretches)) < _MAX_STRETCH * len(stretches)", "True",
     "tests/search/documents/test_documents.py::test_long_words_addresses_and_hashes_stay"),
    ("a damaged byte changes the encoding of a text", "mlxbert/search/documents/encodings.py",
     "return 2 * decoded.text.count", "return len(decoded.text) < decoded.text.count",
     "tests/search/documents/test_documents.py::test_one_damaged_byte_costs_one_character"),
    ("a damaged file is used", "mlxbert/durable_files.py", "(actual := sha256(path, size)) != digest",
     "not (actual := sha256(path, size))", "tests/train/test_resume.py::test_damage_never_gives_another_result"),
    ("tasks compute with dropout", "mlxbert/tasks/task.py", "    network.eval()\n", "    pass\n",
     "tests/tasks/test_task.py::test_tasks_compute_in_evaluation_mode[embed]"),
    ("NeoBERT's pairs are halves in its files, too", "weights/families/keymap.py",
     "parts = [heads[:, 0].swapaxes(1, 2), heads[:, 1].swapaxes(1, 2), heads[:, 2]]",
     "parts = [heads[:, 0], heads[:, 1], heads[:, 2]]", f"{_GOLDENS}[neobert ForMaskedLM-float32]"),
    ("NeoBERT's values are paired, too", "weights/families/keymap.py", "heads[:, 2]]",
     "heads[:, 2].swapaxes(1, 2)]", f"{_GOLDENS}[neobert ForMaskedLM-float32]"),
    ("NeoBERT's queries, keys and values are stacked", "weights/families/keymap.py",
     "heads = arrays[0].reshape(-1, 3, head_size // 2, 2, *arrays[0].shape[1:])",
     "heads = arrays[0].reshape(3, -1, head_size // 2, 2, *arrays[0].shape[1:]).swapaxes(0, 1)",
     f"{_GOLDENS}[neobert ForMaskedLM-float32]"),
    ("pairs are saved as halves", "weights/families/keymap.py",
     "mx.stack([q.swapaxes(1, 2), k.swapaxes(1, 2),",
     "mx.stack([q.reshape(v.shape[0], -1, 2, *q.shape[3:]), k.swapaxes(1, 2),",
     "tests/weights/test_traps_names.py::test_what_was_loaded_is_saved_as_it_was[neobert-ForMaskedLM]"),
    ("adapters have rows in our order", "mlxbert/train/lora_adapters.py", "target.operation.save(rows, 1, head_size)",
     "[mx.concatenate(rows)]",
     "tests/train/test_adapter_live.py::test_loss_and_gradients_are_those_of_peft[lora-neobert]"),
    ("NeoBERT's feed-forward is as wide as the file states", "weights/families/neobert.py",
     'intermediate_size=-(-(2 * config.integer("intermediate_size") // 3) // _MULTIPLE) * _MULTIPLE',
     'intermediate_size=config.integer("intermediate_size")',
     "tests/weights/test_families.py::test_neobert_as_it_was_published"),
    ("NeoBERT's value gates", "weights/families/neobert.py", '("feed_forward.gate", "feed_forward.up")',
     '("feed_forward.up", "feed_forward.gate")', f"{_GOLDENS}[neobert ForMaskedLM-float32]"),
    ("NeoBERT's decoder is the word embeddings", "weights/families/neobert.py",
     "masked_lm.MaskedLMFacts(None, tied=False)",
     "masked_lm.MaskedLMFacts(None)", f"{_GOLDENS}[neobert ForMaskedLM-float32]"),
    ("NeoBERT's classifier has gelu", "weights/families/neobert.py", 'Transform("tanh")', 'Transform("gelu")',
     f"{_GOLDENS}[neobert ForSequenceClassification-float32]"),
    ("Jina's BERT is read as BERT", "weights/families/jina_v2.py", '"position_embedding_type") == "alibi"',
     '"position_embedding_type") == "rotary"', f"{_GOLDENS}[jina-v2 ForTokenClassification-float32]"),
    ("the second form of Jina's BERT is read as the first", "weights/families/jina_v2.py",
     '"mlp.up_gated_layer." in name', '"mlp.gated_layers." in name',
     f"{_GOLDENS}[jina-v2, normed ForSequenceClassification-float32]"),
    ("the gate of Jina's BERT comes second", "weights/families/jina_v2.py",
     'split(("feed_forward.gate", "feed_forward.up"), "mlp.gated_layers")',
     'split(("feed_forward.up", "feed_forward.gate"), "mlp.gated_layers")',
     f"{_GOLDENS}[jina-v2 ForTokenClassification-float32]"),
    ("the gate of its second form comes first", "weights/families/jina_v2.py",
     'split(("feed_forward.up", "feed_forward.gate"), "mlp.up_gated_layer")',
     'split(("feed_forward.gate", "feed_forward.up"), "mlp.up_gated_layer")',
     f"{_GOLDENS}[jina-v2, normed ForSequenceClassification-float32]"),
    ("its second form adds the input once", "mlxbert/nn/blocks.py", "self.second_attention_norm(x + normed)",
     "self.second_attention_norm(normed)", f"{_GOLDENS}[jina-v2, normed ForSequenceClassification-float32]"),
    ("its queries are normed by heads", "weights/families/jina_v2.py", 'query_key_norm="all"', 'query_key_norm="head"',
     f"{_GOLDENS}[jina-v2, normed ForSequenceClassification-float32]"),
    ("its feed-forward follows hidden_act", "weights/families/jina_v2.py",
     '_GATES[config.choice("feed_forward_type", _GATES)]', 'read.activation(config, "hidden_act", "gelu")',
     f"{_GOLDENS}[jina-v2, normed ForSequenceClassification-float32]"),
    ("slopes between are taken in order", "mlxbert/nn/positions.py", "for head in range(0, 2 * power, 2)]",
     "for head in range(2 * power)]", "tests/nn/test_parity_goldens.py::test_the_slopes_of_alibi"),
    ("slopes raise the scores", "mlxbert/nn/backend.py", "(-slopes[:, None, None] * distances)",
     "(slopes[:, None, None] * distances)", f"{_GOLDENS}[jina-v2 ForTokenClassification-float32]"),
    ("DistilBERT has dropout after its attention", "weights/families/distilbert.py",
     "replace(dropout, attention_output=None)", "dropout",
     "tests/nn/test_dropout.py::test_every_family_has_its_own_places_and_rates"),
    ("AdamW without bias correction", "mlxbert/train/loop/optimizer_steps.py",
     "(1 - beta) / (1 - beta**updates) for beta in BETAS", "(1 - beta) for beta in BETAS",
     "tests/train/test_optimizer.py::test_updates_are_those_of_the_paper"),
    ("biases decay, too", "mlxbert/train/loop/trained_parameters.py", "if array.ndim > 1 and name != biases",
     "if name != biases", "tests/train/test_optimizer.py::test_updates_are_those_of_the_paper"),
    ("the weight of the last part alone divides the sums", "mlxbert/train/loop/gradients.py",
     "first.loss + second.loss, first.weight + second.weight", "first.loss + second.loss, second.weight",
     "tests/train/test_loop.py::test_accumulated_batches_are_one_batch"),
    ("padding competes for the ends of an answer", "mlxbert/train/objectives/answer.py",
     "if batch.inputs.attention_mask is not None:", "if False:",
     "tests/train/test_answer_objective.py::test_the_loss_is_the_mean_cross_entropy_of_both_ends_without_padding"),
    ("no answer does not compete with spans", "mlxbert/text/answer_spans.py",
     "[[0, *inside]]", "[[inside[0], *inside]]",
     "tests/text/test_spans.py::test_the_best_spans_are_those_of_all[0]"),
    ("results of a request may take any memory", "mlxbert/serve/engine/tokenizing.py",
     "request.size > request.budget.room.max_bytes", "request.size < 0",
     "tests/serve/test_answers.py::test_what_multiplies_is_refused_before_it_is_computed"),
    ("a route leaves out the options of a request", "mlxbert/serve/protocols/mlxbert_api.py",
     "entry.options(**{name: getattr(body, name) for name in deciding_options(entry.options)})", "entry.options()",
     "tests/serve/test_own.py::test_a_bad_text_is_an_error_or_stands_in_its_place"),
    ("a model with other files is taken for the one that was loaded", "mlxbert/serve/engine/model_thread.py",
     "if current == before:", "if True:",
     "tests/serve/test_engine.py::test_a_model_with_other_files_is_not_taken_for_the_one_that_was_loaded"),
    ("special tokens are hidden, too", "mlxbert/train/pretraining/examples.py", "~np.isin(ids, self.frame.special)",
     "np.ones(len(ids), bool)", "tests/train/pretraining/test_chunks.py::test_shares_of_hidden_tokens"),
    ("the labels of pairs are swapped", "mlxbert/train/pretraining/examples.py", "OTHER = 1 ", "OTHER = 0 ",
     "tests/train/pretraining/test_chunks.py::test_half_of_the_second_texts_are_from_another_document_or_swapped"),
    ("the discriminator's loss counts padding", "mlxbert/train/pretraining/electra_pretraining.py",
     "inputs.replaced) * inputs.real).sum()", "inputs.replaced)).sum()",
     "tests/train/pretraining/test_electra.py::test_parts_of_a_batch_add_up_and_samples_give_no_gradient"),
    ("every epoch has the same order", "mlxbert/train/loop/data_order.py",
     'f"order {seed} {epoch}"', 'f"order {seed}"',
     "tests/train/test_optimizer.py::test_the_order_depends_on_seed_and_epoch_alone"),
    ("the model of the plan is loaded again for the run", "mlxbert/train/training_plan.py",
     "if model is None or seed != self._seed:", "if True:",
     "tests/train/test_finetune.py::test_the_base_is_opened_once_and_one_network_is_in_memory[1-2]"),
    ("a resumed run forgets the optimizer", "mlxbert/train/loop/saved_run.py",
     'AdamW(parts["means"], parts["squares"])', 'AdamW.new(parts["parameters"])',
     "tests/train/test_loop.py::test_a_resumed_run_has_the_same_bits"),
    ("a duplicate of the positive is a negative", "mlxbert/train/objectives/vector_objective.py",
     "return (same | equals) & ~np.eye(", "return equals & ~np.eye(",
     "tests/train/test_embed_objective.py::test_duplicates_in_a_batch_are_no_negatives"),
    ("each part of a batch has the gradient of the first", "mlxbert/train/loop/gradients.py",
     "starts = [sum(rows[:number]) for number in local]", "starts = [0 for number in local]",
     "tests/train/test_embed_objective.py::test_parts_of_a_batch_give_the_gradients_of_the_whole"),
    ("a clock is read while torch's GPU still computes", "mlxbert/doctor/training_steps.py",
     "        wait_for(device)  # a GPU still computes the update\n", "",
     "tests/doctor/test_bench.py::test_a_gpu_has_nothing_left_to_compute_when_a_clock_is_read"),
    ("torch rounds float32 products to TF32", "mlxbert/doctor/torch_peer.py",
     "    match_precision(torch, tf32=job.tf32)\n", "",
     "tests/doctor/test_bench.py::test_model_and_inputs_are_on_the_gpu_in_the_dtype_of_mlxbert"),
    ("a GPU's update swaps the moments", "mlxbert/train/loop/optimizer_steps.py",
     "arrays = parameter, gradients.arrays[name], optimizer.means[name], optimizer.squares[name]",
     "arrays = parameter, gradients.arrays[name], optimizer.squares[name], optimizer.means[name]",
     "tests/train/test_step.py::test_updates_are_those_of_a_cpu"),
    ("the norm of the gradients leaves the last sixteen out", "mlxbert/train/loop/optimizer_steps.py",
     "for start in range(0, len(filled), _TERMS)])", "for start in range(0, len(filled) - _TERMS or 1, _TERMS)])",
     "tests/train/test_optimizer.py::test_the_norm_is_that_of_all_gradients"),
    ("the norm of the gradients is one kernel of all arrays", "mlxbert/train/loop/optimizer_steps.py",
     "_TERMS = 16  # number of terms that one kernel sums up", "_TERMS = 64  # of a sum in one kernel",
     "tests/nn/test_metal_graphs.py::test_nor_has_the_graph_of_a_deeper_model"),
    ("a GPU gives up the state before an update that is not computed", "mlxbert/train/loop/updater.py",
     "            parameters, optimizer = self.started[0].before\n"
     "            self.state = replace(self.state, parameters=parameters, optimizer=optimizer)\n",
     "            pass\n",
     "tests/train/test_loop.py::test_the_state_before_an_update_that_was_not_computed_is_saved"),
    ("the masks of a GPU's backward pass are others", "mlxbert/nn/fused_kernels.py",
     "return _dropped(cotangent, words, least, factor),", "return _dropped(cotangent, words, least + 1000, factor),",
     "tests/nn/test_gpu.py::test_dropout"),
    ("a GPU's softmax forgets the mean in the backward pass", "mlxbert/nn/fused_kernels.py",
     "return _from_mean(weights, cotangent, mean)", "return _from_mean(weights, cotangent, mean * 0)",
     "tests/nn/test_gpu.py::test_a_softmax"),
    ("a GPU's layers drop the gradient of the bias", "mlxbert/nn/fused_kernels.py",
     "[_column_sums(up).astype(bias.dtype) for bias in biases]", "[0 * bias for bias in biases]",
     "tests/nn/test_gpu.py::test_a_dense_layer"),
    ("experts see an axis that was inserted", "mlxbert/nn/backend.py",
     "rows = tokens.reshape(-1, 1, tokens.shape[-1]).astype(dtype)",
     "rows = tokens[:, None].astype(dtype)",
     "tests/nn/test_metal_graphs.py::test_metal_computes_each_graph_with_few_kernels[nomic-moe-ForMaskedLM-float32]"),
    ("the state before an update is given up when its loss is known", "mlxbert/train/loop/updater.py",
     "mx.eval(numbers, parameters, optimizer.means, optimizer.squares)", "mx.eval(numbers)",
     "tests/train/test_step.py::test_an_update_is_waited_for_while_the_next_gradients_are_computed"),
    ("what macOS forbids is called a mistake in the path", "cli/app.py", "hint = PRIVACY", "pass",
     "tests/search/test_places.py::test_what_macos_forbids_to_read_is_said[True-1-True]"),
    ("a request that offers HTTP/2 has no body", "mlxbert/serve/http/connection.py",
     'headers = [b"%b: %b" % header for header in self._headers if header[0] != b"upgrade"]', "return data[:0]",
     "tests/serve/test_requests.py::test_an_offer_of_another_protocol_changes_nothing"),
    ("trailers are headers", "mlxbert/serve/http/connection.py",
     "self._headers = []  # for trailers", "pass  # for trailers",
     "tests/serve/test_requests.py::test_trailers_are_not_headers"),
    ("a transfer coding is ignored", "mlxbert/serve/http/connection.py", 'not in ([], [b"chunked"])', "is None",
     "tests/serve/test_requests.py::test_a_request_of_which_others_may_read_another_length_is_refused"),
    ("a client that leaves keeps its request", "mlxbert/serve/http/connection.py",
     "self._task.cancel()", "pass",
     "tests/serve/test_requests.py::test_a_client_that_leaves_ends_its_request"),
    ("every name of a field is compared", "mlxbert/serve/json_bodies.py",
     "if len(names) > _MAX_FIELDS:", "if False:",
     "tests/serve/test_bodies.py::test_a_thousand_fields_are_compared_with_those_of_the_route_and_no_more"),
    ("a dot of an allowed origin is any character", "mlxbert/serve/http/request_guards.py",
     "re.escape(host).replace", 'host.replace("*", r"\\*").replace',
     "tests/serve/test_access.py::test_a_star_in_an_origin_stands_for_ports_hosts_and_names_below_a_domain"),
    ("texts are ranked by their probabilities", "mlxbert/tasks/query_ranking.py", "entry = (first.order, -index,",
     "entry = (first.score, -index,",
     "tests/tasks/test_rerank.py::test_texts_are_ranked_by_what_their_equal_probabilities_are_made_of[40.0-1.0]"),
    ("the pages of an index have no checksums", "mlxbert/search/sqlite.py",
     'self._connection.reserve_bytes("main", CHECKSUM)', "pass",
     "tests/search/test_store.py::test_no_byte_of_the_header_ends_the_checks"),
    ("a damage ends the checks of an index", "mlxbert/search/schema.py",
     'if _pragma(connection, "checksum_verification") != 1:', "if False:",
     "tests/search/test_store.py::test_no_byte_of_the_header_ends_the_checks"),
    ("marks of all scripts are removed", "mlxbert/search/folding.py", "(?<=[{_BASE}])", "",
     "tests/search/test_word_search.py::test_words_are_found_in_any_case_with_and_without_marks[Thai]"),
    ("the words of a span are as far apart as one likes", "mlxbert/search/word_search.py", 
     "while place - places[first][0] >= SPAN:", "while False:",
     "tests/search/test_word_search.py::test_words_that_stand_together_are_closer_than_scattered_ones"),
    ("a short stem has any ending", "mlxbert/search/word_search.py",
     '(6, {"", "e",', '(4, {"", "e",',
     "tests/search/test_word_search.py::test_other_words_do_not_count"),
    ("chunks found by words have no similarity", "mlxbert/search/rank_fusion.py", 
     "self._similarities |= self._store.similarities(self._vector, others)",
     "self._similarities |= dict.fromkeys(others, 0.0)",
     "tests/search/test_index.py::test_the_score_of_a_passage_does_not_depend_on_the_number_of_hits"),
    ("a single character is a whole word", "mlxbert/search/word_search.py", 'f"{words[-1]}*")', "words[-1])",
     "tests/search/test_word_search.py::test_words_are_found_in_any_case_with_and_without_marks[Chinese]"),
    ("documents without a chunk are not reported", "mlxbert/search/index_writer.py",
     "problems.add(document.place, _NO_TEXT if empty else _NO_TOKENS)", "pass",
     "tests/search/test_index.py::test_everything_that_was_left_out_or_guessed_is_a_problem"),
    ("a table to search has commas", "mlxbert/search/documents/table_documents.py",
     'if format is FormatName.csv else ","', 'if False else ","',
     "tests/search/documents/test_documents.py::test_a_separator_other_than_a_comma_is_guessed"),
    ("equal scores stand in the order of updates", "mlxbert/search/sqlite.py",
     """_PLACE = "files.path, CASE files.path WHEN x'' THEN place END, chunks.id\"""", """_PLACE = "chunks.id\"""",
     "tests/search/test_index.py::test_an_updated_index_ranks_as_a_new_one"),
    ("conditions are looked at for each chunk", "mlxbert/search/sqlite.py",
     '_DOCUMENTS = "files CROSS JOIN', '_DOCUMENTS = "files JOIN',
     "tests/search/test_store.py::test_a_condition_is_looked_at_once_for_each_file"),
    ("a request that is cancelled just now counts as failed", "mlxbert/serve/engine/engine_state.py",
     "if request.over:  # if it was cancelled", "if not request.unfinished:  # if it was cancelled",
     "tests/serve/test_engine.py::test_a_request_that_is_cancelled_just_now_has_not_failed"),
    ("a request with long headers is answered and refused", "mlxbert/serve/http/connection.py",
     "if self._spare < 0:\n            self._refuse", "if False:\n            self._refuse",
     "tests/serve/test_requests.py::test_a_request_with_headers_of_any_length_gets_one_answer[72000]"),
    ("a model on a disk that is not there is forgotten", "mlxbert/folders/written_models.py",
     "if not unmounted:", "if True:",
     "tests/export/commands/test_written_models.py::test_a_model_on_a_disk_that_is_not_there_is_not_forgotten"),
    ("the answer no comes before yes in a GGUF file", "mlxbert/export/gguf/tensor_table.py",
     "[self._read(name), mx.zeros((1, width))]", "[mx.zeros((1, width)), self._read(name)]",
     "tests/export/test_gguf.py::test_the_second_row_of_a_reranker_is_zero"),
    ("the positions in a GGUF file begin with those of padding", "mlxbert/export/gguf/tensor_table.py",
     "self._read(name)[first:]", "self._read(name)[: rows - first]",
     "tests/export/test_gguf.py::test_what_is_computed_from_our_tensors[bert, counted]"),
    ("a softmax in ONNX runs over the queries", "mlxbert/export/onnx/onnx_operators.py",
     "w.first(op), axis=-1)", "w.first(op), axis=-2)",
     "tests/export/test_onnx.py::test_outputs_equal_those_of_the_model"),
))
# fmt: on


def run(folder: Path, *tests: str) -> subprocess.CompletedProcess[str]:
    """Runs tests in a copy of the source, up to the first failure."""
    options = ["-x", "-q", "--no-header", "--tb=no", "-p", "no:cacheprovider", "-m", "", "-n0"]
    command = [sys.executable, "-B", "-m", "pytest", *options, *tests]
    environment = {**os.environ, "PYTHONPATH": str(folder)}
    return subprocess.run(command, cwd=folder, capture_output=True, text=True, env=environment, check=False)


def check(mutation: Mutation, folder: Path) -> tuple[bool, str]:
    """Returns whether the mistake goes unnoticed, and the output of the tests."""
    path = folder / mutation.file
    original = path.read_text(encoding="utf-8")
    assert original.count(mutation.old) == 1, f"{mutation.name}: {mutation.file} must contain {mutation.old!r} once"
    path.write_text(original.replace(mutation.old, mutation.new), encoding="utf-8")
    try:
        done = run(folder, mutation.test)
    finally:
        path.write_text(original, encoding="utf-8")
    failed = re.search(r"^(?:FAILED|ERROR) (\S+::.*?)(?: - .*)?$", done.stdout, flags=re.MULTILINE)
    if done.returncode == 1 and failed:  # 2 to 5: pytest itself could not run
        return False, failed[1]
    if re.search(r"\d skipped", done.stdout) and not re.search(r"\d (?:passed|failed|error)", done.stdout):
        return False, f"skipped on this machine: {mutation.test}"
    return True, f"NOT CAUGHT\n{done.stdout}{done.stderr}"


def main() -> int:
    """Prints a line per mistake; returns the number of mistakes that went unnoticed."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("names", nargs="*")
    names = parser.parse_args().names
    chosen = [mutation for mutation in MUTATIONS if not names or mutation.name in names]
    workers = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    folders: queue.Queue[Path] = queue.Queue()

    def timed(mutation: Mutation) -> bool:
        folder, start = folders.get(), time.monotonic()
        missed, message = check(mutation, folder)
        folders.put(folder)
        print(f"{time.monotonic() - start:5.1f} s  {mutation.name}: {message}", flush=True)
        return missed

    with tempfile.TemporaryDirectory() as temporary, ThreadPoolExecutor(workers + 1) as threads:
        for number in range(workers + 1):
            for name in COPIED:
                source, target = ROOT / name, Path(temporary, str(number), name)
                target.parent.mkdir(exist_ok=True)
                if source.is_dir():
                    shutil.copytree(source, target, symlinks=True, ignore=shutil.ignore_patterns("__pycache__"))
                else:
                    shutil.copy(source, target)
            folders.put(target.parent)
        unchanged = threads.submit(run, folders.get(), *dict.fromkeys(mutation.test for mutation in chosen))
        missed = sum(threads.map(timed, chosen))
        if unchanged.result().returncode:
            print(f"without any mistake:\n{unchanged.result().stdout}{unchanged.result().stderr}")
        return missed + (unchanged.result().returncode != 0)


if __name__ == "__main__":
    sys.exit(main())
