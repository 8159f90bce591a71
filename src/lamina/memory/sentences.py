"""What people say in their own words, sentence by sentence, in English and Chinese.

Pure. Leaves out what is not theirs: code, quotations, pasted documents, and whatever is inside tags, lamina's own
fences among them. It does not judge what a sentence is worth.
"""

import re
from itertools import pairwise

CJK = "\u3005-\u3007\u3400-\u4dbf\u4e00-\u9fff\uf900-\ufaff\U00020000-\U0003ffff"
_CJK = re.compile(f"[{CJK}]")
GAP = "\ufffc"
"""Stands where something was taken out; a sentence that holds it is not whole."""

MAX_TEXT = 20_000
"""No one types more than this; a longer message is a document."""
MAX_LATIN, MAX_CJK = 1_200, 500
"""Above this a message is taken for pasted, except for what frames it."""
MAX_SENTENCE = 300

_TRADITIONAL = (
    "愛爱礙碍罷罢備备貝贝筆笔畢毕邊边編编變变標标彆别別别賓宾並并補补財财參参慘惨層层長长場场廠厂車车塵尘陳陈襯衬稱称誠诚遲迟衝冲蟲虫醜丑處处觸触"
    "傳传創创純纯詞词從从錯错達达帶带單单擔担膽胆當当黨党導导燈灯敵敌點点電电調调東东動动凍冻鬥斗讀读獨独對对隊队頓顿奪夺額额惡恶餓饿兒儿爾尔"
    "發发髮发罰罚範范飯饭訪访飛飞費费紛纷風风婦妇復复複复該该趕赶幹干乾干剛刚鋼钢個个給给宮宫夠够購购顧顾掛挂關关觀观館馆慣惯廣广歸归貴贵國国過过還还"
    "號号後后戶户護护滬沪華华畫画話话懷怀壞坏歡欢環环換换黃黄會会繪绘夥伙獲获機机積积極极級级擠挤幾几計计記记紀纪繼继際际夾夹價价駕驾堅坚間间艱艰揀拣"
    "檢检減减簡简見见鍵键艦舰漸渐將将獎奖講讲醬酱膠胶腳脚較较節节結结緊紧僅仅進进盡尽勁劲經经驚惊淨净競竞鏡镜舊旧舉举劇剧據据決决覺觉絕绝軍军開开"
    "課课墾垦褲裤塊块寬宽礦矿虧亏擴扩蠟蜡來来藍蓝欄栏懶懒爛烂勞劳樂乐類类離离禮礼裡里裏里歷历曆历麗丽連连聯联蓮莲簾帘臉脸練练戀恋糧粮涼凉兩两輛辆"
    "諒谅療疗獵猎鄰邻臨临靈灵嶺岭領领劉刘龍龙樓楼錄录陸陆驢驴綠绿論论羅罗邏逻媽妈馬马嗎吗買买賣卖麥麦滿满貓猫貿贸門门們们夢梦彌弥麵面廟庙滅灭蔑蔑"
    "嗎吗難难腦脑鬧闹內内膩腻擬拟鳥鸟寧宁農农濃浓諾诺歐欧盤盘賠赔噴喷騙骗貧贫蘋苹憑凭評评樸朴齊齐騎骑豈岂啟启氣气遷迁錢钱淺浅牆墙強强搶抢喬乔橋桥"
    "親亲輕轻請请慶庆窮穷區区權权勸劝確确讓让擾扰熱热認认榮荣軟软銳锐灑洒賽赛傘伞掃扫澀涩殺杀曬晒閃闪傷伤賞赏燒烧紹绍捨舍攝摄設设審审腎肾聲声勝胜"
    "師师詩诗時时識识實实適适勢势視视試试釋释壽寿獸兽書书術术樹树數数帥帅雙双誰谁順顺說说碩硕絲丝飼饲鬆松訴诉蘇苏雖虽隨随歲岁孫孙損损縮缩鎖锁臺台檯台"
    "態态攤摊貪贪壇坛談谈湯汤燙烫討讨題题體体條条貼贴鐵铁聽听廳厅頭头圖图塗涂團团彎弯灣湾萬万網网違违圍围為为維维偉伟衛卫穩稳問问聞闻臥卧無无務务"
    "誤误霧雾犧牺習习襲袭戲戏細细蝦虾嚇吓鮮鲜賢贤鹹咸險险顯显現现縣县線线獻献鄉乡詳详響响項项銷销曉晓嘯啸協协脅胁寫写謝谢興兴選选學学尋寻訊讯遜逊"
    "壓压亞亚煙烟鹽盐嚴严顏颜驗验陽阳揚扬養养樣样藥药爺爷業业葉叶頁页醫医遺遗儀仪億亿藝艺憶忆議议譯译異异陰阴銀银飲饮應应英英贏赢營营擁拥優优憂忧郵邮"
    "遊游於于餘余魚鱼娛娱與与語语預预園园員员圓圆緣缘遠远願愿約约閱阅雲云運运醞酝雜杂災灾載载暫暂讚赞臟脏髒脏擇择責责賊贼贈赠紮扎詐诈債债氈毡張张漲涨"
    "賬账帳账趙赵這这診诊偵侦陣阵鎮镇爭争證证鄭郑職职執执紙纸製制質质鐘钟鍾钟種种眾众週周豬猪諸诸築筑專专轉转賺赚莊庄裝装壯壮狀状準准資资總总縱纵組组"
    "報报賀贺駛驶軌轨輪轮輸输辦办辭辞遞递釣钓錶表鋪铺鏈链隱隐雞鸡鴨鸭鵝鹅飾饰餅饼騰腾鬍胡齡龄齒齿龜龟檔档橫横殘残滾滚漢汉潔洁潤润瀏浏爐炉瓊琼監监礎础穀谷籃篮紅红紋纹紐纽絡络統统綜综締缔緒绪縫缝績绩織织繞绕纖纤聖圣聰聪肅肃腫肿膚肤臘腊艙舱蘭兰"
    "規规訂订訓训託托許许註注誌志誕诞謀谋謊谎譜谱賴赖躍跃釀酿鈴铃鍋锅閉闭階阶韓韩韻韵頂顶須须顆颗飄飘駐驻魯鲁鳳凤鷹鹰麽么寶宝屬属島岛幣币幫帮庫库廢废彈弹徹彻徵征恆恒恥耻悶闷慮虑戰战採采搖摇撥拨撫抚擊击擋挡擺摆攜携敗败斷断昇升暈晕曠旷棄弃棟栋"
    "構构槍枪檸柠櫃柜欽钦歎叹殼壳沒没況况測测濱滨煉炼煩烦牽牵獅狮疊叠瘋疯皺皱盃杯瞞瞒砲炮祕秘稅税窩窝筍笋簽签粵粤糾纠慶庆賓宾貸贷鑰钥賀贺"
    "鑽钻馮冯吳吴葉叶盧卢鄧邓蔣蒋嬸婶妳你它它喫吃癮瘾哪哪麼么甚什隻只隻只纔才嘗尝嚐尝淚泪溫温澤泽濟济灘滩濕湿烏乌燉炖狹狭猶犹瑪玛產产癢痒盜盗碼码"
)
_FOLD = str.maketrans(dict(zip(_TRADITIONAL[::2], _TRADITIONAL[1::2], strict=True)) | {"’": "'", "‘": "'", "＇": "'"})


