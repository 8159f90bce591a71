"""Whether a sentence that a user said is worth keeping, and as what kind: rules for English.

Pure, without a model. Precision before recall: what the rules do not know for a statement about the speaker, his people
and things, or for a standing wish, is not kept. `worth_chinese` has the rules for Chinese.
"""

import re
from typing import NamedTuple

from lamina.memory.sentences import GAP, MAX_SENTENCE, fold, is_chinese
from lamina.memory.worth_chinese import is_supposed_chinese, worth_chinese
from lamina.types import FactKind


class Worth(NamedTuple):
    kind: FactKind
    importance: float


_I = re.I
_LEAD = (
    r"^(?:(?:well|so|ok|okay|oh|yes|yeah|yep|no|nope|hi|hello|hey|btw|by the way|also|and|but|actually|fyi"
    r"|just so you know|"
    r"for (?:the record|context|reference|your information)|to be honest|honestly|anyway|in fact|as (?:i said"
    r"|you know|for me)|"
    r"thanks|thank you|please note(?: that)?|note that|for what it's worth|unfortunately|luckily|sadly|fortunately|"
    r"it turns out(?: that)?|guess what|good news|bad news|update|first|secondly|finally|these days|nowadays"
    r"|currently|right now|"
    r"at the moment|lately|recently|personally|as of now|because|since)\b[\s,:;.!-]*)+"
)
_REMEMBER = (
    r"^(?:please\s+)?(?:remember|keep in mind|bear in mind|don't forget|note|make a note|never forget)(?:\s+that"
    r"|\s*[:,]|(?=\s+(?:I|my|we|our)\b))\s*"
)
_QUESTION = re.compile(
    r"[?？]|^(?:what|how|why|which|where|who)\b|^(?:who|what|when|where|which|why|how|whose|whom|is|are|was|were|do"
    r"|does|did|can|could|would|should|will"
    r"|shall|may|might|"
    r"has|have|had|am|isn't|aren't|don't|doesn't|can't|any (?:idea|tips|advice)|what's|how's|where's|who's)\s+"
    r"(?:I|you|we|he|she|it|they|the|a|an|this|that|there|my|your|our|to|many|much|about|is|are|do|does|did|was|were"
    r"|would|should)\b",
    _I,
)
_HYPOTHETICAL = re.compile(
    r"^(?:let's |let us )?(?:suppose|imagine|assume|assuming|pretend|what if|if|unless|say(?:,| that)|in case"
    r"|hypothetically|consider|"
    r"for (?:example|instance)|e\.g\.|once upon)\b|\b(?:in (?:my|the) (?:story|novel|game|scenario|script)|"
    r"(?:he|she|they|it|who|which|one|article|author|text|book|email|letter|message|poem|lyrics|character|customer) "
    r"(?:said|says|wrote|writes|told me that|goes|reads))\b|^as [A-Z]\w+ (?:said|put it|wrote)",
    _I,
)
_SMALL_TALK = re.compile(
    r"^(?:thank|thanks|hello|hi|hey|good (?:morning|evening|night|afternoon|job|idea|point)|great|perfect|cool|nice"
    r"|sure|ok|okay|lol|wow|"
    r"sorry|sounds good|got it|bye|see you|cheers|awesome|never mind|no worries|you're welcome|welcome)\b",
    _I,
)
_TO_THE_ASSISTANT = re.compile(r"\b(?:you|your|yours|you're|you've|you'll|u)\b", _I)
_TASK = re.compile(
    r"\b(?:this|that|these|those|the) (?:code|function|error|bug|query|file|script|paragraph|text|sentence|essay"
    r"|answer|option|one|"
    r"list|table|method|class|line|example|article|document|email|snippet|output|result|response|version|approach"
    r"|solution|problem|"
    r"question|issue|exercise|equation|spreadsheet|formula|prompt|image|picture|word|translation)s?\b"
    r"|\b(?:above|below|the following|as follows|line \d+|step (?:\d+|one|two|three)|stack ?trace|traceback|segfault"
    r"|exception|"
    r"error message|errors?|bugs?|crash(?:es|ed)?|compil\w+|syntax|undefined|null|localhost|stdout|repo(?:sitory)?|"
    r"(?:first|second|third|last|other|next|previous) (?:one|option|point|answer|part|question|paragraph|version"
    r"|suggestion|idea)s?)\b"
    r"|\bthe other one\b|\bmeant\b",
    _I,
)
_THINKING = re.compile(
    r"^I(?:'m| am|'d| would|'ve| have|'ll| will)?(?: just| also| really| still| only| kind of| was| am)*\s+"
    r"(?:think|guess|hope|mean|meant|see|understand|agree|disagree|know|wonder|wondering|suppose|believe|feel like"
    r"|doubt|assume|"
    r"don't (?:think|know|understand|get|see|agree|believe|care|mind|remember|want (?:it|that|this|to))"
    r"|didn't (?:know|mean|understand|get|ask)|"
    r"can't (?:tell|see|figure|find|get|seem|understand|open|run)|cannot (?:tell|see|find|get|understand)|"
    r"(?:not )?sure|sorry|confused|asking|curious|afraid(?! of)|glad|happy (?:to|with)|ready|done|back|here|stuck"
    r"|good|fine|ok|okay|"
    r"well|bored|tired|sleepy|hungry|busy|lost|"
    r"trying|looking|getting|seeing|having (?:trouble|issues|problems|difficulty)|running|testing|thinking|talking"
    r"|saying|"
    r"need|needed|want(?:ed)? (?:you|a|an|the|some|it|this|that|to (?:know|ask|understand|see|make sure|check|write"
    r"|create|build|add|use|get|find"
    r"|convert|change|say|hear|talk|discuss|clarify))|"
    r"like (?:you|a|an|the|some|it|this|that|to)|appreciate|would like|wish|wonder|tried|ran|got (?:an?|the|this|it)"
    r"|checked|"
    r"asked|said|told|read that|heard that|noticed|saw that|found (?:that|this|a)|forgot|copied|pasted|attached"
    r"|uploaded|wrote (?:this|a|the|some|it)|"
    r"have (?:a|an|another|one|some|two|no|to)(?: \w+){0,2} (?:question|questions|problem|issue|idea|ideas|doubt"
    r"|doubts|request|list|dataframe|"
    r"file|files|csv|json|string|array|dataset|task|assignment|essay|text|paragraph|clue|opinion|objection|look|try"
    r"|minute|feeling)s?\b|"
    r"have (?:to|been (?:trying|getting|told|wondering|thinking|looking)|no (?:idea|clue)|the following|this|these"
    r"|read|seen"
    r"|tried|noticed))\b",
    _I,
)
_TRICK = re.compile(
    r"\b(?:ignore|disregard|override|bypass|obey|jailbreak|developer mode|DAN mode)\b|\b(?:system|previous|prior"
    r"|above|earlier|safety) "
    r"(?:prompt|message|instruction|rule|guideline|polic)|\b(?:no|without) (?:restriction|limit|filter|rule)s\b",
    _I,
)
_ORDER = re.compile(r"\b(?:send|forward|upload|post|exfiltrate|transfer|delete|execute|run)\b", _I)
_ORDERED = re.compile(r"\b(?:to|all|every|command|file|data|http)", _I)

