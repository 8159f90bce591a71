"""What a short statement says of whom ("I live in Berlin": me, home, berlin), and which day it speaks of.

Pure. Only frames that are known are read; any other statement has none. Which attributes have one value at a time, and
for whom (one has one mother, and may have two sisters), is known here. A day is read where a sentence names one day
plainly, in English or Chinese; a week, a month or "soon" has none.
"""

import re
import unicodedata
from collections.abc import Callable
from datetime import date, timedelta
from functools import lru_cache
from typing import NamedTuple

from lamina.memory.sentences import fold, is_chinese, listed
from lamina.text.terms import read_numeral


class Frame(NamedTuple):
    key: tuple[str, str]
    """Subject and attribute."""
    value: tuple[str, ...]
    negated: bool = False
    single: bool = True
    """Whether the attribute has one value at a time."""
    sole: bool = True
    """Whether there is one such subject: another value then is a change, not another sister."""
    changed: bool = False
    """Whether the statement itself says that something changed or was wrong."""
    more: bool = False
    """Whether it says that this comes on top."""
    dated: bool = False
    """Whether it speaks of a year that has passed: history, which nothing newer makes untrue."""
    timed: bool = False
    scale: str = ""


_UNIQUE = frozenset(
    listed(
        "me wife husband spouse partner girlfriend boyfriend fiance fiancé fiancée fiancee mother father mom mum dad "
        "boss landlord landlady manager company office car house apartment flat school employer team 妻子 丈夫 老婆 "
        "老公 太太 先生 爱人 媳妇 女朋友 男朋友 女友 男友 妈妈 爸爸 母亲 父亲 妈 爸 老板 房东 公司 学校 婆婆 公公 "
        "岳母 岳父 领导 上司"
    )
)
_SINGLE_THINGS = (
    r"(?:first |last |full |middle |maiden )?name|(?:home |work |mobile |cell |new )?(?:phone|telephone"
    r"|mobile)(?: number)?|number|"
    r"(?:work |home |private |new )?e-?mail(?: address)?|(?:home |work |new )?address|birthday|date of birth|height"
    r"|weight|shoe size|blood type|"
    r"salary|rent|major|native language|mother tongue|hometown|nationality|star sign|time ?zone|age|job|profession"
    r"|editor|operating system|budget|"
    r"favorite [\w ]+|wedding date|due date|pronouns"
)
_TRAILING = re.compile(
    r",? (?:now|currently|at the moment|these days|any ?more|anymore|as of (?:today|now)|actually|instead|nowadays"
    r"|though|by the way|today|"
    r"recently|lately|finally|already)$",
    re.IGNORECASE,
)
_DATED = re.compile(
    r",? (?:last|next|this) (?:week|month|year|summer|winter|spring|fall|autumn|\w+day|january|february|march|april"
    r"|may|june|july|august|"
    r"september|october|november|december)$|,? (?:yesterday|(?:\w+|\d+) (?:days?|weeks?|months?|years?) ago"
    r"|(?:back )?in (?:\w+ )?(?:19|20)\d\d|"
    r"in (?:january|february|march|april|may|june|july|august|september|october|november|december)|(?:since|until"
    r"|from) (?s:.*))$",
    re.IGNORECASE,
)
_YEAR = re.compile(r"(?:19|20)\d\d|\bago\b|\buntil\b")
_MORE = re.compile(
    r"\b(?:also|too|as well|another|second|part[- ]time|besides|other|one of)\b|也|还有|另外|又|第二|另一|兼职|之一",
    re.IGNORECASE,
)
_CHANGED = re.compile(
    r"\b(?:now|no longer|any ?more|actually|instead|changed|switched|renamed|became|correction|i meant|not .{1,80} but"
    r"|moved|new|these days)\b"
    r"|现在|改|换成|换了|不再|其实|应该是|搬|如今|更正|说错|跳槽|转行|新",
    re.IGNORECASE,
)
_SOFT = re.compile(
    r"\b(?:now|currently|actually|still|really|just|recently|finally|already|also|very|absolutely|totally|both|simply"
    r"|definitely|truly|well|"
    r"so|btw|by the way|ok|okay|no|yes|sorry|correction),? ",
    re.IGNORECASE,
)
_COUNTRIES = frozenset(
    listed(
        "germany france spain italy portugal england scotland wales ireland uk usa us america canada mexico brazil "
        "argentina chile china japan korea india australia austria switzerland poland sweden norway denmark finland "
        "netherlands belgium greece turkey russia ukraine egypt kenya nigeria thailand vietnam indonesia malaysia "
        "philippines taiwan california texas florida europe asia africa bavaria ontario quebec 中国 美国 英国 法国 "
        "德国 日本 韩国 加拿大 澳大利亚 澳洲 新西兰 意大利 西班牙 俄罗斯 印度 泰国 越南 马来西亚 台湾 欧洲 亚洲 四川 "
        "广东 浙江 江苏 山东 河南 河北 湖南 湖北 福建 安徽 江西 辽宁 吉林 黑龙江 陕西 山西 云南 贵州 广西 海南 甘肃 "
        "青海 内蒙古 新疆 西藏 宁夏"
    )
)
_JOB = re.compile(
    r"(?:^| )(?!(?:father|mother|brother|sister|lover|beginner|gamer|runner|reader|hiker|member|christian|vegetarian"
    r"|libertarian|foreigner|"
    r"smoker|drinker|speaker|owner|believer|twin|number|diver|swimmer|walker|cyclist|climber|dancer|volunteer)$)"
    r"(?:\w+(?:er|or|ist|ian|eer|ant|tect)|nurse|chef|cook|pilot|clerk|consultant|analyst|barista|judge|scientist)$",
)
_LANGUAGES = {
    name: names.split()[0]
    for names in (
        "en english 英文 英语",
        "zh chinese mandarin 中文 汉语 普通话",
        "fr french 法语 法文",
        "de german 德语 德文",
        "es spanish 西班牙语",
        "it italian 意大利语",
        "ja japanese 日语 日文",
        "ko korean 韩语 韩文",
        "ru russian 俄语",
        "pt portuguese 葡萄牙语",
        "nl dutch 荷兰语",
        "yue cantonese 粤语 广东话",
    )
    for name in names.split()[1:]
}