def listed(words: str) -> list[str]:
    """A list of words as a line that can be read."""
    return words.split()


def fold(text: str) -> str:
    """Traditional characters as simplified ones, character by character, so that places stay the same."""
    return text.translate(_FOLD)


def is_chinese(text: str) -> bool:
    """Whether the text is written in Chinese rather than in words with spaces."""
    return len(_CJK.findall(text)) > 2 * len(re.findall(rf"[^\W\d_{CJK}]+", text))


_CODE_BLOCK = re.compile(r"^[ \t]*(```+|~~~+)[^\n]*$(?:.*?^[ \t]*\1[ \t]*$|.*\Z)", re.MULTILINE | re.DOTALL)
_INLINE_CODE = re.compile(r"`([^`\n]+)`")
_TAG = re.compile(r"<(/?)([A-Za-z][\w.:-]{0,60})(?:\s[^<>]{0,400})?(/?)>")
_OPENS_QUOTE = re.compile('["“「『«]')
_OPENS_SINGLE = re.compile(r"(?<![\w'])'|‘")
_CLOSES = {'"': '"', "“": "”", "「": "」", "『": "』", "«": "»", "'": "'", "‘": "’"}
MAX_QUOTATION, MIN_SINGLE = 2_000, 20
"""Characters of a quotation at most, and at least between single quotes, which are apostrophes as well."""