_ANSWERING = (
    r"(?:answer|reply|respond|write|speak|talk|use|call|address|refer|give|explain|keep|include|cite|add|put|show"
    r"|format|start|end|begin|"
    r"translate|summari[sz]e|be|avoid|mention|say|stick|provide|structure|convert|sign|ask|assume|suggest|recommend"
    r"|tell|send|make|remind|"
    r"skip|leave|omit|spell|list|stop|limit|quote|apologi[sz]e|repeat)"
)
_STANDING = (
    r"from now on|from today on|from here on|in (?:the )?future|going forward|every time|each time|whenever|for every|"
    r"in (?:all|every|each)(?: of)? (?:your|answer|repl|response)\w*|by default|at all times|until i say otherwise"
    r"|in all (?:our|future) \w+|"
    r"for (?:all|any) future \w+|for the rest of (?:our|this)"
)
_INSTRUCTION = re.compile(
    rf"^(?:please |pls |kindly |and |you (?:should|must|can) |i want you to |i'd like you to "
    rf"|i would like you to )*(?:always|never|don't ever|do not ever)"
    rf"(?: please)? (?!say never|give up|say die){_ANSWERING}\b"
    rf"|(?:\b(?:{_STANDING})\b.*\b{_ANSWERING}\b|\b{_ANSWERING}\b.*\b(?:{_STANDING})\b)"
    rf"|^(?:please )?(?:don't|do not|stop|no need to) (?:ever )?{_ANSWERING}\w*\b.*\b(?:ever|any ?more"
    rf"|in the future|when you (?:talk|speak|write|answer|reply))\b"
    r"|^(?:please |just |you can |you may )*(?:call|address) me (?:as |by )?(?!back\b|when\b|if\b|at\b|a\b|an\b"
    r"|later\b|crazy\b|tomorrow\b|on\b|in\b|out\b)[\w'-]+"
    r"|^(?:please )?refer to me as\b",
    _I,
)

