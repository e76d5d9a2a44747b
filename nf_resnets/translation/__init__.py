"""Translation: sentence pairs, vocabulary, batches by tokens, the training step, beam search.

A network is trained and used so (its parameters are a scheme's, see :mod:`nf_resnets.init`):

>>> from nf_resnets import models
>>> pairs = load_pairs("made", limit=100)
>>> vocabulary = train_vocabulary(pairs.train.source, pairs.train.target, size=120)
>>> corpus = encode(pairs.train.source, pairs.train.target, vocabulary, max_length=48)
>>> model = models.Transformer(vocab_size=vocabulary.target_size, max_length=64, scheme="fixup")
>>> len(corpus.source), model.num_branches
(100, 30)
"""

from nf_resnets.translation.batches import (
    WIDTHS,
    Corpus,
    TokenBatch,
    batch_of,
    batch_shapes,
    encode,
    epoch_batches,
)
from nf_resnets.translation.beam import beam_search, length_penalty
from nf_resnets.translation.loss import mean_likelihood, token_loss, token_losses
from nf_resnets.translation.made import made_pairs
from nf_resnets.translation.pairs import MADE, Pairs, PairSet, load_pairs
from nf_resnets.translation.program import TokenTraining, token_program
from nf_resnets.translation.recipe import OPTIMIZERS, Sentences, adam, recipe
from nf_resnets.translation.translate import LONGER, Bleu, bleu, translate
from nf_resnets.translation.vocabulary import (
    BEGIN,
    END,
    PADDING,
    UNKNOWN,
    Vocabulary,
    train_vocabulary,
)

__all__ = [
    "BEGIN", "END", "LONGER", "MADE", "OPTIMIZERS", "PADDING", "UNKNOWN", "WIDTHS", "Bleu",
    "Corpus", "PairSet", "Pairs", "Sentences", "TokenBatch", "TokenTraining", "Vocabulary", "adam",
    "batch_of", "batch_shapes", "beam_search", "bleu", "encode", "epoch_batches",
    "length_penalty", "load_pairs", "made_pairs", "mean_likelihood", "recipe", "token_loss",
    "token_losses", "token_program", "train_vocabulary", "translate",
]  # fmt: skip
