"""Mutations: each guard is removed, in a copy of the tree, and the test that is named beside it must fail.

    python -m tests.mutate [--only NAME] [--since REVISION]

A guard whose text no longer occurs exactly once in its file is a failure too, so the table follows the source.
"""

from __future__ import annotations

import argparse
import importlib
import os
import resource
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType

import pytest

ROOT = Path(__file__).parent.parent
_MOST_MEMORY = 8 << 30  # bytes
_SECONDS = 900  # of a test
LIBRARIES = (
    "torch",
    "numpy",
    "tokenizers",
    "safetensors",
    "transformers",
    "hypothesis",
    "sacrebleu",
    "typer",
    "fastapi",
)
COPIED = ("src", "tests", "pyproject.toml", "constraints.txt", "Makefile", "README.md", "docs")


@dataclass(frozen=True)
class Guard:
    """A guard: its name, the file below src/regard, the text that makes it, what replaces it, the test that notices."""

    name: str
    file: str
    text: str
    replacement: str
    test: str


# fmt: off
GUARDS = [
    # Files reach the disk whole, or not at all.
    Guard("fsync of a file", "store/files.py",
          "os.fsync(file.fileno())", "pass",
          "tests/store/test_durability.py::test_every_file_of_a_checkpoint_is_flushed_before_its_folder_is_renamed"),
    Guard("fsync of a folder", "store/files.py",
          "os.fsync(descriptor)", "pass",
          "tests/store/test_durability.py::test_the_folder_is_flushed_before_and_after_the_rename"),
    Guard("fsync before the rename", "store/checkpoint.py",
          "            sync_folder(temporary)\n", "",
          "tests/store/test_durability.py::test_the_folder_is_flushed_before_and_after_the_rename"),
    Guard("temporary name of a checkpoint", "store/checkpoint.py",
          'folder / f"{_NEW}{step}-{os.getpid()}"', 'folder / f"step-{step}"',
          "tests/store/test_durability.py::test_a_checkpoint_has_no_name_before_it_is_whole"),
    Guard("rename of a file", "store/files.py",
          "            os.replace(temporary, path)\n", "            path.write_bytes(content)\n",
          "tests/store/test_durability.py::test_a_file_is_replaced_and_never_rewritten"),
    Guard("manifest goes first", "store/checkpoint.py",
          '            (path / "manifest.json").unlink(missing_ok=True)\n', "            pass\n",
          "tests/store/test_durability.py::test_a_checkpoint_that_is_being_removed_is_invalid_at_once"),
    Guard("replaced checkpoint gets its name back", "store/checkpoint.py",
          "                os.rename(old, final)\n", "                pass\n",
          "tests/store/test_checkpoint.py::test_a_crash_while_a_checkpoint_is_replaced_loses_nothing"),
    Guard("probe of the run's folder", "training/lock.py",
          "        probe.touch()\n        probe.unlink(missing_ok=True)\n", "",
          "tests/training/test_run_folder.py::test_a_folder_that_cannot_be_written_to_is_refused_before_the_first_step"),
    # Damage is noticed.
    Guard("checksum of a checkpoint", "store/checkpoint.py",
          'if sha256(content) != expected["sha256"]:', "if False:",
          "tests/store/test_checkpoint.py::test_a_checkpoint_with_a_flipped_or_missing_byte_is_skipped"),
    Guard("checksum of a manifest", "store/checkpoint.py",
          "if written != json_bytes(manifest) or ", "if ",
          "tests/store/test_checkpoint.py::test_a_manifest_is_checked_to_the_last_byte"),
    Guard("format of a checkpoint", "store/checkpoint.py",
          'if manifest["format"] != FORMAT:', "if False:",
          "tests/store/test_golden.py::test_a_checkpoint_of_a_later_format_is_refused_by_its_version"),
    Guard("names in a checkpoint's manifest", "store/checkpoint.py",
          "if Path(name).name != name:", "if False:",
          "tests/store/test_checkpoint.py::test_a_manifest_cannot_point_elsewhere"),
    Guard("manifest of a model folder", "store/manifest.py",
          "    if refused:\n", "    if False:\n",
          "tests/store/test_manifest.py::test_any_flipped_bit_is_refused"),
    Guard("names in a model folder's manifest", "store/manifest.py",
          'and not Path(name).is_absolute() and ".." not in Path(name).parts', "",
          "tests/store/test_manifest.py::test_a_manifest_names_no_file_elsewhere"),
    Guard("checksum of weights", "store/files.py",
          "if digest.hexdigest().encode() != header[start:end]:", "if False:",
          "tests/store/test_folder.py::test_any_flipped_or_missing_byte_of_the_weights_is_refused"),
    Guard("checksum of a checkpoint that is averaged", "training/loop.py",
          'fault = verify(folder / f"step-{step}")', "fault = None",
          "tests/training/test_loop.py::test_a_damaged_checkpoint_is_left_out_of_the_average"),
    Guard("text that changes while it is tokenized", "data/read/texts.py",
          "        if now != self.state:\n", "        if False:\n",
          "tests/data/test_cache.py::test_nothing_is_kept_of_a_text_that_was_rewritten_meanwhile"),
    Guard("text that changes while it is used", "data/read/texts.py",
          "if digest.hexdigest() != self.digest:", "if False:",
          "tests/data/test_cache.py::test_a_text_may_grow_while_it_is_used_but_not_change"),
    Guard("signs of life of a process", "training/distributed.py",
          'self.store.set(f"alive/{self.rank}", str(number))', "pass",
          "tests/training/test_distributed.py::test_a_process_that_works_alone_for_long_is_waited_for_while_it_runs"),
    Guard("silence of a process", "training/distributed.py",
          "if silent and self.waits.is_set():", "if False:",
          "tests/training/test_distributed.py::test_a_process_that_works_alone_for_long_is_waited_for_while_it_runs"),
    # Training neither learns nor saves what is not a number, and never shares a folder.
    Guard("loss that is not finite", "training/step.py",
          "if not (math.isfinite(step.loss) and math.isfinite(gradient_norm)):", "if False:",
          "tests/training/test_step.py::test_a_loss_that_is_not_finite_changes_no_weight"),
    Guard("weights that are not finite", "store/files.py",
          "        if not tensor.isfinite().all():\n", "        if False:\n",
          "tests/store/test_checkpoint.py::test_values_that_are_not_finite_are_not_saved"),
    Guard("lock of a run", "training/lock.py",
          "fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)", "pass",
          "tests/training/test_run_folder.py::test_a_second_run_in_the_same_folder_is_refused_until_the_first_has_ended"),
    Guard("lock that another machine took", "training/loop.py",
          "        require_lock(self.folder)\n", "",
          "tests/training/test_faults.py::test_a_run_gives_way_to_one_that_took_its_folder"),
    Guard("changed text on resume", "config/resume.py",
          "raise messages.CHANGED_TEXT(", "messages.CHANGED_TEXT(",
          "tests/training/test_run_folder.py::test_a_changed_corpus_is_refused_and_more_steps_are_not"),
    Guard("second Ctrl-C", "training/lock.py",
          "            os._exit(128 + number)\n", "",
          "tests/training/test_loop.py::test_a_later_interrupt_ends_the_process_at_once_and_changes_no_file"),
    Guard("memory for a checkpoint", "store/files.py",
          "    bytearray(2 * sum(", "    (2 * sum(",
          "tests/training/test_faults.py::"
          "test_a_checkpoint_for_which_memory_is_short_raises_an_error_and_no_signal"),
    Guard("oneDNN under a limit of memory", "layers/linear.py",
          "if resource.getrlimit(resource.RLIMIT_AS)[0] != resource.RLIM_INFINITY:", "if False:",
          "tests/training/test_faults.py::test_onednn_is_not_used_under_a_limit_of_memory"),
    Guard("rank that hangs", "training/distributed.py",
          "lost = _lost_ranks(store, rank) if store is not None else []", "lost = []",
          "tests/training/test_distributed.py::test_a_process_that_hangs_does_not_hang_the_others"),
    # Hostile files run no code, reach nowhere, and are not too large.
    Guard("pickles", "store/loading.py",
          "raise messages.PICKLE(path=folder / name, folder=folder)", "return",
          "tests/store/test_huggingface_folder.py::test_a_pickle_is_never_opened"),
    Guard("pickles of plain tensors", "store/unpickle.py",
          "weights_only=True", "weights_only=False",
          "tests/store/test_huggingface_folder.py::"
          "test_a_pickle_of_tensors_is_converted_when_allowed_and_a_harmful_one_does_nothing"),
    Guard("code of a model's own", "store/huggingface/folder.py",
          'if "auto_map" in config:', "if False:",
          "tests/test_messages.py::test_a_row_is_said_as_it_stands"),
    Guard("names outside a folder", "store/loading.py",
          "return plain and (folder / name / file)", "return (folder / name / file)",
          "tests/store/test_huggingface_folder.py::test_an_index_that_names_files_outside_the_folder_is_refused"),
    Guard("links out of a folder", "store/loading.py",
          ".resolve().is_relative_to(root)", ".is_relative_to(folder)",
          "tests/store/test_huggingface_folder.py::test_an_index_that_names_files_outside_the_folder_is_refused"),
    Guard("weights and config agree before anything is allocated", "store/folder.py",
          "    _check_shapes(folder, description, vocabularies, shapes)\n", "",
          "tests/store/test_folder.py::"
          "test_a_config_that_does_not_fit_the_weights_is_refused_before_anything_is_allocated"),
    Guard("too many layers", "store/loading.py",
          "if depth > tensors + _SPARE_LAYERS:", "if False:",
          "tests/store/test_folder.py::test_a_config_of_many_layers_is_refused_before_they_are_built"),
    Guard("size of a JSON file", "store/files.py",
          "    if size > max_bytes:\n", "    if False:\n",
          "tests/store/test_hostile_files.py::test_bombs_of_size_are_refused_without_being_read"),
    Guard("memory for a model", "store/loading.py",
          "if needed > free:", "if False:",
          "tests/store/test_folder.py::test_a_model_that_does_not_fit_in_memory_is_refused_before_anything_is_allocated"),
    Guard("regular expressions that hang", "data/tokenize/safety.py",
          "not _SAFE.fullmatch(regex)", "False",
          "tests/data/test_safety.py::test_patterns_that_can_backtrack_catastrophically_are_refused"),
    Guard("rules that make a text very long", "data/tokenize/safety.py",
          "_require_growth(math.prod(map(_growth, rules)), _MAX_BOUND)", "pass",
          "tests/data/test_safety.py::test_replacements_that_grow_a_text_exponentially_are_refused"),
    Guard("quadratic words", "data/tokenize/safety.py",
          "model.max_input_chars_per_word > _MAX_WORD", "False",
          "tests/data/test_safety.py::test_a_wordpiece_limit_with_quadratic_time_is_refused"),
    Guard("text that changes while it is read", "data/read/formats.py",
          "if _file_states(files) != before:", "if False:",
          "tests/training/test_faults.py::test_a_text_that_grows_while_it_is_read_is_refused"),
    # Folders that are converted are whole or not there.
    Guard("name of a new folder", "store/files.py",
          'place / PARTIAL if inside else place.with_name(f".{place.name}{PARTIAL}")', "place",
          "tests/store/test_new_folder.py::test_a_killed_conversion_leaves_no_target_and_is_simply_repeated"),
    Guard("lock of a new folder", "store/files.py",
          "fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)", "pass",
          "tests/store/test_new_folder.py::test_two_processes_never_write_one_folder"),
    Guard("folder that came meanwhile", "store/files.py",
          "                    require_new_folder(target, may_replace)\n", "",
          "tests/store/test_new_folder.py::test_a_folder_that_came_meanwhile_is_not_replaced"),
    Guard("folder that was left", "store/files.py",
          "            shutil.rmtree(left) if left.is_dir() and not left.is_symlink() else left.unlink()\n",
          "            pass\n",
          "tests/store/test_new_folder.py::test_what_a_crash_left_is_cleared"),
    # A document that was half translated is continued from what is on disk.
    Guard("fsync of a journal", "decode/document.py",
          "os.fsync(self.file.fileno())", "pass",
          "tests/decode/test_document.py::test_a_batch_is_on_disk_before_the_next_begins"),
    Guard("checksum of a journal's line", "decode/document.py",
          "hashlib.sha256(written).hexdigest()[:16].encode() == checksum", "True",
          "tests/decode/test_document.py::test_a_flipped_byte_of_a_journal_ends_it"),
    Guard("key of a journal", "decode/document.py",
          'value.get("key") != key', "False",
          "tests/decode/test_document.py::test_a_journal_of_another_key_is_begun_anew_and_a_file_that_is_none_is_kept"),
    Guard("lock of a journal", "decode/document.py",
          "fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)", "pass",
          "tests/decode/test_document.py::test_a_journal_of_another_key_is_begun_anew_and_a_file_that_is_none_is_kept"),
    Guard("file that is no journal", "decode/document.py",
          "if not _JOURNAL.match(content):", "if False:",
          "tests/decode/test_document.py::test_a_journal_of_another_key_is_begun_anew_and_a_file_that_is_none_is_kept"),
    Guard("size of a Word document, unpacked", "data/documents/docx.py",
          "        _require_size(content)\n", "",
          "tests/decode/test_document.py::test_what_is_no_document_is_refused"),
    # Adapters, converted models and files of other toolkits that lie.
    Guard("shapes of an adapter before its product", "store/adapters.py",
          "[one for one in found if one != shape]", "[one for one in found if len(one) > 2]",
          "tests/store/test_adapters.py::test_factors_are_multiplied_only_if_they_fit"),
    Guard("rank of an adapter", "store/adapters.py",
          "if rank != len(factors.A):", "if False:",
          "tests/store/test_adapters.py::test_an_adapter_that_lies_is_refused"),
    Guard("adapter that is not finite", "store/adapters.py",
          '        require_finite(f"the adapter of {factors.module}", product, self.folder)\n', "",
          "tests/store/test_adapters.py::test_an_adapter_that_lies_is_refused"),
    Guard("patterns of an adapter", "store/adapters.py",
          "or not simple or not _SAFE_PATTERN.fullmatch(pattern):", "or not simple:",
          "tests/store/test_adapters.py::test_an_adapter_that_lies_is_refused"),
    Guard("patterns of an adapter that repeat", "store/adapters.py",
          "or not simple or not _SAFE_PATTERN.fullmatch(pattern):", "or not _SAFE_PATTERN.fullmatch(pattern):",
          "tests/store/test_adapters.py::test_an_adapter_that_lies_is_refused"),
    Guard("names of an adapter's tensors", "store/adapters.py",
          " or len(name) > _MOST_NAME:\n", ":\n",
          "tests/store/test_adapters.py::test_an_adapter_that_lies_is_refused"),
    Guard("base of an adapter", "store/folder.py",
          "if config.get(BASE_DIGEST, digest) != digest:", "if False:",
          "tests/training/test_lora.py::test_a_run_does_not_resume_on_another_base"),
    Guard("pickle in a process that reaches nothing", "store/unpickle.py",
          "        if writes or event.startswith(_FORBIDDEN):\n", "        if False:\n",
          "tests/store/orphans/test_orphans.py::test_the_process_that_reads_a_pickle_reaches_nothing"),
    Guard("size of what a pickle unpacks to", "store/unpickle.py",
          "for tensor in tensors.values()) > most:", "for tensor in tensors.values()) < 0:",
          "tests/store/orphans/test_hostile.py::test_a_tensor_that_its_pickle_does_not_explain_is_not_copied"),
    Guard("depth of a pickle's settings", "store/unpickle.py",
          "if next(count, None) is None or len(path) > _MOST_DEPTH:", "if next(count, None) is None:",
          "tests/store/orphans/test_hostile.py::test_settings_that_are_too_deep_are_refused"),
    Guard("size of what arrays unpack to", "store/orphans/marian.py",
          "if unpacked > _MOST_GROWTH * path.stat().st_size:", "if False:",
          "tests/store/orphans/test_hostile.py::test_arrays_that_unpack_to_far_more_than_their_file_are_refused"),
    Guard("pickles in arrays", "store/orphans/marian.py",
          "with np.load(path) as file:", "with np.load(path, allow_pickle=True) as file:",
          "tests/store/orphans/test_hostile.py::test_arrays_of_objects_are_not_unpickled"),
    Guard("aliases of a YAML file", "store/orphans/yaml.py",
          "for token in yaml.scan(text)) > _MOST_ALIASES:", "for token in yaml.scan(text)) < 0:",
          "tests/store/orphans/test_hostile.py::test_a_yaml_file_of_many_aliases_or_of_tags_is_refused"),
    Guard("tags of a YAML file", "store/orphans/yaml.py",
          "yaml.safe_load(text)", "yaml.unsafe_load(text)",
          "tests/store/orphans/test_hostile.py::test_a_yaml_file_of_many_aliases_or_of_tags_is_refused"),
    Guard("weights that a proof was made with", "engines/folder.py",
          "elif proof.weights != weights:", "elif False:",
          "tests/engines/test_engines.py::test_auto_uses_a_converted_model_only_while_its_proof_fits"),
    Guard("version that a proof was made with", "engines/folder.py",
          "elif proof.version != (installed := engine_version(proof.engine)):",
          'elif (installed := engine_version(proof.engine)) == "":',
          "tests/engines/test_engines.py::test_a_proof_of_another_version_does_not_fit"),
    Guard("least share of equal lines", "engines/prove.py",
          'if precision == "float32" and proof.share < _LEAST_SHARE:', "if False:",
          "tests/engines/test_engines.py::test_an_engine_that_answers_otherwise_is_not_written"),
    Guard("weights of a head", "engines/head.py",
          "if weight.ndim != 2 or weight.shape[1] != width or (bias is not None and bias.shape != weight.shape[:1]):",
          "if False:", "tests/engines/test_hostile.py::test_a_head_that_does_not_fit_is_refused"),
    Guard("width of hidden states", "engines/encoder.py",
          "if states.shape != (len(indices), ids.shape[1], self.converted.vector_width):", "if False:",
          "tests/engines/test_hostile.py::test_hidden_states_of_another_width_are_refused"),
    Guard("inputs of a graph", "engines/encoder.py",
          'if not {*names} <= {"ids", "padding", "segments"} or ', "if ",
          "tests/engines/test_hostile.py::test_a_graph_that_reads_or_writes_something_else_is_refused"),
    # Recipes and trials.
    Guard("size of a recipe", "config/recipe.py",
          "if (size := path.stat().st_size) > _MOST_BYTES:", "if (size := 0) > _MOST_BYTES:",
          "tests/config/test_recipe.py::test_a_file_that_is_not_toml_is_refused"),
    Guard("depth of a recipe", "schema.py",
          '        raise ValueError("it is nested too deeply") from None\n', "        raise\n",
          "tests/config/test_recipe.py::test_a_setting_that_is_too_deep_or_too_long_is_refused"),
    Guard("key of stored trials", "lab/experiment.py",
          "self.minutes, repr(self.settings), self.fixed, text, source, __version__]", "self.minutes]",
          "tests/lab/test_lab.py::test_other_settings_and_a_changed_claim_are_measured_anew"),
    Guard("lock of a claim's folder", "lab/experiment.py",
          "with folder_lock(folder), _one_thread():", "with _one_thread():",
          "tests/lab/test_lab.py::test_two_runs_of_a_claim_never_share_a_folder"),
    # Pages hold text, never markup.
    Guard("escape of < in a page's data", "show/html.py",
          '.replace("<", "\\\\u003c")', "",
          "tests/show/test_html.py::test_a_hundred_hostile_strings_make_the_same_elements_as_harmless_ones"),
    Guard("escape of text", "show/html.py",
          'return html.escape("".join(map(_visible, text)), quote=True)', 'return "".join(map(_visible, text))',
          "tests/show/test_html.py::test_a_hostile_title_makes_the_same_elements_as_a_harmless_one"),
    Guard("policy of a page", "show/html.py",
          "default-src 'none'; style-src", "style-src",
          "tests/show/test_html.py::test_a_document_loads_nothing_and_runs_nothing"),
    # The server refuses before it works.
    Guard("Host of a request", "serve/guard.py",
          "if not name or not self.settings.allows_host(name):", "if False:",
          "tests/serve/test_guard.py::test_every_route_refuses_a_foreign_host"),
    Guard("API key", "serve/guard.py",
          "            raise missing_key(headers)\n", "            pass\n",
          "tests/serve/test_guard.py::test_every_route_but_health_needs_the_key"),
    Guard("comparison of keys in constant time", "serve/guard.py",
          'hmac.compare_digest(given.encode(errors="replace"), key.encode())', "given == key",
          "tests/serve/test_limits.py::test_keys_are_compared_in_constant_time"),
    Guard("length of a body, as told", "serve/guard.py",
          "if length.isdecimal() and int(length[:20]) > limit:", "if False:",
          "tests/serve/test_guard.py::test_every_route_limits_the_body"),
    Guard("length of a body, as read", "serve/guard.py",
          "        if len(found) > limit:\n", "        if False:\n",
          "tests/serve/test_guard.py::test_every_route_limits_the_body"),
    Guard("length of a head", "serve/protocol.py",
          "h11_max_incomplete_event_size=_MAX_HEAD", "h11_max_incomplete_event_size=1 << 30",
          "tests/serve/test_limits.py::test_a_long_head_is_refused_before_its_end"),
    Guard("deadline of a sender", "serve/protocol.py",
          "self.receive_timer = self.loop.call_later(self.receive_seconds, self._too_slow)", "pass",
          "tests/serve/test_guard.py::test_a_slow_sender_is_told_and_dropped"),
    Guard("deadline of a reader", "serve/protocol.py",
          "if before - waiting < _LEAST_RATE * self.write_seconds:", "if False:",
          "tests/serve/test_guard.py::test_a_reader_that_takes_nothing_is_dropped"),
    Guard("bound of the queue", "serve/worker.py",
          ">= self.max_waiting:", ">= 1 << 60:",
          "tests/serve/test_worker.py::test_a_full_queue_refuses_at_once_and_takes_jobs_again_later"),
    Guard("a search's process has no connection of a client", "serve/processes.py",
          "                os.close(number)\n", "                pass\n",
          "tests/serve/test_processes.py::test_a_process_inherits_no_connection"),
    Guard("a search's process ends with its parent", "serve/processes.py",
          "            os._exit(0)\n", "            threading.Event().wait()\n",
          "tests/serve/test_processes.py::test_no_process_is_left_when_the_server_is_killed"),
    Guard("a signal to all processes is for the server", "serve/processes.py",
          "            signal.signal(number, signal.SIG_IGN)\n", "            pass\n",
          "tests/serve/test_processes.py::test_a_process_goes_on_after_a_signal_to_all_processes"),
    Guard("requests of a process that ended are retried", "serve/processes.py",
          "[asked for asked in left if asked.ticket.alone or self._killed]", "left",
          "tests/serve/test_processes.py::test_requests_of_a_process_that_is_killed_are_retried"),
    Guard("what ended a process is retried alone", "serve/processes.py",
          "            asked.ticket.alone = True\n", "            pass\n",
          "tests/serve/test_processes.py::test_a_request_that_ends_its_process_fails_and_its_neighbours_do_not"),
    Guard("a search's process ends with its worker", "serve/processes.py",
          "                os.waitpid(process, 0)\n", "                pass\n",
          "tests/serve/test_processes.py::test_a_stopped_pool_finishes_what_its_processes_have"),
    Guard("a search's process is killed after the grace", "serve/worker.py",
          "            self._search.kill()\n", "            pass\n",
          "tests/serve/test_processes.py::test_what_does_not_finish_within_the_grace_ends_with_its_process"),
    Guard("digits of an integer", "serve/body.py",
          "if len(digits) > _MAX_DIGITS:", "if False:",
          "tests/serve/test_guard.py::test_a_malformed_body_is_400_and_never_repeated"),
    Guard("names that occur twice", "serve/body.py",
          "if len(found) < len(pairs):", "if False:",
          "tests/serve/test_guard.py::test_a_malformed_body_is_400_and_never_repeated"),
    Guard("text of an internal error", "serve/refusal.py",
          'f"internal error, id {number}; see server log"', "str(error)",
          "tests/serve/test_openai.py::test_a_model_that_fails_answers_500_with_an_id_and_serves_on"),
]
# fmt: on