@lru_cache(maxsize=4096)
def frame_of(text: str) -> Frame | None:
    """The frame of a statement of one clause."""
    plain = fold(unicodedata.normalize("NFKC", fold(text))).strip(" .!。！,，;；~")
    if len(plain) > 200:
        return None
    frame = _chinese(plain) if is_chinese(plain) else _english(plain)
    if frame is None or not frame.value:
        return None
    return frame._replace(
        more=bool(_MORE.search(plain)),
        changed=frame.changed or bool(_CHANGED.search(plain)),
        sole=frame.key[0] in _UNIQUE,
    )


def _english(text: str) -> Frame | None:
    for pattern, plain in _EXPAND:
        text = pattern.sub(plain, text)
    text = _without_trailing(_SOFT.sub("", f"{text} ").strip())
    dated = timed = False
    while found := _DATED.search(text):
        text, dated, timed = text[: found.start()], dated or bool(_YEAR.search(found[0])), True
    text = _without_trailing(text)
    for pattern, read in _ENGLISH:
        match = pattern.fullmatch(text)
        frame = read(match) if match else None
        if frame:
            return frame._replace(dated=dated, timed=timed)
    return None


def _without_trailing(text: str) -> str:
    while found := _TRAILING.search(text):
        text = text[: found.start()]
    return text


_I = re.IGNORECASE
_EXPAND = (
    (re.compile(r"\bI'm\b", _I), "I am"),
    (re.compile(r"\bI've\b", _I), "I have"),
    (re.compile(r"\b(?:can't|cannot)\b", _I), "can not"),
    (re.compile(r"n't\b", _I), " not"),
    (re.compile(r"\bname's\b", _I), "name is"),
    (re.compile(r"\b(he|she|it|we|they)'(?:s|re)\b", _I), r"\1 is"),
    (re.compile(r"\b(?:no longer|never)\b", _I), "not"),
    (re.compile(r"\bfavourite\b", _I), "favorite"),
    (re.compile(r"\bcolour\b", _I), "color"),
)
_WHO = r"(I|we|my (?:[\w-]+ ){0,2}?[\w-]+)"


