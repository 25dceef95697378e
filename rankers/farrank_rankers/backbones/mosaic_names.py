"""The tensors of mosaicml/mosaic-bert-base-seqlen-2048, saved as a masked language model.

Source: the parameter names of mosaicml/examples, bert/src/bert_layers.py. oaqa/FlexNeuART's mosaicbert.py
takes "bert." off the checkpoint's names and drops those that begin with "cls" before it loads the encoder.
"""

from farrank_rankers.backbones.names import PublishedNames

MOSAIC_NAMES = PublishedNames(
    prefix="bert.",
    embeddings={
        "embeddings.word_embeddings.weight": "embeddings.word.weight",
        "embeddings.token_type_embeddings.weight": "embeddings.segment.weight",
        "embeddings.LayerNorm.weight": "embeddings.norm.weight",
        "embeddings.LayerNorm.bias": "embeddings.norm.bias",
    },
    layer={
        "encoder.layer.{n}.attention.self.Wqkv.weight": "layers.{n}.attention.qkv.weight",
        "encoder.layer.{n}.attention.self.Wqkv.bias": "layers.{n}.attention.qkv.bias",
        "encoder.layer.{n}.attention.output.dense.weight": "layers.{n}.attention.output.weight",
        "encoder.layer.{n}.attention.output.dense.bias": "layers.{n}.attention.output.bias",
        "encoder.layer.{n}.attention.output.LayerNorm.weight": "layers.{n}.attention.norm.weight",
        "encoder.layer.{n}.attention.output.LayerNorm.bias": "layers.{n}.attention.norm.bias",
        "encoder.layer.{n}.mlp.gated_layers.weight": "layers.{n}.feed_forward.gated.weight",
        "encoder.layer.{n}.mlp.wo.weight": "layers.{n}.feed_forward.output.weight",
        "encoder.layer.{n}.mlp.wo.bias": "layers.{n}.feed_forward.output.bias",
        "encoder.layer.{n}.mlp.layernorm.weight": "layers.{n}.feed_forward.norm.weight",
        "encoder.layer.{n}.mlp.layernorm.bias": "layers.{n}.feed_forward.norm.bias",
    },
    ignored=frozenset(
        {
            "bert.pooler.dense.weight",
            "bert.pooler.dense.bias",
            "cls.predictions.decoder.weight",
            "cls.predictions.decoder.bias",
            "cls.predictions.transform.dense.weight",
            "cls.predictions.transform.dense.bias",
            "cls.predictions.transform.LayerNorm.weight",
            "cls.predictions.transform.LayerNorm.bias",
        }
    ),
)
