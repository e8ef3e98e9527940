"""MP-HCNN by the distinct windows of a batch, with gradients."""

from torch import Tensor

from rerankers.base import Inputs, Interactions
from rerankers.layers.similarity import mask_of, partial_softmax
from rerankers.models.mp_hcnn import MEAN_SCALE, Config, Model
from rerankers.perspectives import Perspective
from rerankers.shared_windows import SideBySide, similarities


def interact(model: Model, queries: Inputs, posts: Inputs, query_of_post: Tensor) -> Interactions:
    """What the model's ``interact`` gives of what its encoders give."""
    config = model.config
    queries, posts = model.read_queries(queries), model.read_posts(posts)
    compared: dict[str, tuple[SideBySide, list[Tensor]]] = {}
    for name, tower in model.towers.items():
        # A tower has the name of the view of queries that it reads.
        inputs = [p.post_view for p in model.perspectives.values() if p.query_view == name]
        found = similarities(
            tower,  # type: ignore[arg-type]
            queries[name].ids, [posts[view].ids for view in inputs], query_of_post,
            config.similarity == "cosine",
        )  # fmt: skip
        compared |= dict(zip(inputs, found, strict=True))
    pooled = {}
    for name, places in model.perspectives.items():
        layout, levels = compared[places.post_view]
        mask = mask_of(queries[places.query_view].ids)
        pooled[name] = [_pool(config, layout, level, mask, places) for level in levels]
    return model.weigh(pooled, queries, posts, query_of_post)


def _pool(
    config: Config, layout: SideBySide, similarity: Tensor, query_mask: Tensor, places: Perspective
) -> list[Tensor]:
    """Normalise, then max and mean over each post's terms: [P, Lq] each of [Q, S, Lq]."""
    scale, length = MEAN_SCALE, None
    if config.normalization == "post":
        shares = layout.softmax(similarity * config.temperature, places.post_length)
        wanted = (config.max_pooling, config.mean_pooling)
        return [values for values, kept in zip(shares, wanted, strict=True) if kept]
    if config.normalization == "query":
        logits = similarity * config.temperature
        similarity = partial_softmax(logits, query_mask.unsqueeze(1), 2, places.query_length)
        scale, length = 1.0, places.post_length
    pooled = []
    if config.max_pooling:
        pooled.append(layout.best(similarity))
    if config.mean_pooling:
        pooled.append(scale * layout.mean(similarity, length))
    return pooled