_VERY = (
    r"(?:really|absolutely|totally|just|also|do|still|always|particularly|especially|actually|truly|simply|quite"
    r"|kind of|genuinely|very much|both|deeply|usually|generally|personally|only|strongly|much)"
)
_DEICTIC = (
    r"(?!(?:it|this|that|these|those|them|you|your|option|what|just|the (?:idea|way|first|second|third|last|other"
    r"|sound|one|answer|style|tone|direction|breakdown|approach|plan|suggestion|result|look|structure)|how|where you"
    r"|what you|to know|to see|to ask|to have you)\b)"
)
_PREFERENCE = re.compile(
    rf"^I (?:{_VERY} )*(?:(?:don't|do not|didn't|never|can't|cannot)(?: {_VERY})* )?(?:like|love|enjoy|prefer|hate"
    rf"|dislike|adore|detest|loathe|despise|"
    rf"favou?r|fancy|crave) {_DEICTIC}\w"
    rf"|^I (?:{_VERY} )*(?:can't|cannot|couldn't) (?:stand|bear|tolerate|resist|eat|drink|live without) {_DEICTIC}\w"
    r"|^I(?:'d| would) (?:much )?rather (?!not\b|you\b|know\b)\w"
    rf"|^I(?:'m| am)(?: not| really| also| very| a| an| huge| big| totally)* (?:fan of|fond of|into|keen on"
    rf"|crazy about|obsessed with|passionate about|picky about) {_DEICTIC}\w"
    r"|^(?:one of )?(?:my|our)(?: all[- ]time| absolute| personal)? (?:favou?rite|hobby|hobbies|passion"
    r"|guilty pleasure|pet peeve)\b"
    r"|^I (?:never|don't|do not|no longer|rarely|hardly ever|won't) (?:eat|drink|use|watch|wear|listen|smoke|play"
    r"|cook with|buy|touch)\b"
    r"|^\w[\w' ]{0,30} (?:is|are)(?: still)? (?:one of )?my (?:absolute |all[- ]time )?favou?rites?\b"
    r"|^I (?:try to )?avoid \w",
    _I,
)

