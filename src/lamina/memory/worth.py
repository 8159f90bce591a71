"""Whether a sentence that a user said is worth keeping, and as what kind: rules for English, then for Chinese.

Pure, without a model or a dictionary. Precision before recall: what the rules do not recognise as a statement about the
speaker, their people and things, or as a standing wish, is not kept.
"""

import re
from typing import NamedTuple

from lamina.memory.sentences import GAP, MAX_SENTENCE, fold, is_chinese
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
        return _worth_chinese(fold(sentence))
    return _worth_english(fold(sentence))


def is_question(sentence: str) -> bool:
    return bool(_QUESTION.search(bare(sentence)))


def is_supposed(sentence: str) -> bool:
    """Whether the sentence as a whole is about what might be, or what somebody else said."""
    plain = fold(sentence)
    return _is_supposed_chinese(plain) if is_chinese(plain) else bool(_HYPOTHETICAL.search(bare(plain)))


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


# Chinese, with traditional characters folded

_CHINESE_LEAD = re.compile(
    r"^(?:(?:嗯+|哦|啊|好的?|对了?|是的?|不是|其实|另外|还有|而且|但是?|不过|因为|顺便(?:说(?:一下|一句)?)?"
    r"|顺便一提|说起来|告诉你|跟你说|你知道吗|话说|"
    r"补充(?:一下|一点)?|说明(?:一下)?|坦白说|老实说|说实话|首先|其次|最后|总之|你好|您好|嗨|哈喽|谢谢|好吧|没错|那个"
    r"|背景(?:是)?|"
    r"最近|目前|现在|如今|这段时间|这几年|近来|本来|原来|另外说一句)[,，:：。！!、\s]*)+(?=.)"
)
_CHINESE_REMEMBER = re.compile(
    r"^(?:请|麻烦)?(?:你)?(?:帮我)?(?:要)?(?:记住|记得|记一下|记下来?|别忘了?|不要忘记?)(?:[:：,，]|(?=我|咱"
    r"|一下))(?:一下[,，]?)?"
)
_CHINESE_QUESTION = re.compile(
    r"[?？]|(?:吗|嘛|么|呢|吧)[。.!！~～]*$|怎么(?!都|也)|怎样|如何|为什么|为啥|为何|(?<!没)什么(?!的|都|也)"
    r"|(?<!没)啥(?!都|也)|哪(?:里|个|些|儿|种|家|位|天|一)|谁(?!都|也)|"
    r"几(?:点|个|天|号|岁|次)$|多少|多久|多大(?!的)|多远|是不是|有没有|能不能|可不可以|可以不可以|要不要|会不会"
    r"|该不该|好不好|行不行|对不对|是否|能否|可否"
)
_CHINESE_HYPOTHETICAL = re.compile(
    r"^(?:假设|假如|假定|如果|要是|倘若|若|若是|想象|比如|例如|譬如|万一|设想|举个例子|从前|话说从前|据说|听说"
    r"|有人说)|(?:说过|写道|说道|曾说|表示|认为)[:：,，]|"
    r"(?:他|她|他们|文章|作者|书里|邮件里|客户|故事里|小说里|游戏里|主角)(?:说|写|讲|问)"
)
_CHINESE_ASSISTANT = re.compile(r"你|您|妳")
_CHINESE_TASK = re.compile(
    r"报错|崩溃|异常|(?i:bug|error|null|undefined)|编译|运行到|代码|函数|脚本|接口|数据库|(?:这|那|上|下"
    r"|第[一二三四五六七八九十\d]+)(?:个|段|篇|句|行|份|张|些|一|种|条|面|述|文)"
    r"(?!月|周|星期|礼拜|学期|年|天|周末|暑假|寒假|季度|孩子|儿子|女儿)|以下|以上|刚才|刚刚(?:的|那)|"
    r"上一|前面|后面的|第[一二三四五六七八九十\d]+(?:行|步|点|题|条|句|段)|方案|选项|翻译成?|改写|润色|续写|总结一下"
)
_CHINESE_SMALL_TALK = re.compile(
    r"^(?:谢谢|感谢|多谢|你好|您好|好的|好吧|可以|没问题|不客气|再见|晚安|早上好|早安|嗨|哈哈|厉害|太棒|辛苦|明白"
    r"|收到|了解|对|行|不用|没事|抱歉|对不起)"
)
_CHINESE_COMMAND = re.compile(
    r"^(?:请|麻烦|帮|给我|把|将(?=.{1,12}(?:改|翻|换|写))|替我|写|列|生成|解释|介绍|翻译|总结|分析|推荐|说说|讲讲"
    r"|告诉|继续|再|换|改|查|做一?个|画|算|来一?[个首段篇]|用.{1,8}(?:写|回答|解释|说)|举)"
)
_CHINESE_THINKING = re.compile(
    r"^(?:我|我们)(?:就|只|也|还|真|真的|今天|今晚|昨晚|今早|有点|有些|大概|可能|又|现在|其实|刚才|刚|本来|一直)*(?:"
    r"觉得|认为|感觉|以为|猜|希望|是说|是想|是问|是指|指的|意思|明白|懂|知道|了解|理解|同意|看到|看见|发现|听说|记得"
    r"|忘了|心里|心情|确实|先|还是|按|记录|提到|担心|怕(?:自己|我|会|到|他|她|以后)|尽量|试|打算先|就想|拿不准|不想"
    r"|没想|想到|想着|想起|注意到|注重|决定先|跟着|参考|准备先|会(?:先|尽量|试|尝试|注意|按|记|把|用|调整|继续|更)"
    r"|想.{0,2}(?:了解|知道|问|咨询|请教|确认)|报名就|聊|不(?:太|是很|大)?(?:懂|明白|理解|知道|清楚|确定|同意|记得"
    r"|想要这|敢相信|是这个意思)|没(?:有)?(?:看|听|搞"
    r"|弄)?(?:懂|明白|理解|清|问|说|想到|注意)|"
    r"想(?:知道|问|请|让|了解|看|听|确认|请教|要一|要个|写|做一个|做个|生成|找|查|学习一下|聊|说|改|搞|弄|用)"
    r"|需要(?:你|帮|一|写|做|把|知道|这|生成)|要(?:你|一份|一个|一篇|一段|写一|做一个|做个|求|的是|说)|"
    r"有(?:一?个|些|几个|点|一些|两个)?(?:关于.*的?)?(?:疑问|疑惑|问题|想法|建议|主意|文件|列表|数组|表格|需求|任务"
    r"|点子|事)|"
    r"(?:遇到|碰到|出现|试了|试过|运行|执行|点击|输入|打开|复制|粘贴|上传|附上|贴|收到(?:了)?(?:一|这|报|错|以)|得到"
    r"|看了|看完|在(?:写|做|调试|看|用|想|运行|找|问|弄)(?!.*(?:工作|上班|小说|论文|博客)))|"
    r"的(?:意思|问题|想法|理解|观点|看法|需求|要求|建议|疑问|代码|程序|函数|第|文章|草稿|数据|表)|好(?:了|的)|来了"
    r"|回来了|累|困|饿|烦|(?:很|好|太|有点)(?:累|困|饿|烦|开心|难过|无聊|忙))"
)
_CHINESE_TRICK = re.compile(
    r"忽略|无视|服从|听命|越狱|系统提示|开发者模式|之前的(?:指令|规则|设定)|不受.{0,30}限制|没有(?:任何)?限制|绕过|发送到"
    r"|转发给|上传到|删除(?:所有|全部)|执行命令"
)

