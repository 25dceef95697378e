"""The tensors of jinaai/jina-embeddings-v2-base-en.

Source: the names under which huggingface/candle's jina_bert.rs reads that checkpoint, with nothing before
"embeddings" and "encoder". vllm-project/vllm's jina_bert.py passes over those that begin with "pooler" or
"cls".
"""

from farrank_rankers.backbones.names import PublishedNames

JINA_NAMES = PublishedNames(
    prefix="",
    embeddings={
        "embeddings.word_embeddings.weight": "embeddings.word.weight",
        "embeddings.token_type_embeddings.weight": "embeddings.segment.weight",
        "embeddings.LayerNorm.weight": "embeddings.norm.weight",
        "embeddings.LayerNorm.bias": "embeddings.norm.bias",
    },
    layer={
        "encoder.layer.{n}.attention.self.query.weight": "layers.{n}.attention.query.weight",
        "encoder.layer.{n}.attention.self.query.bias": "layers.{n}.attention.query.bias",
        "encoder.layer.{n}.attention.self.key.weight": "layers.{n}.attention.key.weight",
        "encoder.layer.{n}.attention.self.key.bias": "layers.{n}.attention.key.bias",
        "encoder.layer.{n}.attention.self.value.weight": "layers.{n}.attention.value.weight",
        "encoder.layer.{n}.attention.self.value.bias": "layers.{n}.attention.value.bias",
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
            "pooler.dense.weight",
            "pooler.dense.bias",
            "cls.predictions.bias",
            "cls.predictions.decoder.weight",
            "cls.predictions.decoder.bias",
            "cls.predictions.transform.dense.weight",
            "cls.predictions.transform.dense.bias",
            "cls.predictions.transform.LayerNorm.weight",
            "cls.predictions.transform.LayerNorm.bias",
        }
    ),
)
