"""The question-answering head: scores every token as the first and as the last token of the answer."""

from mlxbert.nn.heads.head import HeadSpec, TokenHead

SPEC = HeadSpec(
    module=lambda config, facts: TokenHead(config, facts, 2),
    scope="span",
    class_names=("ForQuestionAnswering",),
    stems={"out": "qa_outputs"},
    keys=("no_answer_threshold",),
    peft_type="QUESTION_ANS",
    task="answer",
    title="question-answering head",
    hint="deepset/roberta-base-squad2 has one; for your own data: "
    "`mlxbert.finetune('answer', train=FILE, output=FOLDER)`",
)