_KIN = (
    r"(?:wife|husband|spouse|partner|girlfriend|boyfriend|fianc[eé]e?|ex(?:-\w+)?|mother|father|mom|mum|dad|parents?"
    r"|mother-in-law|"
    r"father-in-law|in-laws|sister-in-law|brother-in-law|stepson|stepdaughter|stepmother|stepfather|son|sons|daughter"
    r"|daughters|child|children|kids?|"
    r"baby|toddler|twins|brothers?|sisters?|siblings?|uncle|aunt|cousins?|nephews?|nieces?|grand(?:ma|pa|mother"
    r"|father|son|daughter|parents|kids|children)|"
    r"family|friends?|roommate|flatmate|housemate|neighbou?rs?|boss|manager|colleagues?|coworkers?|team lead"
    r"|supervisor|advisor|"
    r"landlord|landlady|doctor|dentist|therapist|teacher|tutor|professor|lawyer|accountant|trainer|coach|students?"
    r"|clients?|employer|dog|dogs|cats?|"
    r"puppy|kitten|rabbit|hamster|parrot|horse|pony|pets?|goldfish|tortoise|turtle|nanny|godson|goddaughter)"
)
_THING = (
    r"(?:name|nickname|surname|last name|first name|full name|pronouns|age|birthday|birth date|date of birth"
    r"|anniversary|wedding|job|work|career|profession|company|startup|"
    r"business|office|employer|school|university|college|major|degree|thesis|dissertation|salary|house|home|apartment"
    r"|flat|garden|kitchen|"
    r"car|truck|van|motorcycle|motorbike|bike|bicycle|boat|phone|phone number|number|email|address|laptop|computer|pc"
    r"|mac|camera|guitar|piano|"
    r"hometown|home town|country|city|nationality|native language|mother tongue|first language|religion|diet|allergy"
    r"|allergies|blood type|"
    r"height|weight|shoe size|eyesight|condition|diagnosis|medication|surgery|operation|appointment|flight|trip"
    r"|vacation|holiday|exam|interview|"
    r"deadline|visa|passport|lease|rent|mortgage|budget|time ?zone|schedule|shift|goal|dream|commute|gym|church"
    r"|band|book club|book|novel|blog|shop|store|"
    r"restaurant|farm|star sign|zodiac sign|native tongue|background|role"
    r"|title|position|contract|graduation|"
    r"hobby|bedtime|alarm|favou?rite|due date|glasses|internship|department|household|operating system|os|editor)"
)
_TASK_THING = re.compile(
    r"^(?:my|our) (?:\w+ ){0,2}(?:code|function|program|script|query|question|point|problem|issue|request|message"
    r"|prompt|text|essay|"
    r"paragraph|draft|list|table|database|server|app|test|tests|output|input|answer|idea|guess|understanding|opinion"
    r"|mistake|bad|file|files|"
    r"loop|regex|build|model|data|dataset|sentence|previous|next|last)\b",
    _I,
)
_HOLDS = (
    r"(?:is(?! (?:still )?(?:waiting|pounding|freezing|crashing|not working|broken|down|stuck|right|wrong|that|it"
    r"|to)\b)|are|was|were|'s|isn't|has|have|had|runs|works?"
    r"|lives?|starts?|begins?|leaves?|costs?|falls?|ends?|expires?|turn(?:s|ed)|moved|moves|likes?|loves?|hates?"
    r"|needs (?:surgery|glasses|a wheelchair)|speaks?|plays?|teaches"
    r"|stud(?:y|ies)|owns?|goes|died|passed|got|comes?|came|visits?|means|doesn't|don't|can't|will|and I|eats?"
    r"|drinks?|suffers?|takes|wears|wants|prefers|uses|drives|bought|sold|gave birth|graduated|retired|became|called"
    r"|named)"
)
_IS = (
    r"(?:is|are|was|were|'s|isn't|aren't|starts?|begins?|leaves?|ends?|expires?|falls?|costs?|runs on|will be"
    r"|has been|means)"
)
_MINE = re.compile(
    rf"^(?:my|our)(?: [\w'’-]+){{0,3}}? {_KIN}(?:'s?)?(?! who\b"
    rf"| that\b)(?:,[^,]{{1,30}},)?(?: [\w'’-]+){{0,3}}? {_HOLDS}\b"
    rf"|^(?:my|our)(?: [\w'’-]+){{0,2}}? {_THING}(?:'s?)?(?: \w+)?? {_IS}\b(?! (?:ruined|impossible|waiting|still|not))"
    rf"|^(?:my|our)(?: [\w-]+)?? {_KIN}\b.{{0,20}}\bdied\b"
    rf"|\b(?:is|are|was) (?:my|our) (?:\w+ ){{0,2}}{_KIN}\b"
    rf"|^(?:me and|both) my (?:\w+ )?{_KIN}\b",
    _I,
)
_DANGLING = re.compile(
    r"\b(?:it|them|him|he|she|they|those|here|there|their|his|her|this (?!week|month|year|spring|summer|fall|autumn"
    r"|winter|weekend|\w+day"
    r"|january|february"
    r"|march|april|may|june|july|august|september|october|november|december)|(?:like|do|know|see|need|after|about"
    r"|than) that)\b"
    r"|\bmaybe\b|\bperhaps\b|\b(?:what|which) \w+ (?:can|should|do|does)\b",
    _I,
)
"""What points out of the sentence, so that nobody could understand it later."""
_ERRAND = re.compile(
    r"^(?:I|we)(?:'ll| will|'m| am|'re| are|'ve| have)?(?: already| just| also| absolutely| definitely)* (?:going to "
    r"|gonna |about to |planning to )?"
    r"(?:need|check|make sure|hit|try|look|send|update|review|add|test|compile|revised|streamlined|download|upload"
    r"|share|start(?:ing)? now|on it"
    r"|get back|let|set(?:ting)? up|finish(?:ed)? (?:the|setting)|double|go with|take (?:a look|note)|do|keep|stick"
    r"|push|focus|handle|drop|wait|buggered|follow|want|spent|was on|went to .* instead|working on the"
    r"|start(?:ing)? with|"
    r"went (?:through|over|with|ahead)|got (?:the|your|some|it)|received|completed (?:the|all|step)|(?:can"
    r"|could) (?:handle|do|see|try|work|pay|use|get|make))\b",
    _I,
)
"""The work at hand, not a life's event."""