def _who(text: str) -> str:
    low = text.lower()
    return {"i": "me", "we": "us"}.get(low, low.removeprefix("my ").removesuffix("'s").removesuffix("’s"))


def _words(text: str) -> tuple[str, ...]:
    return tuple(
        word for word in re.findall(r"[\w+#@.-]+", text.lower().replace("'s", "")) if word not in ("a", "an", "the")
    )


def _home(match: re.Match[str]) -> Frame | None:
    place = match[3]
    if not re.match(r"[A-Z]", place) or len(place.split()) > 5:
        return None  # "in a small flat": a kind of place, not a place
    words = _words(place)
    scale = "country" if " ".join(words) in _COUNTRIES or "united" in words else ""
    return Frame(
        (_who(match[1]), "home"), words, negated="not" in match[2].lower(), changed="moved" in match[2], scale=scale
    )


def _age(match: re.Match[str]) -> Frame | None:
    number = match[2].lower().replace("-", " ")
    tens = dict(
        zip(
            listed("twenty thirty forty fifty sixty seventy eighty ninety"),
            range(20, 100, 10),
            strict=True,
        )
    )
    ones = {w: n for n, w in enumerate(listed(
        "zero one two three four five six seven eight nine ten eleven twelve thirteen fourteen fifteen sixteen "
        "seventeen eighteen nineteen"))}  # fmt: skip
    if number.isdigit():
        return Frame((_who(match[1]), "age"), (str(int(number)),))
    parts = [tens.get(word, ones.get(word)) for word in number.split()]
    return None if None in parts else Frame((_who(match[1]), "age"), (str(sum(part or 0 for part in parts)),))


def _isa(match: re.Match[str]) -> Frame | None:
    value = match[3].lower()
    if not _JOB.search(value) or len(value.split()) > 3:
        return None
    return Frame((_who(match[1]), "job"), _words(value), negated="not" in match[2].lower(), single=False)


def _liking(match: re.Match[str]) -> Frame | None:
    denied = bool(match[2]) != (
        match[3].lower() in ("hate", "hates", "dislike", "dislikes", "detest", "loathe", "stand", "bear")
    )
    if match[3].lower() in ("stand", "bear"):
        denied = True
    return Frame((_who(match[1]), "likes"), _words(match[4]), negated=denied, single=False)


def _own(attribute: Callable[[re.Match[str]], tuple[str, str]], value: int) -> Callable[[re.Match[str]], Frame | None]:
    return lambda match: Frame(attribute(match), _words(match[value]))


def _thing(match: re.Match[str]) -> Frame:
    whose = _who(match[1]) if match[1] else "me"
    thing = re.sub(r"\b(?:tele|new )|(?<=phone) number|(?<=mail) address", "", match[2].lower()).strip()
    thing = {"number": "phone", "mobile": "phone", "mobile phone": "phone", "cell phone": "phone"}.get(thing, thing)
    words = _words(match[3])
    if thing.endswith("phone"):
        words = tuple(filter(None, ["".join(re.findall(r"\d", match[3]))]))
    return Frame((whose, thing), words)


def _status(match: re.Match[str]) -> Frame:
    return Frame((_who(match[1]), "status"), (match[3].lower(),), negated="not" in match[2].lower())


def _language(match: re.Match[str]) -> Frame | None:
    code = _LANGUAGES.get(match[1].lower())
    return Frame(("me", "answers in"), (code,)) if code else None