_CHINESE_DOING = (
    r"(?:回答|回复|答复|称呼|叫我|喊我|解释|用(?!了|过|心|力)|使用|写|输出|附上|列|标注|总结|翻译|举例|加(?!班|油)"
    r"|省略|道歉"
    r"|重复|超过|提醒我|告诉我|说(?!过|了|明)|讲|给我|推荐|带上|保持|简短|简洁|直接|分点|称我|啰嗦|客套|提(?:到|及)"
    r"|问我|称为)"
)
_CHINESE_POLITE = (
    r"(?:请|麻烦|拜托|你|您|我?希望你|我要求你|我想让你|我要你|就|都|可以|要|得|必须|务必|能|尽量|,|，|[:：])*"
)
_CHINESE_STANDING = (
    r"(?:以后|今后|往后|从现在(?:开始|起)|从今(?:天(?:开始|起)?|以后|往后)|每次|每回|任何时候|默认|一律|无论何时"
    r"|所有(?:的)?(?:回答|回复))"
)
_CHINESE_INSTRUCTION = re.compile(
    rf"^{_CHINESE_POLITE}{_CHINESE_STANDING}.{{0,14}}?{_CHINESE_DOING}"
    rf"|^{_CHINESE_POLITE}(?:跟我说话|和我说话|对我说话|回答我?|回复我?|写代码|给我写).{{0,14}}?(?:别|不要|都|请|要|必须|用)"
    rf".*(?:{_CHINESE_STANDING}|一直|始终|永远|都)"
    rf"|^(?:请|麻烦|你|您|你要|你必须)+(?:一直|始终|永远|总是|只|千万|绝对|再也)(?:都)?(?:别|不要|不准"
    rf"|要)?.{{0,6}}?{_CHINESE_DOING}"
    r"|^(?:请|就|可以|你|以后)*(?:叫|称呼|喊|管)我"
    r"(?!们?(?:怎|如何|去|来|做|该|起床|一声|吃|说|爸|妈|帮|写|的?问题))[^,，。！的]{1,10}(?:[,，。！]|$)"
)
_CHINESE_NOT_A_WISH = re.compile(
    r"[他她]|[和跟与][你您]|觉得|感觉|(?<![给跟和对叫呼喊管问诉醒答复])我(?!希望你|要求你|想让你|要你|说话|写|问|的问题|提问|发)"
)
"""Words that make a sentence tell something instead of asking for it."""

