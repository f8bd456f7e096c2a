"""The keys of the files of a released folder: what is computed, what changes nothing, and what is refused.

A key of a file that stands in no row, or a refused one with another value than its neutral ones, is named in the load
report. The keys of `config.json` that are computed are those that its family reads (`networks/families/`).
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any


@dataclass(frozen=True)
class Keys:
    """The rows of one file.

    Attributes:
        computed: what they say is done.
        harmless: they change nothing that is computed here.
        refused: what they say is not done, and their neutral values; null is neutral everywhere.
    """

    computed: tuple[str, ...] = ()
    harmless: tuple[str, ...] = ()
    refused: Mapping[str, tuple[Any, ...]] = field(default_factory=dict)

    def known(self, key: str) -> bool:
        """Whether a row has that key."""
        return key in self.computed or key in self.harmless or key in self.refused

    def unread(self, data: Mapping[str, Any]) -> list[str]:
        """The keys of a file that are in no row, or refused with a value that is not neutral."""
        return sorted(
            key
            for key, value in data.items()
            if value is not None and (value not in self.refused[key] if key in self.refused else not self.known(key))
        )


def _names(text: str) -> tuple[str, ...]:
    return tuple(text.split())


FILES: dict[str, Keys] = {
    "generation_config.json": Keys(
        computed=_names(
            """
            eos_token_id forced_bos_token_id forced_eos_token_id decoder_start_token_id suppress_tokens
            begin_suppress_tokens bad_words_ids renormalize_logits
            num_beams length_penalty early_stopping num_beam_groups diversity_penalty do_sample temperature top_k top_p
            min_p typical_p repetition_penalty no_repeat_ngram_size stop_strings
            max_length max_new_tokens min_length min_new_tokens
            """
        ),
        harmless=_names(
            """
            bos_token_id pad_token_id transformers_version _from_model_config use_cache cache_implementation
            cache_config max_cache_len return_dict_in_generate output_attentions output_hidden_states output_scores
            output_logits compile_config disable_compile continuous_batching_config low_memory prefill_chunk_size
            remove_invalid_values is_assistant num_assistant_tokens num_assistant_tokens_schedule
            assistant_confidence_threshold assistant_early_exit assistant_lookbehind assistant_ensemble_weight
            target_lookbehind prompt_lookup_num_tokens max_matching_ngram_size speculation_type use_mtp max_time
            """
        ),
        refused={
            "encoder_no_repeat_ngram_size": (0,),
            "encoder_repetition_penalty": (1.0,),
            "epsilon_cutoff": (0.0,),
            "eta_cutoff": (0.0,),
            "top_h": (1.0,),
            "exponential_decay_length_penalty": (),
            "sequence_bias": ({}, []),
            "token_healing": (False,),
            "guidance_scale": (1.0,),
            "watermarking_config": ({},),
            "penalty_alpha": (0.0,),
            "dola_layers": ([],),
            "constraints": ([],),
            "force_words_ids": ([],),
            "num_return_sequences": (1,),
        },
    ),
}
