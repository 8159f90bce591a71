"""Which programs for sed, awk and jq only print. These languages can write files, run commands and read others.

Pure. What is not plainly of the few forms known here is not safe.
"""

import re


def _until(mark: str, most: str = "*") -> str:
    """Text up to a mark. Brackets only as every program ends them: no mark, no bracket and no ] at first inside."""
    plain = rf"[^\]\[{mark}\\\n]|\\[A-Za-z]|\[:[a-z]+:\]"
    return rf"(?:[^{mark}\\\n\[]|\\[^\n]|\[\^?(?!\^)(?:{plain})+\]){most}"


_ADDRESS = rf"(?:\d+(?:~\d+)?|\$|/{_until('/', '+')}/I?)"
_REPLACE = "|".join(
    rf"s{mark}{_until(mark)}{mark}(?:[^{mark}\\\n]|\\[^\n])*{mark}[gpiI0-9]*"
    for mark in ("/", r"\|", "#", ",", "@", "!")
)
_SED = re.compile(
    rf"\s*(?:{_ADDRESS}(?:\s*,\s*(?:{_ADDRESS}|\+\d+))?)?\s*!?\s*(?:[pd=]|[qQ]\d*|{_REPLACE})\s*(?:;|\Z)",
)
_STRING = r'"(?:[^"\\\n]|\\[^\n])*"'
_PATTERN = rf"/{_until('/', '+')}/"
_WORDS = "BEGIN|END|getline|next|exit|delete|in|if|else|for|while|do|print|printf|func|function|return|length"
_OWN = rf"(?!(?:{_WORDS})\b)[a-z]\w*"
"""A variable of the program's own: awk's are in capitals, and its words are none."""
_OPERAND = rf"(?:\$(?:\d+|NF)|\$\(NF-\d+\)|NR|NF|FNR|length(?:\(\$\d+\))?|\d+(?:\.\d+)?|{_STRING}|{_OWN})(?![\w(])"
_SUM = rf"{_OPERAND}(?: *[-+*/%] *{_OPERAND})?"
_LIST = rf"{_SUM}(?:(?: *, *| +|(?=\")|(?<=\")){_SUM})*"
_TEST = rf"(?:!? *{_PATTERN}|{_SUM} *(?:[=!<>]=|[<>]) *{_SUM}|{_OPERAND} *!?~ *{_PATTERN}|{_OPERAND})"
_PRINT = rf"print(?: +{_LIST}|(?=[\"$]){_LIST})?|printf *{_STRING}(?: *, *{_LIST})?"
_STEP = rf"(?:{_PRINT}|{_OWN} *(?:\+\+|[-+]?= *{_SUM}))"
_RULE = rf" *(?:BEGIN|END|{_TEST}(?: *(?:&&|\|\|) *{_TEST})*)? *(?:\{{ *{_STEP}(?: *; *{_STEP})* *;? *\}})? *"
_AWK = re.compile(rf"(?:{_RULE}(?:;|(?<=\}})|\Z))+")
_MOST_AWK = 300
_VALUE = re.compile(rf"(?:{_OWN}|[IO]?FS|O?RS)=[^\x00-\x1f]*")
_JQ_READS_ELSE = re.compile(r"\b(?:import|include|input_filename|env|get_search_list|modulemeta)\b|\$ENV|\$__")


def sed_prints(script: str) -> bool:
    """Whether a sed script only chooses, deletes or replaces lines of its output."""
    at = 0
    while at < len(script):
        found = _SED.match(script, at)
        if not found or found.end() == at:
            return False
        at = found.end()
    return bool(script.strip())


def awk_prints(script: str) -> bool:
    """Whether an awk program only compares, counts and prints: fields, numbers, texts and variables of its own."""
    return bool(script.strip()) and len(script) <= _MOST_AWK and _AWK.fullmatch(script) is not None


def jq_reads(script: str) -> bool:
    """Whether a jq program reads nothing but what it is given: no module, no environment."""
    return not _JQ_READS_ELSE.search(script)


def awk_value(text: str) -> bool:
    """Whether it is `name=value`, as awk's -v takes it, and the name is none of awk's that matter."""
    return bool(_VALUE.fullmatch(text))