_FACT = re.compile(
    r"^I(?:'m| am)(?: not(?! an?\b)| also| still| now| currently| actually| already| both| originally| only| just"
    r"| almost"
    r"| nearly| about)* (?:"
    r"(?:a|an)(?! (?:bit|little|lot|few|big|huge|fan|beginner at this|complete|total|mess|idiot)\b) \w+"
    r"|\d{1,3}\b(?! (?:minutes|hours|percent|%))|"
    r"(?:eighteen|nineteen|(?:twenty|thirty|forty|fifty|sixty|seventy|eighty)(?:[- ]\w+)?)\b|"
    r"from\b|allergic|vegetarian|vegan|pescatarian|diabetic|asthmatic|celiac|coeliac|lactose|gluten|married|single"
    r"|divorced|widowed|engaged|retired|"
    r"unemployed|self-employed|pregnant|left-handed|right-handed|colou?r-?blind|deaf|blind|dyslexic|autistic|bipolar"
    r"|gay|lesbian|bisexual|trans|"
    r"nonbinary|non-binary|christian|catholic|muslim|jewish|hindu|buddhist|atheist|american|british|german|french"
    r"|chinese|canadian|indian|"
    r"japanese|korean|spanish|italian|brazilian|mexican|australian|irish|dutch|polish|turkish|russian|ukrainian"
    r"|nigerian|kenyan|"
    r"based in|located in|living|working (?:as|at|for|in|on|from|part|full|remotely)|studying|learning|majoring"
    r"|teaching|raising|training for|writing (?:a|my) (?:novel|book|thesis|phd|dissertation)|"
    r"the (?:oldest|youngest|eldest|only|head|owner|founder|manager|ceo|cto|director|captain|mother|father|lead)"
    r"|afraid of|scared of|terrified of|"
    r"in (?:my (?:early |mid |late )?(?:\w+ties|teens|\w+ year)|a wheelchair|recovery|charge of|grad(?:uate)? school"
    r"|college|high school|therapy)|on (?:a diet|medication|parental leave|maternity leave|insulin|call)|"
    r"\d+ ?(?:cm|kg|ft|lbs|feet|m|pounds) |intolerant|dating|expecting|my own boss|fluent in|good at|bad at"
    r"|responsible for)"
    r"|^I(?: also| still| now| currently| mostly| usually| often| always| only| both| do| really| actually| already"
    r"| mainly| primarily| generally| normally| typically| sometimes| rarely| never)* "
    r"(?:live|reside|work|study|teach|own|play|speak|drive|ride|grew up|was born|was raised|run (?:a|an|my|every|\d)"
    r"|manage (?!to)|volunteer|commute|come from|go by|go to|attend|"
    r"collect|suffer|take (?:\w+ )?(?:medication|insulin|pills|classes|lessons)|wear|use|read|cook|swim|jog|meditate"
    r"|wake up|get up|go to bed|sleep|identify as|weigh|stand|"
    r"practi[cs]e|paint|knit|garden|bake|earn|make \$?\d|rent|keep (?:a|bees|chickens|\w+ as)|belong to|raise|breed"
    r"|freelance|code in|program in|write (?:poetry|novels|songs|fiction|a blog)|"
    r"exercise|lift|climb|fish|hunt|sing|dance|drink|eat|watch|listen to|vote|served in"
    r"|have (?:a(?! (?:business to run|feeling|plan))|an|two"
    r"|three|four|five|six|seven|one|no|several|twin|\d+|type|asthma|adhd|diabetes|celiac|"
    r"arthritis|migraines|insomnia|anxiety|depression|high|low|chronic|severe|bad|trouble sleeping|my own|poor|kids"
    r"|children|allerg\w+|never|been (?:a|an|in|at|with|married|vegan|vegetarian|living|working|learning|playing|"
    r"studying|teaching|training|writing|dating|doing|using|taking|running|practi[cs]ing|sober))\b)\b"
    r"|^I've (?:a|an|been (?!trying|getting|told|wondering|thinking|having|looking|asked|working on (?:this|that|it)"
    r"|stuck)\w+(?: \w+)*? (?:for|since)|never (?!seen (?:this|that|it)|heard of (?:this|that|it))|always"
    r"|had .* (?:for|since)|got (?:a|an|two|three|kids))\b"
    r"|^I(?:'ve| have) (?:lived|worked|studied|taught|played|owned|known)\b|^I (?:don't|do not|can't"
    r"|cannot) (?:have (?:(?:a|an|any) (?:\w+ )?(?:car|job|licen[sc]e|kids|children|degree|visa|allerg\w+|pets?|dog"
    r"|cat|siblings?|brothers?|sisters?|partner|girlfriend|boyfriend|credit card|passport|garden|tv|phone|religion)"
    r"|kids|children)|drive|swim|own|speak|work|live|cook|smoke"
    r"|ride|read music|digest)\b"
    r"|^I can (?:speak|play|read|ride|drive|fly|cook|swim|code|sew|juggle)\b"
    r"|^(?:we|my \w+ and I)(?: also| still| now| currently| both| all)* (?:live|have (?:an?|two|three|four|five|no"
    r"|our own|\d+|kids|children|some)|own|rent|speak|work|run|are (?:a"
    r"|married|engaged|vegan|vegetarian|both|from|expecting|divorced|twins|in a)|homeschool|grow|keep"
    r"|don't have (?!to\b|time\b|any\b|enough\b)\w+)\b"
    r"|^there are (?:\w+|\d+) of us\b|^people call me\b|^everyone calls me\b|^born (?:and raised )?in\b|^(?:people"
    r"|most people|friends|my friends) call me\b",
    _I,
)
_NAMED = re.compile(r"^(?:I'm|I am) (?!Not\b|I\b)[A-Z][a-z]+(?: [A-Z][a-z]+)?(?:[.!,]|$| from\b| and\b)")