_CHINESE_KIN = (
    r"(?:爸爸|妈妈|爸妈|父亲|母亲|父母|老爸|老妈|爸|妈|爹|娘|丈夫|妻子|老公|老婆|先生|太太|爱人|媳妇|对象|伴侣|男朋友"
    r"|女朋友|男友|女友|未婚夫|未婚妻|前夫|前妻|前男友|前女友|"
    r"(?:大|小|二|三)?(?:儿子|女儿|闺女)|孩子|娃|宝宝|宝贝|双胞胎|哥哥|弟弟|姐姐|妹妹|哥|弟|姐|妹|表[哥弟姐妹]"
    r"|堂[哥弟姐妹]|兄弟|姐妹|爷爷|奶奶|外公|外婆|姥姥|姥爷|公公|婆婆|岳父|岳母|"
    r"叔叔|婶婶|伯伯|伯母|阿姨|姑姑|姑妈|姑父|舅舅|舅妈|姨父|嫂子|弟媳|姐夫|妹夫|下属|部下|徒弟|师父|师傅|合伙人|姨妈"
    r"|侄子|侄女|外甥女?|孙子|孙女|外孙女?|室友|舍友|同桌|邻居|老板|上司|领导|主管|经理"
    r"|同事|同学|朋友|闺蜜|哥们|发小|老师|导师|教练|医生|牙医|律师|房东|客户|学生|"
    r"家人|全家|一家|狗狗|狗|猫咪|猫|兔子|仓鼠|鹦鹉|宠物|乌龟|团队)"
)
_CHINESE_THING = (
    r"(?:名字|姓名|昵称|英文名|外号|姓|年龄|生日|出生|星座|属相|血型|身高|体重|鞋码|老家|家乡|籍贯|国籍|母语|家|房子"
    r"|公寓|房间|宿舍|车|车子|摩托|自行车|电脑|笔记本|手机|手机号码?|电话|电话号码|号码|"
    r"邮箱|地址|住址|微信号?|工作|职业|职位|岗位|公司|单位|部门|学校|大学|专业|学历|论文|课题|工资|月薪|年薪|薪水"
    r"|收入|预算|房租|房贷|爱好|兴趣|梦想|目标|理想|信仰|病|眼睛|膝盖|腰|胃|腿|颈椎|血压|血糖|"
    r"预约|航班|机票|火车|高铁|考试|面试|婚礼|手术|签证|护照|假期|年假|婚期|结婚纪念日|纪念日|预产期|截止日期|时区"
    r"|作息|店|餐厅|书|小说"
    r"|博客|公众号|频道|吉他|钢琴|相机|花园|农场|习惯|近视|头发|钱包|健身房|驾照|合同|实习)"
)
_CHINESE_VERY = (
    r"(?:也|还|很|非常|特别|真的|真|最|挺|蛮|超级?|一直|从小|就|都|比较|更|尤其|其实|一向|平时|现在|以前"
    r"|已经|确实|太|格外|最近|越来越|有点|不太|不怎么|一点|完全|实在|根本|向来|素来|一般|通常|再|好|可"
    r"|中午以后|晚上|早上|下午|睡前|只){0,6}"
)
"""Adverbs, each in one way only: no text of them can be read in two ways."""
_CHINESE_PREFERENCE = re.compile(
    rf"^(?:我|我们|本人|俺|咱){_CHINESE_VERY}(?:不|没)?{_CHINESE_VERY}(?:喜欢|喜爱|爱(?!人|妻|犬|猫|好者)|讨厌|厌恶|偏爱|偏好|热爱"
    rf"|钟爱|痴迷|迷恋|沉迷|享受|受不了|忍受不了|无法忍受|嫌|反感|钟情|宁愿|宁可|更愿意|愿意|习惯(?:用|喝|吃|早|晚|在"
    rf"|了)|倾向|向往|着迷)"
    r"(?!这个|这样|这种|那个|那种|你|它|第|上面|这首|这篇|这段|[,，。！!.~～\s]|$|了)"
    rf"|^(?:我|我们|本人){_CHINESE_VERY}(?:从不|从来不|从来没|不|不能|不敢|不太能|不怎么|无法|吃不了|喝不了|很少|几乎不|绝不"
    rf"|只)(?:能|会|怎么|太|再|敢)?(?:吃|喝|抽烟|抽|碰|穿|看电视|坐|用)(?!了饭|过)"
    r"|^我(?:吃不了|喝不了|吃不惯|喝不惯|听不惯|住不惯|看不惯)"
    r"|^(?:我|我们)(?:的)?(?:爱好|兴趣(?:爱好)?|最爱)(?:是|有|包括|广泛)|^(?:我|我们)最(?:喜欢|爱|讨厌|不喜欢)的"
    r"|^比起.{1,20}[,，]?我(?:更|还是|宁|倒)|^(?:和|跟|与).{1,12}(?:相比|比起来)[,，]?我更|^相比.{1,20}[,，]?我更"
    r"|是我(?:的)?最(?:爱|喜欢)"
)
_CHINESE_TIME = re.compile(
    r"今(?:天|晚|早|日|年[一二三四五六七八九十\d]{1,2}月|年(?:春|夏|秋|冬|暑|寒|年底|国庆|春节)|年(?:要|会|打算|准备"
    r"|刚|开始|参加))|明(?:天|晚|早|日|年)|昨(?:天|晚|日|夜)|(?:大)?(?:前|后)(?:天|年)|去年|"
    r"(?:上|下|这|本)(?:上|下)?个?(?:周|星期|礼拜|月|学期|季度|个?周末|半年)|(?:周|星期|礼拜)[一二三四五六日天末]"
    r"|[一二三四五六七八九十\d]{1,3}月(?:[一二三四五六七八九十\d]{1,3}[日号]|初|底|中旬|份|要|去|会|开始|$)|"
    r"(?:19|20)\d\d年|[一二三四五六七八九十两几\d]{1,6}(?:天|周|个?星期|个?礼拜|个?月|年)(?:之|以)?(?:前|后)|(?:春|夏|秋"
    r"|冬)天|暑假|寒假|国庆|春节|中秋|元旦|五一|圣诞|年底|月底|月初|年初|周末|过年"
)
_CHINESE_ROUTINE = re.compile(
    r"每(?:天|周|年|月|个|次|逢|晚|早|星期)|经常|常常|通常|一般|平时|总是|一直|习惯|从小|出生|生日|纪念日|周末(?:都"
    r"|总|一般|喜欢|常)|[一二三四五六七八九十两几\d]年[了多]|以来"
)
_CHINESE_DONE = re.compile(
    r"(?:报名|参加|入职|辞职|离职|辞了|跳槽|升职|失业|被裁|结(?:了)?婚|结的婚|离(?:了)?婚|订婚|领证|分手|毕业|退休"
    r"|考上|考过|通过了|拿到|搬(?:到|去|家|进|来)|买(?:了|到)|卖(?:了|掉)|租了|订(?:了|好)|预订|预约了|确诊|查出"
    r"|做了.{0,6}手术|住院|出院|骨折|"
    r"生了|出生了|去世|过世|领养|收养|开了|创办|创业|戒(?:了|掉)|丢了|弄丢|摔(?:了|断|伤)|怀孕|中了|赢了|获得|得了"
    r"|拿了|加入|转行|转到|换了|考了|去了|去过|见了|认识了|参加了|完成了|写完|跑完|离开了?|回国|出国|移民|开始学"
    r"|开始(?:上|做|跑|吃|减肥|健身)|飞往|退(?:了)?(?:租|伍|学)|养了)"
)
_CHINESE_COMING = re.compile(
    r"(?<!不)(?:要|将|将要|会|打算|准备|计划|想|决定|快要?|马上|即将)(?:去|到(?!期|底)|参加|搬|结婚|生|做|开始|飞"
    r"|出差|旅行|旅游|毕业"
    r"|退休|考|换|买|回|来|见|面试|手术|举办|举行|办|过|上|学|辞职|离职|跳槽|移民|领养|养|开|入职|出国|考研|读|申请"
    r"|带|跟|和|陪|请假|戒)|"
    r"(?:有)(?:一?个|一场|一次|场|次|个)?(?:面试|考试|约会|会议|会|手术|婚礼|聚会|演出|比赛|预约|旅行|答辩|演讲|航班"
    r"|体检)|飞(?!机)|出差|开学|起飞|开始(?:化疗|治疗|上|实习|工作|放假|休)|答辩|体检|上(?:小学|初中|高中|大学"
    r"|幼儿园)|满\d|就要"
)
_CHINESE_FACT = re.compile(
    rf"^(?:我|我们|本人|俺|咱们?){_CHINESE_VERY}(?:"
    r"改?叫(?!你|他|她|它|不|什|车|外卖|做这)|改名(?:叫|为|成)|姓|名叫|的(?:大名|全名)|(?<![还就只总老可倒])是(?!说|指|想|问|不是|否|这"
    r"|那|觉得|要|来|在说"
    r"|认真|真的|为了|因为|用|你)|不是(?!说|这|那|很|要|想|问|为)|属(?:于)?[鼠牛虎兔龙蛇马羊猴鸡狗猪]|来自|"
    r"(?:现在|目前|今年|已经|刚满?|快|才|都|马上){0,4}(?:[一二三四五六七八九十百\d]{1,4}多?岁)"
    r"|今年[一二三四五六七八九十\d]{1,4}(?![月年])|"
    r"(?:现在|目前|已经|一直|一个人|独自|暂时){0,4}(?:住(?!院)|定居|租住|居住|租房)|(?:现在|目前|以前|一直|曾经"
    r"|已经){0,4}在.{1,25}(?:工作|上班|任职|就职|当|做|读|念|上学|上大学|学|任教|教|实习|长大|出生|生活|打工|创业|住"
    r"|开(?:店|公司|餐厅)|当兵|留学|进修)|"
    r"(?:现在|目前|以前|曾经){0,4}(?:当|做)(?:了)?.{0,8}(?:年)?(?:的)?(?:老师|医生|护士|工程师|程序员|司机|厨师|律师|会计"
    r"|设计师|销售|记者|编辑|教师|警察|翻译|经理|产品|运营|保安|军人|公务员)|"
    r"(?:自己(?:开|经营|创业|做生意|住|租)|从事|经营|负责|主修|专业|就读|毕业于|出生|生于|长大|从小|独居|单身|已婚"
    r"|未婚|离异|离婚|怀孕|近视|色盲"
    r"|失眠|吃素|信(?:佛|教|基督|伊斯兰)|左撇子|退休|待业|失业|自由职业|素食|不婚|丁克|内向|外向|社恐|恐高|怕(?:狗|蛇"
    r"|黑|高|冷|热|虫|猫|水|打雷|鬼|辣|老鼠|蜘蛛|疼|血|痒|坐飞机)|晕车|晕船)|"
    r"有(?:[一两二三四五六七八九十\d]|高血压|糖尿病|哮喘|过敏|鼻炎|胃病|抑郁|焦虑|驾照|点?(?:恐高|社恐)|男朋友|女朋友"
    r"|女友|男友|孩子|儿子|女儿|猫|狗|辆|只|个(?:儿子|女儿|孩子|哥|弟|姐|妹|妈|朋友|双胞胎|梦想))|没有?(?:孩子|车"
    r"|结婚|对象|驾照|兄弟|房|女朋友|男朋友|宗教)|"
    r"养|家里?(?:有|住|在|养|是|一共|共)|会(?:说|讲|弹|拉|唱|游泳|开车|做饭|写|编程|用|一点|骑|打|吹|画|下棋|滑)"
    r"|不会(?:说|讲|弹|开车|游泳|做饭|骑|喝)|开(?:的(?:是)?|一辆|一家|了一家|着|货车|出租|滴滴|网约车|餐厅|店)"
    r"|用(?:的)?(?:是)?.{1,15}(?:手机|电脑|系统|相机|编辑器|输入法|笔记本)|骑|"
    r"(?:正在|在)?(?:学|练|自学)(?!不|会了|到|生|校)(?:习)?.{1,12}|对.{1,15}(?:过敏|不耐受|感兴趣|很有兴趣|没兴趣"
    r"|不感兴趣|有研究)|患(?:有|了)?|得过|(?:一般|通常|平时|经常|常常|每天|每周|每晚|每早|每年|每个月|每逢|周末|总是"
    r"|习惯).{1,}|"
    r"身高|体重|月薪|年薪|懂(?!了|你|的|这).{1,}|不抽烟|不喝酒|和.{1,10}(?:住|结婚|是(?:同学|同事|朋友|夫妻|双胞胎)"
    r"|一起住|合租|合伙)|跟.{1,10}(?:住|结婚|是(?:同学|同事|朋友|夫妻|双胞胎)|一起住|合租|合伙)|(?:大学|高中|本科"
    r"|硕士|博士)(?:学的?|读的?|念的?|毕业|在读)|"
    r"(?:已经|都)?(?:结婚|工作|入行|从业|写代码|练|戒烟|戒酒|吃素|健身|跑步|退休).{0,6}年|在备考|在准备.{1,8}考"
    r"|在(?:写|创作)(?:一(?:本|部))?(?:小说|论文|书|博客)|是左撇子)"
)
_CHINESE_STATE = (
    r"(?:她|他)?(?:也|还|都|现在|目前|一直|从小|就|今年|特别|很|最|非常|已经|刚|快|又|马上|下|上|这|明|后|去"
    r"|昨)*(?:的?(?:名字|全名|姓名|小名|生日|年龄|"
    r"电话|手机|号码|邮箱|邮件|地址|学历|教育|专业|工作|职业|职位|单位|公司|身高|体重|性格|爱好|老家|籍贯|血型|星座"
    r"|病|身体|预产期)|是|叫|姓|住|有|没有?"
    r"(?:工作|结婚|孩子|上班)|(?:喜欢|爱|讨厌|不喜欢|不爱|怕|擅长|迷|信)|不?(?:吃|喝|抽)|患|得了|确诊|去世|过世"
    r"|对.{1,10}过敏|上(?:夜|白|早|晚|小|初|中|高|大|幼|班)|"
    r"当|做(?:了)?(?:.{0,6}(?:年|工|师|员|生意|销售|老师|老板|的$|的。$))|干.{1,8}的|会(?:说|弹|做|开|拉)|学|读|念"
    r"|毕业|退休|怀孕|生了|结婚|离婚|出生|\d|[一二三四五六七八九十]+岁|"
    r"满|属|来自|在(?!做|忙|等|看|说|聊|想).{1,15}(?:工作|上班|任职|当|读|念|上学|生活|住|做生意|打工|教|学|休|实习)"
    r"|住院|一个人|跟我|和我|周|星期|下周|明天|后天|要(?:来|去|结婚|生|上|做手术)|搬|每|经常|平时|单身|属于)"
)
_CHINESE_MINE = re.compile(
    rf"^(?:我|我们|咱|俺)(?:的|家|家的|们家|们的|自己的|这边的)?(?:[^,，。我你的]{{0,4}}?)(?:{_CHINESE_KIN}(?!说|觉得|提|建议"
    rf"|问|推荐|让|给|帮|则)(?:[^,，。我你很说]{{0,3}}?){_CHINESE_STATE}"
    rf"|{_CHINESE_THING}(?!的?(?:问题|意思))[^,，。]{{0,8}}?(?:是|叫|在|有|为|姓|改|换|\d|不好|到期|推迟|岁|快))"
)
_CHINESE_IS_MINE = re.compile(
    rf"是我(?:的|们的|们)?(?:最?好的?|亲|大|小|前)?{_CHINESE_KIN}|^大家都?叫我|^朋友们?都?叫我"
)
_CHINESE_ESSENTIAL = re.compile(
    r"过敏|糖尿病|怀孕|确诊|癌|哮喘|我叫|名字|吃素|素食|儿子|女儿|孩子|丈夫|妻子|老公|老婆|生日|结婚|去世|手术|心脏"
    r"|高血压|不耐受"
)


