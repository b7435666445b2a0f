"""The fixed texts on which two models are compared.

They are written in several scripts, and range from an empty text to one with more than 128 tokens.
"""

_LONG = (
    "The station clock had stopped at ten past four, and nobody in the town could say when. People set their watches "
    "by the bakery instead, whose door opened at six with a smell of bread that reached the river. "
)

TEXTS = (
    "",
    "a",
    "The cat sat on the mat.",
    "Is Tokyo larger than Paris? Yes: 14,094,034 people lived there in 2023!",
    "  two  spaces,\ttabs\nand a line break  ",
    "A man went to the store. He bought milk, bread and 2.5 kg of apples for $7.30.",
    "https://example.org/a_b?c=d&e=f#g user@example.org :-)",
    "Crème brûlée, Übermut, smørrebrød, İstanbul, naïve café",
    "Москва — столица России.",
    "Η Αθήνα είναι πρωτεύουσα.",  # noqa: RUF001 - Greek
    "القاهرة مدينة كبيرة",
    "नई दिल्ली भारत की राजधानी है",
    "東京は日本の首都です。",
    "서울은 한국의 수도이다",
    "unbelievably antidisestablishmentarianism 👍🏽 x²+y²=z²",
    _LONG * 5,
)

PAIRS = (
    ("A man went to the store.", "He bought milk."),
    ("Tokyo is the largest city.", "The cat sat on the mat."),
)

MASKED = (
    "Tokyo is the largest city in [MASK].",
    "The [MASK] sat on the [MASK].",
    "A man went to the [MASK] to buy milk.",
    "[MASK] is the capital of France.",
)
