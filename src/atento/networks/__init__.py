"""Networks: the block, the stack and the families that are configurations of it."""

from atento.config import presets
from atento.networks.build import Network, Seq2Seq, build_network, build_seq2seq, parameter_count
from atento.networks.cbow import CBOW
from atento.networks.decoder import Decoder
from atento.networks.elmo import ELMo
from atento.networks.encoder import Encoder
from atento.networks.encoder_decoder import EncoderDecoder
from atento.networks.output import Output
from atento.networks.recurrent_lm import RecurrentLM
from atento.networks.recurrent_seq2seq import RecurrentSeq2Seq

__all__ = [
    "CBOW",
    "Decoder",
    "ELMo",
    "Encoder",
    "EncoderDecoder",
    "Network",
    "Output",
    "RecurrentLM",
    "RecurrentSeq2Seq",
    "Seq2Seq",
    "build_network",
    "build_seq2seq",
    "parameter_count",
    "presets",
]