MAX_CHINESE = 60
"""A longer sentence tells a story; what is true for long is said shortly."""
_CHINESE_DANGLING = re.compile(
    r"^(?:那|所以|于是)我|[他她它]们?(?!妈)|这[么样里边]|那[么样里边]|此|该(?!死)|正在|正开|正准备"
)
"""What points out of the sentence, or says what is going on just now."""
_CHINESE_TODAY = re.compile("今天|今晚|今早|今日|昨天|昨晚|刚|现在")


def _worth_chinese(sentence: str) -> Worth | None:
    """The kind and weight of a folded sentence that is worth keeping; None for all others."""
    told = _CHINESE_LEAD.sub("", sentence.strip()) or sentence.strip()
    asked = _CHINESE_REMEMBER.match(told)
    if asked:
        inside = _worth_chinese(told[asked.end() :])
        return Worth(inside.kind, min(1.0, inside.importance + 0.2)) if inside else None
    if (
        len(told) < 3
        or len(told) > MAX_CHINESE
        or _CHINESE_HYPOTHETICAL.search(told)
        or _CHINESE_TRICK.search(told)
        or _CHINESE_QUESTION.search(told)
    ):
        return None
    if _CHINESE_INSTRUCTION.search(told) and not _CHINESE_NOT_A_WISH.search(told):
        return Worth("instruction", 0.9)
    if (
        _CHINESE_ASSISTANT.search(told)
        or _CHINESE_SMALL_TALK.search(told)
        or _CHINESE_COMMAND.search(told)
        or _CHINESE_TASK.search(told)
    ):
        return None
    return _chinese_statement(told)