def occurrences(guard: Guard, root: Path = ROOT) -> int:
    """How often the text of a guard occurs in its file."""
    return (root / "src" / "regard" / guard.file).read_text().count(guard.text)


def copied(folder: Path) -> Path:
    """A copy of the tree, in which anything may be broken."""
    left_out = shutil.ignore_patterns("__pycache__", ".venv", "*.egg-info")
    for name in COPIED:
        source = ROOT / name
        if source.is_dir():
            shutil.copytree(source, folder / name, ignore=left_out)
        else:
            shutil.copy(source, folder / name)
    return folder


def import_libraries() -> None:
    """Import what tests need besides our own code, so that the children that run them have it."""
    for name in LIBRARIES:
        with suppress(ImportError):
            importlib.import_module(name)


def run(folder: Path, *chosen: str) -> tuple[int, str]:
    """Run tests in a copy of the tree, in a child; -> its exit code, and what it printed.

    A child that takes too long is killed, as is whatever it started.
    """
    with tempfile.TemporaryFile("w+") as said:
        child = os.fork()
        if child == 0:
            code = 70
            try:
                code = _run_here(folder, said.fileno(), chosen)
            finally:
                os._exit(code)
        timer = threading.Timer(_SECONDS, os.killpg, (child, signal.SIGKILL))
        timer.start()
        code = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
        timer.cancel()
        with suppress(ProcessLookupError):
            os.killpg(child, signal.SIGKILL)
        said.seek(0)
        return code, said.read()