_CODE_LINE = re.compile(
    r"^\s*(?:def |class \w+[:(]|import \w|from \w[\w.]* import|return\b[^;()]*[;()]|for \w+ in [^:]*:|while [^:]*:"
    r"|if .*:\s*$"
    r"|else:|#include"
    r"|function\b[^(]*\(|const \w|let \w+ =|var \w|public |private |SELECT .* FROM|INSERT INTO|UPDATE .* SET|\$ |>>> "
    r"|npm |pip "
    r"|git |sudo |curl |docker |at [^(]*\([^)]*:\d+\)|Traceback|File \"|@\w+$|//|/\*|\*/|\| )"
    r"|[;{}]\s*$|=>|->|::|\)\s*\{|^\s*[\w.]+\s*=[^=]|^\s*[\w.]+\(.*\)\s*$|^[\[\]{}(),\s]+$|^\s*\"[\w-]+\"\s*:"
)
_LETTER_HEAD = re.compile(
    r"^\s*(?:From|To|Cc|Subject|Sent|Date|Fwd?|Re|发件人|收件人|主题|抄送|日期|转发|答复)\s*[:：]|^\s*(?:Dear"
    r"|To whom)\b[^.!?\n]{0,60}[,:]?\s*$"
    r"|^\s*(?:尊敬的|亲爱的|敬启者)[^。\n]{0,30}[:：,，]?\s*$"
    r"|^\s*-{3,} ?(?:Original|Forwarded|Begin)|^\s*#{1,6} |^\s*(?:={3,}|-{3,}|\*{3,}|_{3,})\s*$",
    re.IGNORECASE,
)
_MATERIAL = re.compile(
    r"\b(?:summari[sz]e|translate|proofread|rewrite|rephrase|paraphrase|edit|review|correct|fix|improve|shorten"
    r"|polish|analy[sz]e|"
    r"critique|explain|check|format|convert|classify|extract|debug|read|continue|reply to|respond to|here(?:'s| is"
    r"| are)|"
    r"this is (?:the|a|an|my)|following|below|draft|wrote|says?|said|writes|got this|reads?)\b[^\n]{0,120}[:：]\s*$"
    r"|(?:翻译|总结|概括|润色|改写|校对|修改|优化|分析|解释|检查|缩写|扩写|续写|点评|归纳|提取|整理|改成|看看|看一下"
    r"|回复|如下|"
    r"以下|下面|原文|内容|说|写道|这是|文章|邮件|文本)[^\n。]{0,40}[:：]\s*$",
    re.IGNORECASE,
)
_INLINE_MATERIAL = re.compile(
    r"^\W*+(?:(?:please|pls|can you|could you|kindly|help me|now|then|and)\s++)*+"
    r"(?:summari[sz]e|translate|proofread|rewrite|rephrase|paraphrase|edit|review|correct|improve|shorten|polish"
    r"|analy[sz]e|"
    r"critique|classify|extract|format|convert|continue|reply|respond)\b[^:：\n]{0,80}[:：]"
    r"|^\W*+(?:请你?|麻烦|帮我|帮忙|把|将|能不能|可以)*+[^:：。\n]{0,12}"
    r"(?:翻译|总结|概括|润色|改写|校对|修改|分析|缩写|扩写|续写|点评|归纳|提取|整理|改成|回复)[^:：。\n]{0,20}[:：]",
    re.IGNORECASE,
)