_ENGLISH: tuple[tuple[re.Pattern[str], Callable[[re.Match[str]], Frame | None]], ...] = (
    (
        re.compile(
            r"(?:please |you should |you must |from on,? |always |from now on,? )*(?:answer|reply|respond|speak|write"
            r"|talk)(?: to me)?(?: only)? "
            r"in (\w+)(?: from now on| always| please)*",
            _I,
        ),
        _language,
    ),
    (re.compile(r"(?:please |just )*call me ([\w' -]{2,30})", _I), _own(lambda m: ("me", "called"), 1)),
    (re.compile(r"(?:my name is|I am called|I go by) ([\w' -]{2,40})", _I), _own(lambda m: ("me", "name"), 1)),
    (
        re.compile(r"my ([\w -]{2,30}?)(?:'s? name is| is called| is named| goes by) ([\w' -]{2,40})", _I),
        _own(lambda m: (_who(m[1]), "name"), 2),
    ),
    (
        re.compile(
            rf"{_WHO} ((?:do(?:es)? not )?(?:lives?|resides?)|(?:am|is|are) (?:not )?(?:living|based|located)|(?:have "
            rf"|has )?(?:moved|relocated)(?: back)?) (?:in|to) (.+)",
            _I,
        ),
        _home,
    ),
    (re.compile(rf"{_WHO} (?:am|is|are|turned) (\d{{1,3}}|[a-z]+(?:[- ][a-z]+)?)(?: years? old| years)?", _I), _age),
    (re.compile(rf"{_WHO} works? (?:as|in the role of) (?:an? )?(.+)", _I), _own(lambda m: (_who(m[1]), "job"), 2)),
    (re.compile(rf"{_WHO} (?:have |has )?(?:became|become) (?:an? )(.+)", _I), _own(lambda m: (_who(m[1]), "job"), 2)),
    (
        re.compile(
            rf"{_WHO} works? (?:at|for) (?!home|night|days|nights|weekends|least|the moment|myself|fun|free|\d)(.+)", _I
        ),
        _own(lambda m: (_who(m[1]), "employer"), 2),
    ),
    (
        re.compile(
            rf"{_WHO} (am|is|am not|is not|are|are not|got|have|has)(?: been)? (single|married|divorced|engaged"
            rf"|widowed)(?: to .+)?",
            _I,
        ),
        _status,
    ),
    (re.compile(rf"{_WHO} ((?:am|is)(?: not)?) an? (.+)", _I), _isa),
    (
        re.compile(
            rf"(my [\w -]{{2,30}}?'s )?(?:my )?({_SINGLE_THINGS}) (?:is|are|has changed to|changed to) ((?s:.+))", _I
        ),
        _thing,
    ),
    (
        re.compile(
            rf"{_WHO} ((?:do(?:es)? |can )not )?(likes?|loves?|enjoys?|adores?|hates?|dislikes?|detest|loathe|stand"
            rf"|bear) (?!to\b)(.+)",
            _I,
        ),
        _liking,
    ),
)


_KIN_CHINESE = r"(我|我们|我(?:的|家)?[^我你他她的叫是住在今有喜爱讨对也还不]{1,6}?)"
_SOFT_CHINESE = re.compile(
    "现在|目前|如今|已经|其实|真的|非常|特别|比较|很|挺|蛮|平时|一直|刚刚?|最近|终于|上个?月|上周|去年|今年(?!\\d)"
    "|昨天|[，,]"
)


def _chinese(text: str) -> Frame | None:
    dated = bool(re.search(r"(?:19|20)\d\d年|[一二三四五六七八九十\d]年前|以前|曾经|小时候", text))
    age = re.fullmatch(
        rf"{_KIN_CHINESE}(?:今年|现在|已经|刚满?|快|都|也|,|，)*([一二三四五六七八九十百两\d]{{1,4}})岁?(?:半)?了?",
        text,
    )
    if age and "岁" in text:
        return Frame((_whose(age[1]), "age"), (str(read_numeral(age[2])),), dated=dated)
    timed = dated or bool(re.search("上个?月|上周|去年|昨天", text))
    plain = _SOFT_CHINESE.sub("", text).rstrip("了啦的呢啊哦呀吧")
    for pattern, read in _CHINESE:
        match = pattern.fullmatch(plain)
        frame = read(match) if match else None
        if frame:
            return frame._replace(dated=dated, timed=timed)
    return None


def _whose(text: str) -> str:
    if text in ("我", "本人", "我们"):
        return "me" if text != "我们" else "us"
    return re.sub("^我(?:的|家)?|的$", "", text) or "me"