_DONE = re.compile(
    r"\b(?:got (?:married|engaged|divorced|promoted|fired|hired|laid off|a (?:new |puppy|kitten|dog|cat|job|promotion"
    r"|divorce|raise)|my|into|accepted)|"
    r"(?:was|been|am|is|are|were) (?:diagnosed|promoted|fired|laid off|hired|admitted|accepted|hospitali[sz]ed"
    r"|invited|born)|broke (?:my|up|her|his)|"
    r"sprained|signed up|enrolled|registered for|moved|relocated|bought|sold|adopted|graduated|retired|quit|resigned"
    r"|lost my|passed (?:my|the|away)|failed (?:my|the)|"
    r"won (?:a|an|the|first|my|our)|finished (?:my (?!\w+ (?:session|entry|test|setup))|school|college)|started (?:a"
    r"|my|at|working|learning|school|taking)|had (?:a baby|surgery|an operation"
    r"|my|our|a miscarriage|a heart attack|an accident)|gave birth|joined|celebrated|visited|travell?ed|went to"
    r"|flew to|applied (?:for|to)|booked|ran (?:a|my|the)|opened (?:a|my"
    r"|our)|"
    r"changed (?:my name|jobs|careers)|switched (?:to|from|jobs)|became|met (?:my|a)|proposed|inherited|published"
    r"|launched|completed|crashed my|stopped (?:\w+ing))\b",
    _I,
)
_COMING = re.compile(
    r"\b(?:(?:am|'m|are|'re|is|'s) (?:going to (?!be (?:honest|using)|ask|use|need|try)|moving (?:to|in|out|back"
    r"|house|into|abroad)|getting married|flying"
    r"|travell?ing|visiting|leaving|starting|having (?:a baby|surgery|an operation|my|our)|taking|"
    r"meeting|planning|expecting|retiring|graduating|hosting|coming|turning|due|running (?:a|the|my)|attending|seeing"
    r"|interviewing|joining|presenting|driving|switching)|"
    r"will (?:be )?(?:mov|fly|travel|visit|leav|start|have|take|meet|retir|graduat|turn|marry|go)\w*|(?:plan(?:s"
    r"|ning)?|intend|hope) to (?:move|visit|buy|sell|retire|marry|get (?:married|a)|go|travel|study|learn|take|apply"
    r"|quit|start|have|adopt|run|spend|return|leave|become|open)|(?:leaves|starts|begins|opens|is due|arrives|turns"
    r"|graduates|comes|moves|ends|expires|falls)\b|"
    r"have (?:a|an|my|our|two) (?:\w+ ){0,3}?(?:appointment|interview|exam|meeting|flight|wedding|surgery|date"
    r"|deadline|presentation|concert|trip|test|checkup|party|reservation|race|marathon|recital|match|game))\b",
    _I,
)
_TIME = re.compile(
    r"\b(?:tomorrow|yesterday|last (?:night|week|month|year|weekend|spring|summer|fall|autumn|winter|\w+day|january"
    r"|february|march|april|may|june|july|august|september|october|november|december)|"
    r"next (?:week|month|year|weekend|spring|summer|fall|autumn|winter|\w+day|january|february|march|april|may|june"
    r"|july|august|september|october|november|december)|"
    r"this (?:week|month|weekend|spring|summer|fall|autumn|winter|\w+day)|(?:\d+|a|an|one|two|three|four|five|six"
    r"|a few|a couple of) (?:days?|weeks?|months?|years?) ago|"
    r"in (?:\d+|a|one|two|three|four|five|six|a few|a couple of) (?:days?|weeks?|months?|years?)(?! of)|"
    r"(?:on|by|until|before|this|coming|every)? ?(?:mon|tues|wednes|thurs|fri|satur|sun)day\b(?!s)|"
    r"(?:in|on|by|since|until|before|of)? ?(?:january|february|march|april|june|july|august|september|october"
    r"|november|december)\b|in may\b|(?:on )?may \d|"
    r"in (?:spring|summer|fall|autumn|winter)|in (?:19|20)\d\d|(?:19|20)\d\d-\d\d-\d\d|on the \d+(?:st|nd|rd|th)"
    r"|tonight|soon)\b",
    _I,
)
_ROUTINE = re.compile(
    r"\b(?:every|each|usually|always|since|on (?:mon|tues|wednes|thurs|fri|satur|sun)days|used to|for (?:\d+"
    r"|\w+) (?:years|months|weeks)|was born|grew up|my birthday|birthday is)\b",
    _I,
)
_ABOUT_ME = re.compile(rf"^(?:I|I'm|I've|I'll|I'd|we|we're|we've|we'll|my|our)\b|\b(?:my|our) {_KIN}\b", _I)
_ESSENTIAL = re.compile(
    r"\b(?:allerg\w+|diabet\w+|pregnan\w+|diagnos\w+|cancer|asthma\w*|celiac|coeliac|intoleran\w+|my name|vegan"
    r"|vegetarian|medication|insulin|epilep\w+|"
    r"daughter|son|wife|husband|kids?|children|birthday|married|died)\b",
    _I,
)
_SOMETHING = re.compile(r"\b(?:I|I'm|I've|I'd|I'll|my|me|we|our|us)\b", _I)