_COLON = re.compile(r"[:：]\s*$")
_THEIRS = re.compile(
    r"\b(?:e-?mails?|mails?|messages?|letters?|texts?|articles?|pages?|websites?|posts?|comments?|reviews?|notes? from"
    r"|from (?!now\b)|by|outputs?|results?|logs?|files?|quotes?|transcripts?|got|found|received|copied|pasted|forwarded"
    r"|saw|heard|told|tells|writes|wrote|said|says)\b|\bthis\W*$|(?<!it)(?<!let)(?<!that)(?<!what)'s\b"
    r"|^(?:my|our) (?:\w+ )?(?:boss|friend|colleague|co-?worker|manager|teacher|mom|mum|mother|dad|father|parents"
    r"|sister|brother|wife|husband|partner|son|daughter|landlord|client|customer|doctor|lawyer|neighbou?r|girlfriend"
    r"|boyfriend|uncle|aunt|team ?lead)\b"
    r"|邮件|消息|短信|来信|文章|网页|网站|结果|输出|日志|文件|发来|写道|[说讲]|转发|原文|收到|看到|找到|听到|复制|来自",
    re.IGNORECASE,
)
_OWN_HEAD = re.compile(
    r"^\W*+(?:(?:hi|hello|hey|ok|okay|so|also|and|well|please|pls|now|but)\b\W*+)*+"
    r"(?:$|(?:remember|note|keep in mind|bear in mind|don't forget|memori[sz]e|know|fyi|btw|by the way|p\.?s)\b"
    r"|(?:my|our) \w|me$|I\b|we\b|from now on|in (?:the )?future|going forward|for (?:all|every|future|the future)\b"
    r"|when(?:ever)? (?:you|I)\b|you (?:should|must|can)\b|(?:one|two|three|some|a few|more|other|\d+) (?:more )?"
    r"(?:things?|facts?|wishes|requests?|points?)\b|[^:：]*\b(?:about|for|of) (?:me|us|myself)\b)"
    r"|^\W*+(?:请|麻烦|你|您|帮我|好的?|另外|还有|顺便|对了|补充|首先|其次|最后|你好|您好|，|,)*+"
    r"(?:$|记|牢记|注意|知道|我(?!.{0,8}(?:朋友|老板|同事|老师|妈|爸|妻|丈夫))|我们|咱|本人|以后|今后|从现在|从今|关于[我咱])",
    re.IGNORECASE,
)


def _leads_elsewhere(line: str) -> bool:
    """Whether a line ends with a colon and what follows it may be someone else's: all that is not the user's."""
    end = _COLON.search(line)
    if not end:
        return False
    head = fold(line[: end.start()]).strip()
    return bool(head) and (bool(_THEIRS.search(head)) or not _OWN_HEAD.search(head))


def own_words(text: str) -> str:
    """The text without what someone else wrote. What goes leaves a mark, so that no sentence closes over it."""
    if len(text) > MAX_TEXT:
        return ""
    text = _CODE_BLOCK.sub(f"\n{GAP}\n", text.replace("\r\n", "\n").replace("\r", "\n"))
    text = without_tags(text)
    text = _without_quotations(text)
    lines: list[str] = []
    for line in text.split("\n"):
        if _LETTER_HEAD.search(line):
            break
        found = _INLINE_MATERIAL.search(fold(line))
        if found and line[found.end() :].strip():
            break
        if _MATERIAL.search(fold(line)) or _leads_elsewhere(line):
            break
        theirs = line.lstrip().startswith((">", "＞", "|")) or _CODE_LINE.search(line)
        lines.append(GAP if theirs else _INLINE_CODE.sub(_short_code, line))
    return _without_documents("\n".join(lines))


def _short_code(found: re.Match[str]) -> str:
    return found[1] if re.fullmatch(r"[\w .+#-]{1,30}", found[1]) else GAP


def without_tags(text: str) -> str:
    """Everything from an opening tag to its closing one, or to the end when it has none, goes."""
    kept: list[str] = []
    at = 0
    tags = list(_TAG.finditer(text))
    # The last closing tag counts, since text inside may hold one of its own.
    closings = {tag[2]: tag.end() for tag in tags if tag[1]}
    for tag in tags:
        if tag.start() < at:
            continue
        kept.append(text[at : tag.start()])
        kept.append(f"\n{GAP}\n")
        if tag[1] or tag[3]:
            at = tag.end()
        else:
            end = closings.get(tag[2], 0)
            at = end if end > tag.start() else len(text)
    kept.append(text[at:])
    return "".join(kept)


def _without_quotations(text: str) -> str:
    return _without_quoted(_without_quoted(text, _OPENS_QUOTE, 1), _OPENS_SINGLE, MIN_SINGLE)