def _home_chinese(match: re.Match[str]) -> Frame | None:
    place = re.sub("^(?:在|到|去)|(?:居住|生活|定居)$", "", match[3]).removesuffix("市")
    if len(place) > 10 or re.search("[我你他她]|一[个间套座]|家里|楼$|宿舍|公寓|附近|旁边|一起|学校|公司|医院", place):
        return None
    small = re.search("[区县镇乡村路街道]$|小区$", place)
    scale = small[0] if small else "country" if place.removesuffix("省") in _COUNTRIES else ""
    return Frame((_whose(match[1]), "home"), (place,), changed="搬" in match[2], scale=scale, negated="不" in match[2])


def _likes_chinese(match: re.Match[str]) -> Frame | None:
    denied = bool(match[2]) != (match[3] in ("讨厌", "厌恶", "反感", "受不了"))
    return Frame((_whose(match[1]), "likes"), (match[4].removeprefix("再"),), negated=denied, single=False)


def _thing_chinese(match: re.Match[str]) -> Frame:
    thing = re.sub("号码|号", "", match[2]).replace("手机", "电话")
    return Frame((_whose(match[1]), thing), (match[3],))


def _put(attribute: str) -> Callable[[re.Match[str]], Frame | None]:
    return lambda match: Frame((_whose(match[1]), attribute), (match[2],))


def _isa_chinese(match: re.Match[str]) -> Frame | None:
    if not re.search(
        "师|员|医生|护士|律师|会计|司机|记者|编辑|经理|警察|作家|教授|公务员|程序|销售|老板|保安|军人", match[2]
    ):
        return None
    return Frame((_whose(match[1]), "job"), (match[2],), single=False)


_CHINESE: tuple[tuple[re.Pattern[str], Callable[[re.Match[str]], Frame | None]], ...] = (
    (
        re.compile(
            r"(?:请|以后|今后|每次|从现在开始|从现在起|都|要|一律|始终|你|和我|跟我|,|，"
            r"|给我)*用(.{2,4}?)(?:来)?(?:回答"
            r"|回复|答复|说话|交流|写)(?:我)?(?:的问题)?"
        ),
        _language,
    ),
    (
        re.compile(r"(?:请|以后|就|可以|,|，)*(?:叫|称呼|喊)(我)(?:为|作)?(.{1,8}?)(?:就行|就好|就可以|即可)?"),
        _put("called"),
    ),
    (
        re.compile(rf"{_KIN_CHINESE}(?:的)?(?:名字)?(?:改名(?:叫做?|为|成)|改叫|叫做|名叫|叫|名字是)([^我你]{{1,8}})"),
        _put("name"),
    ),
    (
        re.compile(
            rf"{_KIN_CHINESE}(不?(?:住在?|搬到|搬去|搬家到|搬来|定居在?|移居|居住在|生活在))(?:了)?([^,，。]{{1,12}})"
        ),
        _home_chinese,
    ),
    (re.compile(rf"{_KIN_CHINESE}(?:跳槽到|跳槽去|入职|就职于|任职于)(?:了)?(.{{1,15}})"), _put("employer")),
    (re.compile(rf"{_KIN_CHINESE}在(.{{1,15}}?)(?:工作|上班|任职|就职)"), _put("employer")),
    (re.compile(rf"{_KIN_CHINESE}(?:的)?(?:工作|职业)是(?:一?[名个位])?(.{{1,10}})"), _put("job")),
    (re.compile(rf"{_KIN_CHINESE}(?:转行|改行)?(?:当|做)(?:了)?(?:一?[名个位])?(.{{1,10}})"), _isa_chinese),
    (re.compile(rf"{_KIN_CHINESE}是(?:一?[名个位])?(.{{1,10}})"), _isa_chinese),
    (re.compile(rf"{_KIN_CHINESE}(最(?:喜欢|爱)的.{{1,8}}?)(?:是|叫)(.{{1,20}})"), _thing_chinese),
    (
        re.compile(
            rf"{_KIN_CHINESE}的?((?:手机号码?|手机|电话号码|电话|邮箱|地址|住址|生日|身高|体重|血型|鞋码|月薪|年薪|工资"
            rf"|专业|老家|籍贯|母语|微信号?|英文名|房租|预算))(?:是|在|为|改成|换成|改为|改到)(?:了)?(.{{1,40}})"
        ),
        _thing_chinese,
    ),
    (
        re.compile(rf"{_KIN_CHINESE}(不|没)?(?:再|太|怎么)*(喜欢|爱|讨厌|厌恶|反感|受不了|热爱)(?!的)(.{{1,20}})"),
        _likes_chinese,
    ),
)