MAX_WORDS = 30
"""A longer sentence tells a story; what is true for long is said shortly."""


def worth(sentence: str) -> Worth | None:
    """The kind and weight of a sentence that is worth keeping; None for all others."""
    if GAP in sentence or len(sentence) > MAX_SENTENCE or "http" in sentence:
        return None
    if is_chinese(sentence):
        found = worth_chinese(fold(sentence))
        return Worth(*found) if found else None
    return _worth_english(fold(sentence))


def is_question(sentence: str) -> bool:
    return bool(_QUESTION.search(bare(sentence)))


def is_supposed(sentence: str) -> bool:
    """Whether the sentence as a whole is about what might be, or what somebody else said."""
    plain = fold(sentence)
    return is_supposed_chinese(plain) if is_chinese(plain) else bool(_HYPOTHETICAL.search(bare(plain)))


def bare(sentence: str) -> str:
    """Without the words that only open a sentence."""
    return re.sub(_LEAD, "", sentence.strip(), flags=_I).strip() or sentence.strip()


def _worth_english(sentence: str) -> Worth | None:
    told = re.sub(
        r"^(?:can|could|would|will) you (?:please )?(?=.*\bfuture\b)|[?](?=\s*$)(?<=\bplease.)",
        "",
        bare(sentence),
        flags=_I,
    )
    asked = re.match(_REMEMBER, told, _I)
    if asked:
        inside = _worth_english(told[asked.end() :])
        return Worth(inside.kind, min(1.0, inside.importance + 0.2)) if inside else None
    if (
        not 2 <= len(told.split()) <= MAX_WORDS
        or _QUESTION.search(told)
        or _HYPOTHETICAL.search(told)
        or _is_trick(told)
    ):
        return None
    if _INSTRUCTION.search(told) and not re.search(
        r"^I(?:'ve|'m|'ll)?\s+(?!want you|would like you|'d like you)|\bI(?:'ll|'m| will| am| have to| need| plan)\b",
        told,
        _I,
    ):
        return Worth("instruction", 0.9)
    if _TO_THE_ASSISTANT.search(told) or _SMALL_TALK.search(told) or _TASK.search(told) or _TASK_THING.search(told):
        return None
    if not _SOMETHING.search(told):
        return None
    return _statement(told)