def _is_supposed_chinese(sentence: str) -> bool:
    return bool(_CHINESE_HYPOTHETICAL.search(_CHINESE_LEAD.sub("", sentence.strip())))


_CHINESE_LASTING = re.compile(
    r"^(我们?|本人|俺|咱们?)(?:现在|如今|目前)(?:已经)?(?=住(?!院)|定居|租住|居住|改?叫(?!你|他|她|它|不|什|车|外卖|做这)"
    r"|改名|姓|在.{1,25}(?:工作|上班|任职|就职|当兵|读书|上学|上大学|任教|实习|生活|定居|留学))"
)
"""What holds now and will tomorrow: 我现在住在北京 tells more than 我现在在忙."""
_CHINESE_UNSURE = re.compile("应该|可能|也许|大概会|估计|好像|似乎|担心|顾虑|困惑|纠结|感觉|看来|貌似")


def _chinese_statement(told: str) -> Worth | None:
    if _CHINESE_UNSURE.search(told):
        return None
    told = _CHINESE_LASTING.sub(r"\1", told)
    told = re.sub(
        rf"^((?:{_CHINESE_TIME.pattern})[,，]?(?:的时候)?)(?=我)(.*)$", r"\2（\1）", told
    )  # "明天我去…" as "我去…（明天）"
    more = 0.2 if _CHINESE_ESSENTIAL.search(told) else 0.0
    if _CHINESE_PREFERENCE.search(told):
        return Worth("preference", 0.6 + more)
    if _CHINESE_IS_MINE.search(told):
        return Worth("fact", 0.5 + more)
    if not re.match("我|咱|俺|本人", told):
        return None
    timed, routine = _CHINESE_TIME.search(told), _CHINESE_ROUTINE.search(told)
    coming, done = _CHINESE_COMING.search(told), _CHINESE_DONE.search(told)
    if _CHINESE_THINKING.search(told) and not (coming and timed):
        return None
    mine, fact = _CHINESE_MINE.search(told), _CHINESE_FACT.search(told)
    if _CHINESE_DANGLING.search(told) and not (mine or _CHINESE_IS_MINE.search(told)):
        return None
    if _CHINESE_TODAY.search(told) and not (done or coming or mine or "岁" in told):
        return None
    if not routine and ((done and not re.match("我(?:是|叫|养)", told)) or (timed and (coming or mine or fact))):
        if fact and "岁" in told and not done:
            return Worth("fact", 0.5 + more)
        return Worth("event", 0.6 + more)
    if fact or mine:
        return Worth("fact", 0.5 + more)
    if timed and not routine and coming:
        return Worth("event", 0.5 + more)
    return None
