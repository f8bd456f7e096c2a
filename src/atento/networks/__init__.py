"""Networks: the block, the stack and the families that are configurations of it."""

from atento.config import presets
from atento.networks.build import Seq2Seq, build_network, build_seq2seq, parameter_count
from atento.networks.interface import Network, with_head
from atento.networks.output import Output
from atento.networks.recurrent.elmo import ELMo
from atento.networks.recurrent.language_model import RecurrentLM
from atento.networks.recurrent.seq2seq import RecurrentSeq2Seq
from atento.networks.stack.encoder import Encoder
from atento.networks.stack.stack_decoders import Decoder, EncoderDecoder
from atento.networks.words.cbow import CBOW

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
    "with_head",
]