def _without_quoted(text: str, opens: re.Pattern[str], least: int) -> str:
    """The text without quotations of more than a few words. Each opening mark looks for its closing one with `find`:
    a pattern would read the same text again for each of them."""
    kept: list[str] = []
    at = begin = 0
    while found := opens.search(text, at):
        at, mark = found.end(), found[0]
        end = text.find(_CLOSES[mark], at, at + MAX_QUOTATION + 1)
        after = text[end + 1 : end + 2]
        word_follows = mark in "'‘" and (after.isalnum() or after == "_")
        if end < at + least or word_follows or (mark in "\"'" and "\n" in text[at:end]):
            continue
        inside = text[at:end]
        if len(inside.split()) + len(_CJK.findall(inside)) // 2 > 4:
            kept += (text[begin : found.start()], GAP)
            begin = end + 1
        at = end + 1
    return "".join((*kept, text[begin:]))


def _without_documents(text: str) -> str:
    """A long text is a document; short paragraphs at its two ends are what the user says about it."""
    characters = len(_CJK.findall(text))
    if characters <= MAX_CJK and len(text) - characters <= MAX_LATIN:
        return text
    paragraphs = [paragraph for paragraph in re.split(r"\n\s*\n", text) if paragraph.strip()]
    ends = [paragraphs[0], paragraphs[-1]] if len(paragraphs) > 1 else []
    return "\n\n".join(end for end in ends if len(end) <= (100 if is_chinese(end) else MAX_SENTENCE))


_ABBREVIATION = re.compile(
    r"(?:\b(?:mr|mrs|ms|dr|prof|st|vs|etc|e\.g|i\.e|approx|dept|inc|ltd|co|jr|sr|fig|ave|jan|feb|mar|apr|jun|jul"
    r"|aug|sept?|oct"
    r"|nov|dec|a\.m|p\.m|u\.s|u\.k)|(?-i:^\s{0,12}|[A-Z][\w.]{0,12}\s)(?-i:[A-Z]))\.$",
    re.IGNORECASE,
)
_END = re.compile(r"(?<![.!?])[.!?]++[\"'”’)\]]*+(?=\s|$)|[。！？；!?]+[”’」』）)]*(?=.|$)|(?<![;…])[;…]++(?=\s|$)|\n+")
_VISIBLE = re.compile(r"\S")


def split_sentences(text: str) -> list[str]:
    """Sentences with their closing mark, in order. Decimals, initials and abbreviations do not end one."""
    found: list[str] = []
    begin = 0
    for end in _END.finditer(text):
        if end[0] == "." and end.end() < len(text):
            before = text[max(begin, end.start() - 12) : end.end()]
            next_visible = _VISIBLE.search(text, end.end())
            follows = next_visible[0] if next_visible else ""
            if _ABBREVIATION.search(before) and not re.search(r"\b(?:etc|a\.m|p\.m)\.$", before):
                continue
            if follows.islower() or (before.lower().endswith(" no.") and follows.isdigit()):
                continue
        found.append(text[begin : end.end()])
        begin = end.end()
    found.append(text[begin:])
    return [sentence for sentence in map(_tidy, found) if sentence]


def _tidy(sentence: str) -> str:
    sentence = re.sub(r"\s+", " ", sentence).strip()
    return re.sub(
        r"^(?:[-*•·–—]|\(?\d{1,2}[.)、]|[（(][一二三四五六七八九十]{1,2}[）)]|[一二三四五六七八九十]{1,2}、)\s*",
        "",
        sentence,
    )


_CLAUSE = re.compile(
    r",? (?:and|but|so|plus) (?=(?:I|I'm|I've|I'd|I'll|my|we|our|we're|we've)\b)|[,，] ?(?=(?:and|but"
    r"|so)? ?(?:I|I'm|my|we|our)\b)"
    r"|[，,；;](?:而且|并且|但是|不过|可是|另外|还有|然后|所以|同时|但|也)?(?=我|咱|本人|俺)"
)


def split_clauses(sentence: str) -> list[str]:
    """The parts of a sentence that start again with the speaker. As `split_sentences` gives it, with single spaces."""
    cuts = [0, *(place for found in _CLAUSE.finditer(sentence) for place in found.span()), len(sentence)]
    return [part for part in (sentence[a:b].strip(" ,，") for a, b in list(pairwise(cuts))[::2]) if part]