def _is_trick(told: str) -> bool:
    order = _ORDER.search(told)
    return bool(_TRICK.search(told)) or (order is not None and bool(_ORDERED.search(told, order.end())))


def _statement(told: str) -> Worth | None:
    if _ERRAND.search(told) or (_DANGLING.search(told) and not re.search(rf"\b{_KIN}\b", told, _I)):
        return None
    if re.match(r"I (?:would|could|might|should) (?!rather|love|prefer)", told, _I):
        return None
    more = 0.2 if _ESSENTIAL.search(told) else 0.0
    if _PREFERENCE.search(told):
        return Worth("preference", 0.6 + more)
    timed, routine = _TIME.search(told), _ROUTINE.search(told)
    about = _ABOUT_ME.search(told)
    fact = _NAMED.search(told) or _MINE.search(told) or (_FACT.search(told) and not _is_passing(told))
    if _THINKING.search(told) and not _NAMED.search(told) and not (_COMING.search(told) and timed):
        return None
    if re.search(r"\b(?:right )?now[.!]*$", told, _I) and not _FACT.search(told):
        return None
    if about and not routine and (_DONE.search(told) or (timed and (_COMING.search(told) or fact))):
        if re.match(r"I(?:'m| am) \d", told):
            return Worth("fact", 0.5 + more)
        return Worth("event", 0.6 + more)
    if about and not routine and _COMING.search(told) and not re.search(r"\b(?:leave|leaves)$", told):
        return Worth("event", 0.5 + more)
    if fact or (about and routine and (_DONE.search(told) or _FACT.search(told))):
        return Worth("fact", 0.5 + more)
    if about and timed and not routine and _LIFE.match(told):
        return Worth("event", 0.5 + more)
    return None


_LIFE = re.compile(
    r"(?:I|we)(?:'ve|'m|'ll)? (?:start|begin|have|see|meet|finish|leave|turn|graduate|retire|visit|fly|travel|return"
    r"|move|defend|present|had"
    r"|saw|met|started|lost|got|give birth|celebrate|host|open|launch|sit|take)\b(?! (?:with|on|through|it|the))",
    _I,
)


_MATERIAL = re.compile(
    r"^(?:I|we) (?:have|need|use|own) (?:\w+ ){0,3}?(?:spreadsheet|checklist|system|syllabus|document|deck|report"
    r"|template|script|sheet|paper|project"
    r"|website|table|column|variable|dataset|model|class|method|form|page|domain|folder|chart|graph|presentation"
    r"|meeting minutes)s?\b",
    _I,
)


def _is_passing(told: str) -> bool:
    """What is so today only, or is the stuff of the task at hand."""
    if _MATERIAL.search(told):
        return True
    return bool(re.search(r"\b(?:today|right now|at the moment|this morning|just now|tonight)\b", told, _I))
