from mlxbert.device import mx


def cross_entropy(logits, targets, weights=None, label_smoothing=0.0):
    l = logits.astype(mx.float32)
    lse = mx.logsumexp(l, axis=-1)
    n = lse - mx.take_along_axis(l, targets[:, None], axis=-1)[:, 0]
    if weights is not None:
        n = n * weights[targets]
    return n.sum()


def binary_cross_entropy(logits, targets):
    l = logits.astype(mx.float32)
    return (mx.logaddexp(0.0, l) - l * targets).sum()


def mean_squared_error(a, b):
    return mx.square(a.astype(mx.float32) - b).sum()
