"""The zoo: every model of the lineage is one function from its arguments to a description."""

from regard.models.zoo.bert import bert
from regard.models.zoo.convolutional import convs2s
from regard.models.zoo.elmo import elmo
from regard.models.zoo.gpt2 import gpt2
from regard.models.zoo.recurrent import bahdanau, lstm_lm, luong, seq2seq
from regard.models.zoo.reformer import reformer
from regard.models.zoo.sha_rnn import sha_rnn
from regard.models.zoo.t5 import t5
from regard.models.zoo.transformer import transformer

__all__ = [
    "bahdanau", "bert", "convs2s", "elmo", "gpt2", "lstm_lm", "luong", "reformer", "seq2seq", "sha_rnn", "t5",
    "transformer",
]  # fmt: skip