def _run_here(folder: Path, output: int, chosen: Sequence[str]) -> int:
    """Run tests in this process, which has imported nothing of ours but this file."""
    os.setsid()
    for number, descriptor in enumerate((os.open(os.devnull, os.O_RDONLY), output, output)):
        os.dup2(descriptor, number)
    os.chdir(folder)
    paths = [str(folder / "src"), str(folder)]
    os.environ |= {"PYTHONPATH": os.pathsep.join(paths), "PYTHONDONTWRITEBYTECODE": "1", "OMP_NUM_THREADS": "1"}
    sys.path[:] = [*paths, *(path for path in sys.path if Path(path or ".").resolve() not in (ROOT, ROOT / "src"))]
    sys.argv, sys.dont_write_bytecode = ["pytest"], True
    for name in [name for name in sys.modules if name.partition(".")[0] in ("tests", "regard", "__main__")]:
        del sys.modules[name]
    sys.modules["__main__"] = ModuleType("__main__")
    resource.setrlimit(
        resource.RLIMIT_DATA, (_MOST_MEMORY,) * 2
    )  # some guards keep memory from being filled; maps are free
    return int(pytest.main(["-x", "-q", "-p", "no:cacheprovider", "-p", "no:xdist", "-m", "", *chosen]))


def removed(guard: Guard, folder: Path) -> str:
    """Remove a guard, run its test, put it back; -> what is wrong, or that the test noticed ("")."""
    if (count := occurrences(guard, folder)) != 1:
        return f"its text occurs {count} times in {guard.file}"
    path = folder / "src" / "regard" / guard.file
    whole = path.read_text()
    try:
        path.write_text(whole.replace(guard.text, guard.replacement))
        code, said = run(folder, guard.test)
    finally:
        path.write_text(whole)
    if code == 0:
        return "NOT CAUGHT"
    # Failed, or what the guard is against ended the process, or kept it busy until it was killed.
    return "" if code == 1 or code < 0 else f"the test could not run: {said[-200:]}"


