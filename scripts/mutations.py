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
        name: The mistake.
        file: Where it is made.
        old: What stands there, once.
        new: What the mistake makes of it.
        test: The test that must fail: a file, two colons, a function, perhaps parameters in brackets.
    """

    name: str
    file: str
    old: str
    new: str
    test: str


_GOLDENS = "tests/nn/test_parity_goldens.py::test_outputs_equal_those_of_transformers"
_TRAPS, _TRAINING = "tests/nn/test_traps.py", "tests/nn/test_training_mode.py"
_CHECKPOINT, _TOKENIZER = "tests/weights/test_checkpoint.py", "tests/text/test_tokenizer.py"
_DROPOUT = "tests/nn/test_dropout.py::test_every_family_has_its_own_places_and_rates"

MUTATIONS = (
    # Queries and documents, and vectors in fewer bits.
    Mutation(
        "documents get the prompt of queries",
        "mlxbert/tasks/similarity.py",
        'own_prompt(own, "document")',
        'own_prompt(own, "query")',
        "tests/tasks/test_pairs.py::test_queries_and_texts_get_their_prompts[options0-man is : -in ]",
    ),
    Mutation(
        "bits of a vector are unsigned",
        "mlxbert/tasks/vector_dtype.py",
        ".astype(np.int16) - 128)",
        ".astype(np.int16))",
        "tests/tasks/test_pairs.py::test_vectors_in_fewer_bits_are_what_the_formulas_say",
    ),
    # Downloads.
    Mutation(
        "an ETag may be a path",
        "weights/hub/guard.py",
        '"[0-9A-Za-z+=_-]{1,128}"',
        '"[0-9A-Za-z+=_/.-]{1,128}"',
        "tests/weights/hub/test_hostile.py::test_an_etag_is_a_hash",
    ),
    # Zero-shot classification.
    Mutation(
        "contradiction counts as entailment",
        "mlxbert/tasks/zero_shot.py",
        "_share(pair)[0]",
        "_share(pair)[1]",
        "tests/tasks/test_zero_shot.py::test_several_labels_are_each_judged_against_contradiction",
    ),
    Mutation(
        "the hypothesis is truncated with the text",
        "mlxbert/text/tokenizer.py",
        "[first.slice(0, room), second]",
        "[first.slice(0, room + 1), second.slice(1, len(second))]",
        "tests/tasks/test_zero_shot.py::test_only_the_text_is_truncated",
    ),
    # Tagging.
    Mutation(
        "a token is judged at the edge of a window",
        "mlxbert/text/windows.py",
        "context > found[position][0]",
        "context < found[position][0]",
        "tests/text/test_stitch.py::test_every_token_once_in_order_and_where_it_has_most_context",
    ),
    Mutation(
        "a token is judged in the window before its own",
        "mlxbert/text/windows.py",
        "if window == len(before)",
        "if window == 0",
        "tests/text/test_blocks.py::test_each_judges_the_tokens_that_have_most_context_in_it",
    ),
    Mutation(
        "offsets count from the beginning of a block",
        "mlxbert/text/parts.py",
        "offsets = [(start + first, start + last)",
        "offsets = [(first, last)",
        "tests/text/test_blocks.py::test_they_are_those_of_the_whole_text",
    ),
    Mutation(
        "a special token is cut where only the beginning of a text is tokenized",
        "mlxbert/text/parts.py",
        "_certain(found, size - _MARGIN)",
        "_certain(found, size)",
        "tests/text/test_parts.py::test_no_token_is_of_where_the_text_was_cut",
    ),
    Mutation(
        "a CRF counts padding",
        "mlxbert/nn/crf.py",
        "paths = mx.where(words[:, word : word + 1], longer, paths)",
        "paths = longer",
        "tests/nn/test_crf.py::test_padding_and_empty_rows_change_nothing",
    ),
    Mutation(
        "a CRF's transitions are transposed",
        "mlxbert/nn/crf.py",
        "start + wide[:, 0], transitions.T",
        "start + wide[:, 0], transitions",
        "tests/nn/test_crf.py::test_loss_and_gradients_are_those_over_all_paths",
    ),
    # Positions, segments and padding.
    Mutation(
        "RoBERTa's positions start at 0",
        "weights/families/roberta.py",
        "read.absolute(config, pad + 1)",
        "read.absolute(config)",
        f"{_TRAPS}::test_embeddings_are_those_made_by_hand[roberta]",
    ),
    Mutation(
        "segment 0 is not added when there are no segment ids",
        "mlxbert/nn/encoder.py",
        "            return table[0]",
        "            return 0 * table[0]",
        f"{_TRAPS}::test_embeddings_are_those_made_by_hand[bert]",
    ),
    Mutation(
        "the second text of a pair has segment 0",
        "weights/tokenizers/classes.py",
        '["$B:1", f"{sep[0]}:1"]',
        '["$B:0", f"{sep[0]}:0"]',
        f"{_TOKENIZER}::test_a_pair_has_segments_and_both_separators",
    ),
    Mutation(
        "masked scores are -inf",
        "mlxbert/nn/cpu/kernels.py",
        "MASKED = -1e30",
        "MASKED = -math.inf",
        "tests/nn/test_kernels.py::test_a_row_that_may_see_nothing_gives_no_nan",
    ),
    Mutation(
        "far weights of inference are subnormal numbers",
        "mlxbert/nn/cpu/vectorized_attention.py",
        "_LEAST_WITHIN if within else _LEAST",
        "_LEAST_WITHIN",
        "tests/nn/test_vectorized.py::test_scores_far_apart_give_no_subnormal_weights",
    ),
    Mutation(
        "weights of float16 overflow",
        "mlxbert/nn/cpu/vectorized_attention.py",
        "known = bias is None and v.dtype != mx.float16",
        "known = bias is None",
        "tests/nn/test_vectorized.py::test_attention_keeps_the_dtype",
    ),
    Mutation(
        "a query without any key has weights of 0 / 0",
        "mlxbert/nn/cpu/vectorized_attention.py",
        "if inputs.added or not within:",
        "if not within:",
        "tests/nn/test_vectorized.py::test_attention_is_that_of_the_kernels_in_blocks_of_any_size",
    ),
    # Layers and heads.
    Mutation(
        "gelu_new is computed as gelu",
        "mlxbert/nn/activations.py",
        '"gelu_new": gelu_tanh',
        '"gelu_new": gelu',
        "tests/nn/test_parity_goldens.py::test_activations_equal_those_of_transformers[gelu_new]",
    ),
    Mutation(
        "layer_norm_eps is ignored",
        "mlxbert/nn/blocks.py",
        "eps=config.layer_norm_eps, ",
        "",
        f"{_TRAPS}::test_layer_norm_eps_reaches_every_norm[bert-Model]",
    ),
    Mutation(
        "RoBERTa's masked-LM head follows hidden_act",
        "weights/families/roberta.py",
        "heads=read.heads(",
        'heads={"masked_lm": masked_lm.Facts(Transform(config.string("hidden_act"), norm=True))} | read.heads(',
        f"{_GOLDENS}[roberta, other activation ForMaskedLM-float32]",
    ),
    Mutation(
        "RoBERTa's classifier has gelu",
        "weights/families/roberta.py",
        'Transform("tanh")',
        'Transform("gelu")',
        f"{_GOLDENS}[roberta ForSequenceClassification-float32]",
    ),
    Mutation(
        "the bias of the decoder is not added",
        "mlxbert/nn/heads/masked_lm.py",
        'logits + self.bias if "bias" in self else logits',
        "logits",
        f"{_GOLDENS}[bert ForMaskedLM-float32]",
    ),
    Mutation(
        "the probabilities of a vocabulary are summed in order",
        "mlxbert/nn/heads/__init__.py",
        "return shares / kernels.tree_sum(shares)",
        "return mx.softmax(wide, axis=-1)",
        "tests/nn/test_kernels.py::test_probabilities_of_a_vocabulary_add_up_to_one_beside_a_likely_word",
    ),
    Mutation(
        "class 1 means that the second text follows",
        "mlxbert/tasks/next_sentence.py",
        "scores[:, 0]",
        "scores[:, 1]",
        "tests/tasks/test_next_sentence.py::test_the_score_is_the_share_of_class_zero",
    ),
    Mutation(
        "ids that are not in the vocabulary are accepted",
        "mlxbert/nn/heads/__init__.py",
        "if not 0 <= low <= high < rows:",
        "if False:",
        f"{_TRAINING}::test_ids_from_outside_are_still_checked",
    ),
    # Names and data of tensors.
    Mutation(
        "gamma and beta are unknown",
        "weights/families/tables.py",
        r'{r"\.gamma$": ".weight", r"\.beta$": ".bias"}',
        "{}",
        f"{_CHECKPOINT}::test_every_spelling_of_the_names_loads_the_same_weights[old]",
    ),
    Mutation(
        "the prefix of names is not removed",
        "weights/checkpoint.py",
        "name = name.removeprefix(prefix)",
        "pass",
        f"{_CHECKPOINT}::test_every_spelling_of_the_names_loads_the_same_weights[prefix]",
    ),
    Mutation(
        "the buffer of position ids is taken for a weight",
        "weights/families/tables.py",
        "(position_ids|token_type_ids)",
        "(token_type_ids)",
        f"{_CHECKPOINT}::test_buffers_and_heads_of_other_tasks_are_listed_as_not_used",
    ),
    Mutation(
        "unknown tensors are skipped",
        "weights/checkpoint.py",
        "    if unknown:\n",
        "    if False:\n",
        f"{_CHECKPOINT}::test_a_tensor_that_no_table_knows_is_refused_by_name",
    ),
    Mutation(
        "a decoder that differs from the word embeddings is accepted",
        "weights/build.py",
        "if is_tied(parts):",
        "if False:",
        f"{_CHECKPOINT}::test_copies_that_differ_are_refused_by_name",
    ),
    Mutation(
        "queries and keys are swapped",
        "weights/families/tables.py",
        '"attention.self.query"),\n    same("attention.key", "attention.self.key")',
        '"attention.self.key"),\n    same("attention.key", "attention.self.query")',
        f"{_GOLDENS}[bert Model-float32]",
    ),
    Mutation(
        "a fused matrix is split in the wrong order",
        "weights/families/keymap.py",
        "mx.split(arrays[0], count, axis=0)",
        "mx.split(arrays[0], count, axis=0)[::-1]",
        f"{_GOLDENS}[modernbert Model-float32]",
    ),
    Mutation(
        "TensorFlow's kernels are not transposed",
        "weights/formats/tensorflow/reader.py",
        "array.T if is_transposed(name) else array",
        "array",
        "tests/weights/formats/test_tensorflow.py::test_names_shapes_and_numbers_are_those_of_the_model",
    ),
    Mutation(
        "the offsets of quantized groups are ignored",
        "weights/formats/quantized.py",
        "mx.dequantize(packed, scales, biases,",
        "mx.dequantize(packed, scales, 0 * biases,",
        "tests/weights/formats/test_quantized.py::test_other_widths_are_read",
    ),
    Mutation(
        "numbers too large for float16 are written as infinity",
        "weights/save.py",
        "if lost.any().item():",
        "if False:",
        "tests/folders/test_convert.py::test_a_number_that_float16_does_not_hold_is_refused",
    ),
    # Texts, offsets and batches.
    Mutation(
        "a longer text is truncated silently",
        "mlxbert/text/tokenizer.py",
        'overflow: str = "error") -> Encoding:',
        'overflow: str = "truncate") -> Encoding:',
        f"{_TOKENIZER}::test_a_text_of_exactly_the_longest_length_fits_and_one_token_more_does_not",
    ),
    Mutation(
        "offsets end one character early",
        "mlxbert/text/tokenizer.py",
        "Pieces(raw.ids, raw.offsets,",
        "Pieces(raw.ids, [(start, end - 1) for start, end in raw.offsets],",
        f"{_TOKENIZER}::test_offsets_count_code_points",
    ),
    Mutation(
        "windows do not overlap",
        "mlxbert/text/tokenizer.py",
        "room - stride)",
        "room)",
        f"{_TOKENIZER}::test_windows_cover_every_token_and_overlap_by_the_stride",
    ),
    Mutation(
        "a filled mask replaces the space before it",
        "mlxbert/tasks/fill_mask.py",
        "start + len(span) - len(span.lstrip())",
        "start",
        "tests/tasks/test_fill_mask_spelling.py::test_a_mask_whose_offsets_include_spaces_does_not_include_them",
    ),
    Mutation(
        "the results of a batch lose their order",
        "mlxbert/tasks/runner.py",
        "zip(group, found, strict=True)",
        "zip(sorted(group), found, strict=True)",
        "tests/tasks/test_runner.py::test_results_come_in_the_order_of_the_inputs",
    ),
    # Vectors.
    Mutation(
        "the mean includes padding",
        "mlxbert/nn/pooling.py",
        "(hidden * real).sum(axis=1) / real.sum(axis=1)",
        "hidden.mean(axis=1)",
        "tests/nn/test_pooling.py::test_pooling_is_what_its_name_says",
    ),
    Mutation(
        "the maximum includes zeros for padding",
        "mlxbert/nn/pooling.py",
        "mx.where(real > 0, hidden, -mx.inf)",
        "(hidden * real)",
        "tests/nn/test_pooling.py::test_pooling_is_what_its_name_says",
    ),
    Mutation(
        "every model is mean-pooled",
        "weights/sentence_transformers.py",
        "replace(config, poolings=poolings, ",
        "replace(config, ",
        "tests/weights/test_sentence_transformers.py::test_settings_of_the_model_are_read",
    ),
    # Runs.
    Mutation(
        "NaN is returned as a score",
        "mlxbert/tasks/task.py",
        "if not all(map(math.isfinite, scores)):",
        "if False:",
        "tests/tasks/test_fill_mask.py::test_scores_that_are_no_numbers_are_an_error",
    ),
    Mutation(
        "a half-written folder looks finished",
        "mlxbert/folders/convert.py",
        "save.write_config(checkpoint, view / inner,",
        "save.write_config(checkpoint, partial / inner,",
        "tests/folders/test_convert.py::test_nothing_looks_finished_while_it_is_measured",
    ),
    Mutation(
        "the parts of another run are resumed",
        "mlxbert/partial.py",
        "if said is not None and not overwrite:",
        "if False:",
        "tests/cli/test_resume.py::test_the_work_of_another_command_is_refused_and_kept",
    ),
    Mutation(
        "a damaged file is used",
        "mlxbert/files.py",
        "(found := sha256(path, size)) != digest",
        "not (found := sha256(path, size))",
        "tests/training/test_damage.py::test_damage_never_gives_another_result",
    ),
    Mutation(
        "a damaged record is used",
        "mlxbert/files.py",
        "if digest != _digest(path, values, owner):",
        "if not digest:",
        "tests/training/test_damage.py::test_a_run_is_not_taken_for_another",
    ),
    Mutation(
        "batches that were computed are computed again",
        "cli/output/batches.py",
        "if stored is not None and stored[0] == key:",
        "if False:",
        "tests/cli/test_output_batches.py::test_batches_are_computed_once",
    ),
    # Training.
    Mutation(
        "tasks compute with dropout",
        "mlxbert/tasks/task.py",
        "    network.eval()\n",
        "    pass\n",
        "tests/tasks/test_task.py::test_tasks_compute_in_evaluation_mode[embed]",
    ),
    Mutation(
        "DistilBERT has dropout after its attention",
        "weights/families/distilbert.py",
        "replace(dropout, attention_output=None)",
        "dropout",
        _DROPOUT,
    ),
    Mutation(
        "heads ignore classifier_dropout",
        "weights/families/read.py",
        'return rate(config, "classifier_dropout", rate(config, "hidden_dropout_prob", hidden))',
        'return rate(config, "hidden_dropout_prob", hidden)',
        _DROPOUT,
    ),
    Mutation(
        "a new head keeps the labels of another one",
        "weights/build.py",
        "            labels = given\n",
        "            labels = labels or given\n",
        "tests/folders/test_save.py::test_a_head_with_other_labels_replaces_the_old_one",
    ),
    Mutation(
        "the seed of new weights is ignored",
        "mlxbert/nn/initialize.py",
        'f"{seed} {name}"',
        "name",
        "tests/nn/test_initialize.py::test_a_weight_depends_on_the_seed_and_its_name_alone",
    ),
    Mutation(
        "training leaves BLAS on one thread",
        "mlxbert/nn/encoder.py",
        "self.training or not self.divisible else input_ids",
        "not self.divisible else input_ids",
        f"{_TRAINING}::test_training_gives_blas_its_threads_back",
    ),
    Mutation(
        "mx.compile fails on the check of ids",
        "mlxbert/nn/heads/__init__.py",
        "except ValueError:",
        "except KeyError:",
        f"{_TRAINING}::test_a_compiled_network_gives_the_same",
    ),
    # Training.
    Mutation(
        "AdamW without bias correction",
        "mlxbert/training/optimizer.py",
        "(1 - beta) / (1 - beta**updates) for beta in BETAS",
        "(1 - beta) for beta in BETAS",
        "tests/training/test_optimizer.py::test_updates_are_those_of_the_paper",
    ),
    Mutation(
        "biases decay, too",
        "mlxbert/training/optimizer.py",
        "if array.ndim > 1 and name != biases",
        "if name != biases",
        "tests/training/test_optimizer.py::test_updates_are_those_of_the_paper",
    ),
    Mutation(
        "the weight of the last part alone divides the sums",
        "mlxbert/training/gradients.py",
        "one.loss + other.loss, one.weight + other.weight",
        "one.loss + other.loss, other.weight",
        "tests/training/test_loop.py::test_accumulated_batches_are_one_batch",
    ),
    Mutation(
        "padding competes for the ends of an answer",
        "mlxbert/training/objectives/answer.py",
        "if batch.inputs.attention_mask is not None:",
        "if False:",
        "tests/training/test_answer_objective.py::test_the_loss_is_the_mean_cross_entropy_of_both_ends_without_padding",
    ),
    Mutation(
        "a window with a part of the answer points to that",
        "mlxbert/training/objectives/answer.py",
        " or offsets[inside[-1]][1] < end:",
        ":",
        "tests/training/test_answer_objective.py::"
        "test_windows_that_hold_the_answer_point_to_it_and_the_others_to_the_first_token",
    ),
    Mutation(
        "no answer does not compete with spans",
        "mlxbert/text/spans.py",
        "[[0, *inside]]",
        "[[inside[0], *inside]]",
        "tests/text/test_spans.py::test_the_best_spans_are_those_of_all[0]",
    ),
    Mutation(
        "the score of no answer is that of the last window",
        "mlxbert/text/spans.py",
        "self.no_answer = min(self.no_answer, no_answer)",
        "self.no_answer = no_answer",
        "tests/text/test_spans.py::test_a_span_of_several_windows_counts_once_with_its_best_score",
    ),
    Mutation(
        "special tokens are hidden, too",
        "mlxbert/pretraining/examples.py",
        "~np.isin(ids, self.frame.special)",
        "np.ones(len(ids), bool)",
        "tests/pretraining/test_masks.py::test_shares_of_hidden_tokens",
    ),
    Mutation(
        "every pass hides the same tokens",
        "mlxbert/pretraining/examples.py",
        "copy = place.epoch if",
        "copy = 0 if",
        "tests/pretraining/test_masks.py::test_masks_differ_in_every_pass_and_are_the_same_again",
    ),
    Mutation(
        "a word is hidden in part",
        "mlxbert/pretraining/masks.py",
        "return places[chosen[word]]",
        "return places[chosen[word]][1:]",
        "tests/pretraining/test_masks.py::test_whole_words_are_hidden_whole",
    ),
    Mutation(
        "the labels of pairs are swapped",
        "mlxbert/pretraining/examples.py",
        "OTHER = 1 ",
        "OTHER = 0 ",
        "tests/pretraining/test_masks.py::test_half_of_the_second_texts_are_from_another_document",
    ),
    Mutation(
        "adapters of pre-training train the head of the base, too",
        "mlxbert/pretraining/pretrain.py",
        "if head not in own)",
        "if head)",
        "tests/pretraining/test_lora.py::test_what_is_trained_and_what_is_not",
    ),
    Mutation(
        "every pass of pre-training has the same order",
        "mlxbert/pretraining/phases.py",
        '{phase} {epoch}"',
        '{phase}"',
        "tests/pretraining/test_chunks.py::test_every_chunk_comes_once_in_a_pass_in_another_order",
    ),
    Mutation(
        "padding counts in the cosines of hidden states",
        "mlxbert/pretraining/terms.py",
        "(far if mask is None else mx.where(mask, far, 0.0)).sum()",
        "far.sum()",
        "tests/pretraining/test_teacher.py::test_each_term_is_its_formula",
    ),
    Mutation(
        "the discriminator's loss counts padding",
        "mlxbert/pretraining/replaced.py",
        "inputs.replaced) * inputs.real).sum()",
        "inputs.replaced)).sum()",
        "tests/pretraining/test_electra.py::test_parts_of_a_batch_add_up",
    ),
    Mutation(
        "every hidden token counts as replaced",
        "mlxbert/pretraining/replaced.py",
        "return self.ids != self.targets.clean",
        "return self.batch.input_ids != self.targets.clean",
        "tests/pretraining/test_electra.py::test_a_sample_that_is_the_original_counts_as_original",
    ),
    Mutation(
        "every epoch has the same order",
        "mlxbert/training/sampler.py",
        'f"order {seed} {epoch}"',
        'f"order {seed}"',
        "tests/training/test_order.py::test_the_order_depends_on_seed_and_epoch_alone",
    ),
    Mutation(
        "a resumed run forgets the optimizer",
        "mlxbert/training/checkpoint.py",
        'AdamW(parts["means"], parts["squares"], progress.updates)',
        'AdamW.new(parts["parameters"])',
        "tests/training/test_loop.py::test_a_killed_run_resumes_from_the_last_saved_state",
    ),
    Mutation(
        "word embeddings that the data do not use do not decay",
        "mlxbert/training/rows.py",
        "self._table * decay",
        "self._table",
        "tests/training/test_optimizer.py::test_rows_that_are_not_used_only_decay",
    ),
    Mutation(
        "a duplicate of the positive is a negative",
        "mlxbert/training/objectives/vector_loss.py",
        "return (same | equals) & ~np.eye(",
        "return equals & ~np.eye(",
        "tests/training/test_embed_objective.py::test_duplicates_in_a_batch_are_no_negatives",
    ),
    Mutation(
        "each part of a batch has the gradient of the first",
        "mlxbert/training/gradients.py",
        "starts = [sum(rows[:number]) for number in own]",
        "starts = [0 for number in own]",
        "tests/training/test_embed_objective.py::test_parts_of_a_batch_give_the_gradients_of_the_whole",
    ),
    Mutation(
        "mined negatives may be as similar as the positive",
        "mlxbert/tasks/mine.py",
        "np.array(worst, np.float32) - margin",
        "np.array(worst, np.float32)",
        "tests/training/test_embed_objective.py::test_mined_negatives_are_near_and_not_the_querys_own",
    ),
    Mutation(
        "the pooling of a trained model is always the mean",
        "weights/modules.py",
        "flag: name in config.poolings for",
        "flag: name == 'mean' for",
        "tests/training/test_embed_objective.py::test_modules_are_written_as_they_are_read",
    ),
)


def run(folder: Path, *tests: str) -> subprocess.CompletedProcess[str]:
    """Runs tests in a copy of the source, up to the first failure."""
    options = ["-x", "-q", "--no-header", "--tb=no", "-p", "no:cacheprovider", "-m", "", "-n0"]
    command = [sys.executable, "-B", "-m", "pytest", *options, *tests]
    environment = {**os.environ, "PYTHONPATH": str(folder)}
    return subprocess.run(command, cwd=folder, capture_output=True, text=True, env=environment, check=False)


def check(mutation: Mutation, folder: Path) -> tuple[bool, str]:
    """Whether the mistake goes unnoticed, and what the tests say."""
    path = folder / mutation.file
    original = path.read_text(encoding="utf-8")
    assert original.count(mutation.old) == 1, f"{mutation.name}: {mutation.file} has to hold {mutation.old!r} once"
    path.write_text(original.replace(mutation.old, mutation.new), encoding="utf-8")
    try:
        done = run(folder, mutation.test)
    finally:
        path.write_text(original, encoding="utf-8")
    failed = re.search(r"^(?:FAILED|ERROR) (\S+::.*?)(?: - .*)?$", done.stdout, flags=re.MULTILINE)
    if done.returncode == 1 and failed:  # 2 to 5: pytest itself could not run
        return False, failed[1]
    if done.returncode == 0 and not re.search(r"\d passed", done.stdout):
        return False, f"skipped on this machine: {mutation.test}"
    return True, f"NOT CAUGHT\n{done.stdout}{done.stderr}"


def main() -> int:
    """Prints a line per mistake; returns how many went unnoticed."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("names", nargs="*")
    names = parser.parse_args().names
    chosen = [mutation for mutation in MUTATIONS if not names or mutation.name in names]
    workers = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    folders: queue.Queue[Path] = queue.Queue()

    def timed(mutation: Mutation) -> bool:
        folder, start = folders.get(), time.monotonic()
        missed, said = check(mutation, folder)
        folders.put(folder)
        print(f"{time.monotonic() - start:5.1f} s  {mutation.name}: {said}", flush=True)
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