# The day of an event

_MONTHS = listed("jan feb mar apr may jun jul aug sep oct nov dec")
_MONTH = (
    r"(jan(?:uary)?|feb(?:ruary)?|mar(?:ch)?|apr(?:il)?|may|june?|july?|aug(?:ust)?|sept?(?:ember)?|oct(?:ober)?"
    r"|nov(?:ember)?"
    r"|dec(?:ember)?)\.?"
)
_DAYS = listed("mon tue wed thu fri sat sun")
_DAY = r"(mon|tues?|wed(?:nes)?|thu(?:rs)?|fri|sat(?:ur)?|sun)(?:day)?"
_COUNTS = {
    word: n for n, word in enumerate(listed("zero one two three four five six seven eight nine ten eleven twelve"))
} | {"a": 1, "an": 1, "a couple of": 2}
_COUNT = rf"(\d{{1,3}}|a couple of|{'|'.join(sorted(_COUNTS, key=len, reverse=True)[1:])})"
_NUMERAL = "([0-9]{1,3}|[一二两三四五六七八九十]{1,3})"
_WEEKDAYS = {char: n for n, char in enumerate("一二三四五六日")} | {"天": 6} | {str(n + 1): n for n in range(7)}

_PAST = re.compile(
    r"\b(?:was|were|had|did|went|got|bought|met|saw|made|took|gave|lost|broke|left|won|ran|flew|quit|came|felt|began"
    r"|\w{2,}ed)\b|ago\b"
    r"|了|过|刚|曾|那天",
    re.IGNORECASE,
)
_FUTURE = re.compile(
    r"\b(?:will|going to|'ll|next|upcoming|leaves|starts|booked|registered|signed up)\b|预约|预订|订了|报名|要|将|会"
    r"|打算|准备|计划",
    re.IGNORECASE,
)


_DATES = (
    (rf"\b(\d{{1,2}})(?:st|nd|rd|th)?(?: of)? {_MONTH},? ((?:19|20)\d\d)\b", (3, 2, 1)),
    (rf"\b{_MONTH} (?:the )?(\d{{1,2}})(?:st|nd|rd|th)?,? ((?:19|20)\d\d)\b", (3, 1, 2)),
)


def find_day(text: str, said: date | None) -> date | None:
    """The day that the text (traditional characters folded) speaks of."""
    full = re.search(r"(?<!\d)((?:19|20)\d\d)\s*[-/.年]\s*(\d{1,2})\s*[-/.月]\s*(\d{1,2})(?!\d)", text)
    if full:
        return _date(int(full[1]), int(full[2]), int(full[3]))
    low = text.lower()
    for pattern, order in _DATES:
        found = re.search(pattern, low)
        if found:
            year, month, day = (found[n] for n in order)
            return _date(int(year), _MONTHS.index(month[:3]) + 1, int(day))
    return _relative(low, said) if said else None


_VAGUE = re.compile(
    r"\b(?:next|last|this|coming) (?:week|weekend|month|year|spring|summer|autumn|fall|winter)\b"
    r"|(?:上|下|这|本)个?(?:周末|月|学期|季度)|(?:上|下|这|本)个?(?:周|星期|礼拜)(?![一二三四五六日天])"
)
"""Beside a span of time a day may be another day than the event's."""


def _relative(low: str, said: date) -> date | None:
    # Also the first year and the last have neighbours that do not exist.
    try:
        days = {day for rule in _RULES if (day := rule(low, said)) is not None}
        return days.pop() if len(days) == 1 and not _VAGUE.search(low) else None
    except OverflowError:
        return None


def _date(year: int, month: int, day: int) -> date | None:
    try:
        return date(year, month, day)
    except ValueError:
        return None


