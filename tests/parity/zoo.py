"""Tiny models of transformers: every family and head we read, with unusual settings."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
import transformers as t

GPT2 = {"vocab_size": 40, "n_embd": 24, "n_layer": 3, "n_head": 3, "n_positions": 32, "bos_token_id": 3,
        "eos_token_id": 1, "pad_token_id": 0}  # fmt: skip
BERT = {"vocab_size": 40, "hidden_size": 24, "num_hidden_layers": 2, "num_attention_heads": 3,
        "intermediate_size": 36, "max_position_embeddings": 32}  # fmt: skip
DISTILBERT = {"vocab_size": 40, "dim": 24, "n_layers": 2, "n_heads": 3, "hidden_dim": 36,
              "max_position_embeddings": 32}  # fmt: skip
T5 = {"vocab_size": 40, "d_model": 24, "num_layers": 2, "num_heads": 3, "d_ff": 36, "d_kv": 8,
      "decoder_start_token_id": 0}  # fmt: skip
MARIAN = {"vocab_size": 40, "d_model": 24, "encoder_layers": 2, "decoder_layers": 1, "encoder_attention_heads": 3,
          "decoder_attention_heads": 2, "encoder_ffn_dim": 36, "decoder_ffn_dim": 30, "max_position_embeddings": 64,
          "pad_token_id": 0, "decoder_start_token_id": 0, "eos_token_id": 1, "forced_eos_token_id": None}  # fmt: skip

BART = {"vocab_size": 40, "d_model": 24, "encoder_layers": 2, "decoder_layers": 1, "encoder_attention_heads": 3,
        "decoder_attention_heads": 2, "encoder_ffn_dim": 36, "decoder_ffn_dim": 30, "max_position_embeddings": 32,
        "pad_token_id": 0, "decoder_start_token_id": 1, "bos_token_id": 3, "eos_token_id": 1,
        "forced_eos_token_id": None}  # fmt: skip
ALBERT = {**BERT, "embedding_size": 14}
LLAMA = {"vocab_size": 40, "hidden_size": 24, "intermediate_size": 36, "num_hidden_layers": 2, "num_attention_heads": 6,
         "num_key_value_heads": 2, "max_position_embeddings": 64, "bos_token_id": 3, "eos_token_id": 1,
         "pad_token_id": 0}  # fmt: skip

MODERNBERT = {"vocab_size": 40, "hidden_size": 24, "intermediate_size": 36, "num_hidden_layers": 4,
              "num_attention_heads": 3, "local_attention": 4, "max_position_embeddings": 64, "pad_token_id": 0,
              "cls_token_id": 3, "sep_token_id": 1, "bos_token_id": 3, "eos_token_id": 1}  # fmt: skip

Make = Callable[[], Any]


def gpt2(kind: str = "LMHeadModel", **settings: Any) -> Make:
    return lambda: getattr(t, f"GPT2{kind}")(t.GPT2Config(**{**GPT2, **settings}))


def bert(kind: str, **settings: Any) -> Make:
    return lambda: getattr(t, f"Bert{kind}")(t.BertConfig(**{**BERT, **settings}))


def roberta(kind: str, **settings: Any) -> Make:
    return lambda: getattr(t, f"Roberta{kind}")(t.RobertaConfig(**{**BERT, "pad_token_id": 1, **settings}))


def distilbert(kind: str, **settings: Any) -> Make:
    return lambda: getattr(t, f"DistilBert{kind}")(t.DistilBertConfig(**{**DISTILBERT, **settings}))


def t5(kind: str = "ForConditionalGeneration", *, untied: bool = False, **settings: Any) -> Make:
    def make() -> Any:
        model = getattr(t, f"T5{kind}")(t.T5Config(**{**T5, **settings}))
        if untied:
            model.lm_head = torch.nn.Linear(24, 40, bias=False)
        return model

    return make


def marian(*, biased: bool = True, **settings: Any) -> Make:
    def make() -> Any:
        model = t.MarianMTModel(t.MarianConfig(**{**MARIAN, **settings}))
        if biased:
            torch.nn.init.normal_(model.final_logits_bias)
        return model

    return make


def bart(name: str = "Bart", kind: str = "ForConditionalGeneration", *, biased: bool = True, **settings: Any) -> Make:
    def make() -> Any:
        model = getattr(t, f"{name}{kind}")(getattr(t, f"{name}Config")(**{**BART, **settings}))
        if biased and name != "M2M100":
            torch.nn.init.normal_(model.final_logits_bias)
        return model

    return make


def electra(kind: str, **settings: Any) -> Make:
    return lambda: getattr(t, f"Electra{kind}")(t.ElectraConfig(**{**ALBERT, **settings}))


def albert(kind: str, **settings: Any) -> Make:
    return lambda: getattr(t, f"Albert{kind}")(t.AlbertConfig(**{**ALBERT, **settings}))


def modernbert(kind: str = "ForMaskedLM", **settings: Any) -> Make:
    return lambda: getattr(t, f"ModernBert{kind}")(t.ModernBertConfig(**{**MODERNBERT, **settings}))


def llama(name: str = "Llama", kind: str = "ForCausalLM", **settings: Any) -> Make:
    return lambda: getattr(t, f"{name}{kind}")(getattr(t, f"{name}Config")(**{**LLAMA, **settings}))


LLAMA3 = {
    "rope_type": "llama3", "rope_theta": 500.0, "factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0,
    "original_max_position_embeddings": 8,
}  # fmt: skip

NAMES = {"id2label": {0: "bad", 1: "so so", 2: "good"}, "label2id": {"bad": 0, "so so": 1, "good": 2}}

DECODERS: dict[str, Make] = {
    "gpt2": gpt2(),
    "gpt2, bare": gpt2("Model"),
    "gpt2, scaled by layer": gpt2(scale_attn_by_inverse_layer_idx=True),
    "gpt2, no scale": gpt2(scale_attn_weights=False, reorder_and_upcast_attn=True),
    "gpt2, untied": gpt2(tie_word_embeddings=False),
    "gpt2, odd": gpt2(n_inner=50, activation_function="relu", layer_norm_epsilon=1e-3, n_head=2),
    "llama": llama(),
    "llama, bare": llama(kind="Model"),
    "llama, tied": llama(tie_word_embeddings=True, num_key_value_heads=6),
    "llama, odd": llama(
        head_dim=6,
        attention_bias=True,
        mlp_bias=True,
        rms_norm_eps=1e-3,
        hidden_act="gelu",
        rope_parameters={"rope_type": "default", "rope_theta": 500.0, "partial_rotary_factor": 1.0},
        num_key_value_heads=1,
    ),
    "llama, linear": llama(rope_parameters={"rope_type": "linear", "factor": 2.5, "rope_theta": 100.0}),
    "llama 3": llama(rope_parameters=LLAMA3, max_position_embeddings=64),
    "mistral": llama("Mistral", sliding_window=4),
    "mistral, no window": llama("Mistral", sliding_window=None, tie_word_embeddings=True),
    "qwen2": llama("Qwen2"),
    "qwen2, tied": llama("Qwen2", tie_word_embeddings=True),
}
ENCODER_DECODERS: dict[str, Make] = {
    "t5": t5(),
    "t5, 1.1": t5(feed_forward_proj="gated-gelu", tie_word_embeddings=False, untied=True),
    "t5, gated, tied": t5(feed_forward_proj="gated-silu", tie_word_embeddings=False),
    "t5, gated by the exact gelu": t5(feed_forward_proj="gated-gelu_python"),
    "t5, odd": t5(d_kv=5, num_decoder_layers=1, relative_attention_num_buckets=8, relative_attention_max_distance=20,
                  layer_norm_epsilon=1e-3, feed_forward_proj="gelu"),
    "marian": marian(),
    "marian, scaled": marian(biased=False, scale_embedding=True, activation_function="swish"),
    "marian, separate": marian(share_encoder_decoder_embeddings=False, decoder_vocab_size=36),
    "marian, larger target": marian(
        share_encoder_decoder_embeddings=False, decoder_vocab_size=60, decoder_start_token_id=59
    ),
    "marian, untied": marian(share_encoder_decoder_embeddings=False, tie_word_embeddings=False),
    "marian, untied and shared": marian(tie_word_embeddings=False),
    "bart": bart(),
    "bart, odd": bart(biased=False, scale_embedding=True, activation_function="relu", tie_word_embeddings=False),
    "mbart": bart("MBart", scale_embedding=True),
    "m2m100": bart("M2M100"),
    "m2m100, odd": bart("M2M100", scale_embedding=False, activation_function="gelu", tie_word_embeddings=False),
}  # fmt: skip
TOKEN_HEADS: dict[str, Make] = {
    "bert": bert("ForMaskedLM"),
    "bert, odd": bert("ForMaskedLM", hidden_act="gelu_new", layer_norm_eps=1e-3, type_vocab_size=3),
    "bert, untied": bert("ForMaskedLM", tie_word_embeddings=False),
    "roberta": roberta("ForMaskedLM"),
    "distilbert": distilbert("ForMaskedLM"),
    "distilbert, relu": distilbert("ForMaskedLM", activation="relu", sinusoidal_pos_embds=True),
    "bert, tags": bert("ForTokenClassification", **NAMES),
    "bert, spans": bert("ForQuestionAnswering"),
    "roberta, tags": roberta("ForTokenClassification", **NAMES),
    "roberta, spans": roberta("ForQuestionAnswering"),
    "distilbert, tags": distilbert("ForTokenClassification", **NAMES),
    "distilbert, spans": distilbert("ForQuestionAnswering"),
    "electra": electra("ForMaskedLM"),
    "electra, one width": electra("ForMaskedLM", embedding_size=24, hidden_act="relu"),
    "electra, untied": electra("ForMaskedLM", tie_word_embeddings=False),
    "electra, tags": electra("ForTokenClassification", **NAMES),
    "electra, spans": electra("ForQuestionAnswering"),
    "albert": albert("ForMaskedLM"),
    "albert, odd": albert(
        "ForMaskedLM",
        embedding_size=24,
        num_hidden_layers=5,
        num_hidden_groups=2,
        hidden_act="gelu",
        tie_word_embeddings=False,
    ),
    "albert, tags": albert("ForTokenClassification", **NAMES),
    "albert, spans": albert("ForQuestionAnswering"),
    "modernbert": modernbert(),
    "modernbert, odd": modernbert(
        layer_types=["sliding_attention", "full_attention", "full_attention", "sliding_attention"],
        local_attention=7,
        norm_bias=True,
        norm_eps=1e-3,
        attention_bias=True,
        mlp_bias=True,
        classifier_bias=True,
        classifier_activation="silu",
        hidden_activation="relu",
        decoder_bias=False,
        tie_word_embeddings=False,
        rope_parameters={
            "full_attention": {"rope_type": "default", "rope_theta": 500.0},
            "sliding_attention": {"rope_type": "default", "rope_theta": 70.0},
        },
    ),
}
SEQUENCE_HEADS: dict[str, Make] = {
    "bert, labels": bert("ForSequenceClassification", **NAMES),
    "bert, regression": bert("ForSequenceClassification", num_labels=1),
    "bert, next sentence": bert("ForNextSentencePrediction"),
    "bert, several labels": bert("ForSequenceClassification", problem_type="multi_label_classification", **NAMES),
    "roberta, labels": roberta("ForSequenceClassification", **NAMES),
    "distilbert, labels": distilbert("ForSequenceClassification", **NAMES),
    "distilbert, regression": distilbert("ForSequenceClassification", num_labels=1, problem_type="regression"),
    "gpt2, labels": gpt2("ForSequenceClassification", **NAMES),
    "llama, labels": llama(kind="ForSequenceClassification", **NAMES),
    "electra, labels": electra("ForSequenceClassification", **NAMES),
    "electra, regression": electra("ForSequenceClassification", num_labels=1, problem_type="regression"),
    "albert, labels": albert("ForSequenceClassification", **NAMES),
}
DECODER_TOKEN_HEADS: dict[str, Make] = {
    "gpt2, tags": gpt2("ForTokenClassification", **NAMES),
    "gpt2, spans": gpt2("ForQuestionAnswering"),
    "qwen2, tags": llama("Qwen2", "ForTokenClassification", **NAMES),
}
ENCODERS: dict[str, Make] = {
    "bert, bare": bert("Model"),
    "bert, no pooler": lambda: t.BertModel(t.BertConfig(**BERT), add_pooling_layer=False),
    "roberta, bare": roberta("Model"),
    "distilbert, bare": distilbert("Model"),
    "t5, encoder": t5("EncoderModel"),
    "t5, gated encoder": t5("EncoderModel", feed_forward_proj="gated-gelu"),
    "electra, bare": electra("Model"),
    "albert, bare": albert("Model"),
    "modernbert, bare": modernbert("Model"),
}
PRETRAINING: dict[str, Make] = {
    "bert, pretraining": bert("ForPreTraining"),
    "albert, pretraining": albert("ForPreTraining", num_hidden_layers=3),
}
DISCRIMINATORS: dict[str, Make] = {"electra, discriminator": electra("ForPreTraining", hidden_act="gelu_new")}
ALL = {
    **DECODERS,
    **ENCODER_DECODERS,
    **TOKEN_HEADS,
    **SEQUENCE_HEADS,
    **DECODER_TOKEN_HEADS,
    **ENCODERS,
    **PRETRAINING,
    **DISCRIMINATORS,
}