def changed_since(revision: str) -> set[str]:
    """The files that changed since a revision of git, those that are not committed included."""
    command = ["git", "-C", str(ROOT), "diff", "--name-only", revision]
    return set(subprocess.run(command, capture_output=True, text=True, check=True).stdout.split())


def main() -> int:
    """Remove the chosen guards one by one; -> the exit code."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", default="", help="guards whose name or file contains this")
    parser.add_argument("--since", metavar="REVISION", help="guards whose file or test changed since then")
    given = parser.parse_args()
    chosen = [guard for guard in GUARDS if given.only in guard.name or given.only in guard.file]
    if given.since:
        changed = changed_since(given.since)
        chosen = [guard for guard in chosen if {f"src/regard/{guard.file}", guard.test.partition("::")[0]} & changed]
    wrong = []
    with tempfile.TemporaryDirectory(prefix="regard-mutate-") as temporary:
        folder = copied(Path(temporary))
        tests = list(dict.fromkeys(guard.test for guard in chosen))
        import_libraries()
        code, said = run(folder, *tests)
        if code:
            print(f"without any change, these tests fail:\n{said[-2000:]}")
            return 1
        print("| guard | file | the test that must fail | found |\n|---|---|---|---|", flush=True)
        for guard in chosen:
            found = removed(guard, folder)
            wrong += [guard.name] if found else []
            print(f"| {guard.name} | {guard.file} | {guard.test} | {found or 'caught'} |", flush=True)
    print(f"\n{len(chosen) - len(wrong)} of {len(chosen)} guards are caught by their tests"
          + (f"; not: {', '.join(wrong)}" if wrong else ""))  # fmt: skip
    return int(bool(wrong))


if __name__ == "__main__":
    sys.exit(main())