_WORDS: tuple[tuple[str, int], ...] = (
    (r"\bday after tomorrow\b|(?<!大)后天", 2),
    (r"\bday before yesterday\b|(?<!大)前天", -2),
    (r"大后天", 3),
    (r"大前天", -3),
    (r"\btomorrow\b|明天|明早|明晚|明日", 1),
    (r"\byesterday\b|\blast night\b|昨天|昨晚|昨日|昨夜", -1),
    (r"\btoday\b|\btonight\b|\bthis (?:morning|afternoon|evening)\b|今天|今晚|今早|今日", 0),
)


def _by_word(text: str, said: date) -> date | None:
    return next((said + timedelta(days) for pattern, days in _WORDS if re.search(pattern, text)), None)


def _by_count(text: str, said: date) -> date | None:
    found = re.search(rf"\b{_COUNT} (day|week)s? ago\b", text)
    ahead = re.search(rf"\bin {_COUNT} (day|week)s?\b(?! of)", text)
    for match, sign in ((found, -1), (ahead, 1)):
        if match:
            count = int(match[1]) if match[1].isdigit() else _COUNTS[match[1]]
            return said + timedelta(sign * count * (7 if match[2] == "week" else 1))
    found = re.search(rf"{_NUMERAL}(天|日|周|个?星期|个?礼拜)(?:之|以)?(前|后)", text)
    if found and (count := read_numeral(found[1])) is not None:
        return said + timedelta((1 if found[3] == "后" else -1) * count * (1 if found[2] in "天日" else 7))
    return None


def _by_date(text: str, said: date) -> date | None:
    """A day and a month without a year: the nearest such day on the side that the verb points to."""
    month = day = 0
    found = re.search(rf"\b(\d{{1,2}})(?:st|nd|rd|th)?(?: of)? {_MONTH}(?!\w)", text)
    if found:
        day, month = int(found[1]), _MONTHS.index(found[2][:3]) + 1
    elif found := re.search(rf"\b{_MONTH} (?:the )?(\d{{1,2}})(?:st|nd|rd|th)?\b(?!:)", text):
        month, day = _MONTHS.index(found[1][:3]) + 1, int(found[2])
    elif found := re.search(
        r"([0-9]{1,2}|[一二三四五六七八九十]{1,2})月([0-9]{1,2}|[一二三四五六七八九十]{1,3})[日号]", text
    ):
        month, day = read_numeral(found[1]) or 0, read_numeral(found[2]) or 0
    if not month:
        return None
    year = 1 if re.search(r"明年|next year", text) else -1 if re.search(r"去年|last year", text) else 0
    if year or re.search(r"今年|this year", text):
        return _date(said.year + year, month, day)
    past = _is_past(text)
    days = [d for y in (-1, 0, 1) if (d := _date(said.year + y, month, day)) and ((d <= said) if past else (d >= said))]
    return (max(days) if past else min(days)) if days else None


def _by_weekday(text: str, said: date) -> date | None:
    monday = said - timedelta(said.weekday())
    found = re.search(rf"\b(last|this|next|coming)? ?\b{_DAY}\b(?! (?:to|through)\b)", text)
    if found and not re.search(rf"\bevery {_DAY}|{_DAY}s\b", text):
        weekday, which = _DAYS.index(found[2][:3]), found[1] or ""
        if which == "next":
            return monday + timedelta(7 + weekday)
        if which == "last" or (not which and _is_past(text)):
            return said - timedelta((said.weekday() - weekday - 1) % 7 + 1)
        return said + timedelta((weekday - said.weekday()) % 7)
    found = re.search(r"(上上|上|这|本|下下|下)?个?(?:周|星期|礼拜)([一二三四五六日天])", text)
    if found and not re.search(r"每个?(?:周|星期|礼拜)", text):
        weeks = {"上上": -2, "上": -1, "这": 0, "本": 0, "下": 1, "下下": 2}.get(found[1] or "")
        day = monday + timedelta(_WEEKDAYS[found[2]])
        if weeks is not None:
            return day + timedelta(7 * weeks)
        return day + timedelta(-7 if _is_past(text) and day > said else 7 if not _is_past(text) and day < said else 0)
    return None


def _is_past(text: str) -> bool:
    return bool(_PAST.search(text)) and not _FUTURE.search(text)


_RULES: tuple[Callable[[str, date], date | None], ...] = (_by_count, _by_date, _by_word, _by_weekday)
